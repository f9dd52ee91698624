"""What must hold of a whole example, whatever happened in it."""

import json
from collections import defaultdict
from functools import cache
from typing import Any

from mhsd.base.errors import ERRORS
from mhsd.base.resources import schema_document
from mhsd.core.chain import BUNDLE_VERSION, verify_bundle
from mhsd.wire.schema import Validator, compile_schema
from tests.documents import RESULTS
from tests.property.model.history import Ask, Native
from tests.property.model.listen import judge
from tests.property.model.lives import STOP_GRACE_S
from tests.property.model.record import ENDPOINT
from tests.property.model.refusals import unfounded
from tests.property.model.steps import MOVE, TRAVEL
from tests.property.model.watch import ACTUATING, GUARDED
from tests.property.model.world import PRINCIPALS, World

INTERNAL = "cap.internal."
SLACK_S = 0.001
STOP_S = 0.1 + STOP_GRACE_S + 1.0 + 2.0 + 2 * 1.0
"""A stop: its latency and grace, the receipts of what it ended, the latch file, and a look at two devices."""

LONGEST_S = {
    "mhs.session.open": 2.0,
    "mhs.session.heartbeat": 2.0,
    "mhs.session.close": 5.0,
    "mhs.safety.status": 1.0,
    "mhs.safety.permit": 0.0,
    "mhs.safety.estop": STOP_S,
}
"""How long the methods without a deadline of the caller's may take."""

ENDING_S = 2 * STOP_GRACE_S + 5.0 + 1.0
"""From an operation being told to end to its final receipt: grace, safe state, a look at the device, a breath."""

WATCH_S = 1.5
"""An interlock that stays open for so long is seen, however slow the link is."""

OUTCOMES = {
    "returned": {"completed", "unknown"},
    "DriverFailed": {"failed"},
    "RuntimeError": {"failed"},
    "OutcomeUnknown": {"unknown"},
    "Cancelled": {"cancelled"},
    "ended early": {"cancelled"},
    "Busy": {"rejected"},
    "LinkDown": {"rejected"},
}
"""What the receipt may say of a call that ended like this, where nobody ended it early."""


@cache
def _validator(name: str) -> Validator:
    return compile_schema(schema_document(name), resolve=schema_document)


async def check_history(world: World) -> None:
    """Everything that can be told at the end; faults go to the world's own list."""
    chain = [stored.as_dict() for stored in (await world.store.read_page(max_receipts=10**6)).receipts]
    wires = {
        stored.receipt_id: stored.wire().data
        for stored in (await world.store.read_page(max_receipts=10**6)).receipts
    }
    _check_chain(world, chain)
    _check_revisions(world, chain)
    _check_receipts(world, chain)
    for ask in world.asks:
        _check_answer(world, ask)
        _check_recorded(world, ask, wires)
        _check_session(world, ask)
        _check_current(world, ask)
        if (
            ask.method in ("mhs.command", "mhs.resource.write")
            and (ask.result or {}).get("status") == "rejected"
        ):
            reason = unfounded(world, ask)
            world.expect(reason is None, f"{ask.method} {ask.sent.number}: {reason}")
    for native in world.natives:
        _check_native(world, native, chain)
    _check_stops(world, chain)
    _check_closes(world)
    _check_replays(world, chain)
    judge(world, chain)


def _check_chain(world: World, chain: list[dict[str, Any]]) -> None:
    bundle = {
        "bundle_version": BUNDLE_VERSION,
        "endpoint_info": {
            "endpoint_id": ENDPOINT,
            "genesis": dict(world.store.genesis),
            "genesis_digest": world.store.genesis_digest,
        },
        "receipts": chain,
        "head_digest": world.store.head()[1],
    }
    report = verify_bundle(bundle)
    world.expect(report["valid"], f"the chain does not verify: {report['errors'][:3]}")
    world.expect(report["checked"] == world.store.head()[0], "the page does not reach to the head")


def _check_revisions(world: World, chain: list[dict[str, Any]]) -> None:
    """From receipt to receipt the revision of a device moves by at most one, and never by itself."""
    known: dict[str, int] = defaultdict(int)
    for receipt in chain:
        before, after = receipt["state_revision_before"], receipt["state_revision_after"]
        seq, device_id = receipt["evidence"]["seq"], receipt["device_id"]
        world.expect(
            before == known[device_id], f"receipt {seq} begins at revision {before}, not {known[device_id]}"
        )
        world.expect(after - before in (0, 1), f"receipt {seq} moves from revision {before} to {after}")
        world.expect(
            receipt["status"] != "rejected" or after == before, f"the refusal {seq} moves the revision"
        )
        known[device_id] = after
    for device_id, revision in known.items():
        stored = world.store.revision(device_id)
        world.expect(stored == revision, f"the store says revision {stored} for {device_id}, not {revision}")


def _is_interim(receipt: dict[str, Any]) -> bool:
    return (
        receipt["status"] == "unknown"
        and receipt["error"].get("details", {}).get("reason") == "deadline_exceeded"
        and not receipt["capability_id"].startswith(INTERNAL)
    )


def _check_receipts(world: World, chain: list[dict[str, Any]]) -> None:
    """One final receipt an execution, and one an id; the interim one stands before it and is named by it."""
    finals: dict[tuple[str, str], Any] = {}
    interims: dict[str, list[str]] = defaultdict(list)
    ids: set[str] = set()
    for receipt in chain:
        world.expect(receipt["receipt_id"] not in ids, f"receipt {receipt['receipt_id']} is there twice")
        ids.add(receipt["receipt_id"])
        if receipt["capability_id"].startswith(INTERNAL):
            continue
        if receipt["status"] == "rejected" and "operation_id" not in receipt:
            continue
        if _is_interim(receipt):
            interims[receipt["operation_id"]].append(receipt["receipt_id"])
            continue
        key = (receipt["device_id"], receipt["operation_id"])
        world.expect(key not in finals, f"operation {key[1]} has two last receipts")
        if receipt["status"] != "rejected":
            key = (receipt["device_id"], receipt["command_id"])
        world.expect(key not in finals, f"command {key[1]} has two final receipts")
        finals[key] = receipt
        named = receipt.get("x-vendor", {}).get("reconciles")
        known = interims.get(receipt["operation_id"], [])
        world.expect(
            named == (known[-1] if known else None),
            f"the final receipt of {key[1]} reconciles {named}, not {known}",
        )
    for operation_id, known in interims.items():
        world.expect(len(known) == 1, f"operation {operation_id} has {len(known)} interim receipts")


def _check_answer(world: World, ask: Ask) -> None:
    """An answer came in time, is well-formed and no confession of a defect."""
    what = f"{ask.method} {ask.sent.number}"
    limit_s = LONGEST_S.get(ask.method, ask.limit_s)
    if limit_s is None:
        limit_s = ask.params.get("deadline_ms", 1000 * STOP_S) / 1000
    due_s = ask.sent.mono_s + limit_s + SLACK_S
    if ask.answered is None:
        ended = ask.life in world.lives_end and world.lives_end[ask.life] <= due_s
        world.expect(ask.lost or ended, f"{what} was never answered")
        return
    late = ask.answered.mono_s > due_s
    world.expect(not late, f"{what} was answered {ask.answered.mono_s - ask.sent.mono_s} s later")
    if ask.reply is None:
        world.expect(ask.notification, f"{what} has no answer")
        return
    if "error" in ask.reply:
        _check_error(world, ask.reply["error"], what)
    else:
        name = "receipt" if "receipt_id" in ask.result else RESULTS[ask.method]
        errors = _validator(name).errors(ask.result)
        world.expect(not errors, f"the answer to {what} is not valid: {errors[:2]}")
    if ask.error_code in ("MHS.INTERNAL.STORE_UNAVAILABLE", "MHS.OUTCOME.UNKNOWN") and "error" in ask.reply:
        world.expect(ask.life in world.full_lives, f"{what} blames a disk that is not full: {ask.reply}")


def _check_error(world: World, error: dict[str, Any], what: str) -> None:
    errors = _validator("error").errors(error["data"])
    world.expect(not errors, f"the error of {what} is not valid: {errors[:2]}")
    code = error["data"]["mhs_code"]
    world.expect(
        code in ERRORS and error["code"] == ERRORS[code].json_rpc, f"{what} has the code {error['code']}"
    )
    world.expect(code != "MHS.INTERNAL.ERROR", f"{what} answers {error['message']}")


def _check_recorded(world: World, ask: Ask, wires: dict[str, bytes]) -> None:
    """What was answered as recorded is in the chain, byte for byte but for `replayed` [OP-003, PROTO-029]."""
    result = ask.result
    if not isinstance(result, dict) or "evidence" not in result or result["evidence"].get("pending"):
        return
    recorded = wires.get(result["receipt_id"])
    what = f"the answer to {ask.method} {ask.sent.number}"
    if recorded is None:
        world.expect(False, f"{what} is not in the chain")
    elif ask.data is not None and not result["capability_id"].startswith(INTERNAL):
        sent = ask.data.replace(b'"replayed":true', b'"replayed":false', 1)
        world.expect(sent == recorded, f"{what} is not what is in the chain")
    else:
        world.expect(
            {**result, "replayed": False} == json.loads(recorded), f"{what} is not what is in the chain"
        )


def _check_session(world: World, ask: Ask) -> None:
    """A session that is over answers so, and one that is not does not [SESS-004]."""
    session_id = ask.params.get("session_id")
    if session_id is None or ask.reply is None or ask.method == "mhs.safety.permit":
        return
    visit = world.visit(session_id)
    refused = "error" in ask.reply and str(ask.error_code).startswith("MHS.SESSION.")
    what = f"{ask.method} {ask.sent.number}"
    if visit.principal != ask.principal:
        world.expect(ask.error_code == "MHS.SESSION.UNKNOWN", f"{what} was served in somebody else's session")
    elif visit.life == ask.life and visit.over_at(ask.sent):
        world.expect(refused, f"{what} was served in a session that was over")
    elif refused:
        ended = visit.closing is not None or visit.life != ask.life or ask.life in world.drained
        world.expect(
            ended or visit.expires_mono_s <= world.answered_s(ask), f"{what} was refused: {ask.reply}"
        )


def _check_current(world: World, ask: Ask) -> None:
    """What has its last receipt is not reported as running [OP-010]."""
    result = ask.result
    if not isinstance(result, dict) or result.get("status") not in ("running", "accepted"):
        return
    what = f"{ask.method} {ask.sent.number} answers {result['status']}"
    if ask.life in world.full_lives:
        native = next((n for n in reversed(world.natives) if n.command_id == result["command_id"]), None)
        ended_s = float("inf") if native is None or native.ended is None else native.ended.mono_s
        world.expect(ended_s + ENDING_S >= ask.sent.mono_s, f"{what} long after the end")
        return
    put = world.put_of(result["receipt_id"])
    world.expect(put is None or put.at.number > ask.sent.number, f"{what} after the last receipt")


def _check_native(world: World, native: Native, chain: list[dict[str, Any]]) -> None:
    """What the receipts say of a call is what became of it."""
    what = f"{native.capability_id} of {native.command_id}"
    own = [
        receipt
        for receipt in chain
        if receipt["command_id"] == native.command_id and not _is_interim(receipt)
    ]
    finals = [receipt for receipt in own if receipt["status"] != "rejected"]
    if native.refused:
        return
    world.expect(len(finals) == 1, f"{what} ran and has {len(finals)} final receipts")
    if len(finals) != 1:
        return
    final = finals[0]
    world.expect(final["session_id"] == native.session_id, f"{what} is in the name of another session")
    _check_outcome(world, native, final, what)
    if final["status"] == "completed" and native.capability_id in GUARDED:
        stopped = world.stops_at(final["receipt_id"], native.device) != native.stops_before
        world.expect(not stopped, f"{what} completed after a stop")
    _check_change(world, native, final, what)
    _check_gate(world, native, final, what)
    _check_end_of_session(world, native, final, what)


def _check_outcome(world: World, native: Native, final: dict[str, Any], what: str) -> None:
    status = final["status"]
    reason = final.get("error", {}).get("details", {}).get("reason")
    if status == "unknown" and reason in ("endpoint_restarted", "stop_grace_exceeded", "state_unreadable"):
        return
    if native.ended is None:
        world.expect(False, f"{what} is {status} and its call was never back")
        return
    early = final.get("cancellation", {}).get("reason")
    if early == "estop" or reason == "opened_while_running":
        stopped = {"cancelled", "failed"} | (OUTCOMES[native.how or ""] & {"unknown"})
        world.expect(status in stopped, f"{what} was stopped and is {status}")
        return
    allowed = OUTCOMES[native.how or ""]
    if native.value.get("how") == "bad_output" and native.how == "returned":
        allowed = {"failed"}
    world.expect(status in allowed, f"{what} ended as {native.how} and is {status} ({reason}, {early})")


def _check_change(world: World, native: Native, final: dict[str, Any], what: str) -> None:
    """The revision moved if and only if the state did, where nothing else can have moved it [OP-007]."""
    moved = final["state_revision_after"] - final["state_revision_before"]
    if native.capability_id not in ACTUATING:
        reason = final.get("error", {}).get("details", {}).get("reason")
        world.expect(moved == 0 or reason == "endpoint_restarted", f"{what} moved the revision")
        return
    put = world.put_of(final["receipt_id"])
    if put is None or not native.alone or put.state is None or "state_hash_after" not in final:
        return
    changed = put.state != native.state_before
    world.expect(moved == changed, f"{what} moved the revision by {moved}, its state changed: {changed}")


def _check_gate(world: World, native: Native, final: dict[str, Any], what: str) -> None:
    """What runs while its gate stands open does not complete: interlocks are watched."""
    if native.capability_id not in (MOVE, TRAVEL) or native.ended is None or final["status"] != "completed":
        return
    changes = [*world.gate_changes[native.device], (native.ended, "closed")]
    opened_s = None
    for at, gate in changes:
        if at.number > native.ended.number:
            break
        if gate == "closed":
            if opened_s is not None:
                open_s = at.mono_s - max(opened_s, native.began.mono_s)
                world.expect(open_s < WATCH_S, f"{what} completed with its gate open for {open_s} s")
            opened_s = None
        elif opened_s is None:
            opened_s = at.mono_s


def _check_end_of_session(world: World, native: Native, final: dict[str, Any], what: str) -> None:
    """After the end of its session nothing moves on, and it has its last receipt soon [SESS-004]."""
    visit = world.visit(native.session_id)
    over_s = visit.expires_mono_s if visit.ended is None else min(visit.ended.mono_s, visit.expires_mono_s)
    cooperative = native.value.get("how") not in ("stubborn", "deaf")
    if cooperative:
        late = [at for at in native.moves if at.mono_s > over_s]
        world.expect(not late, f"{what} moved on after its session had ended")
    put = world.put_of(final["receipt_id"])
    if put is not None and put.life == native.life:
        world.expect(
            put.at.mono_s <= max(over_s, native.began.mono_s) + ENDING_S,
            f"{what} had its last receipt {put.at.mono_s - over_s} s after its session",
        )


def _check_stops(world: World, chain: list[dict[str, Any]]) -> None:
    """Every stop of a life whose disk was not full is in the chain, for each of its devices."""
    stopped = [receipt for receipt in chain if receipt["capability_id"] == f"{INTERNAL}safety_estop.v1"]
    for life in range(world.life + 1):
        if life in world.full_lives:
            continue
        for device in range(2):
            asked = world.stops_in(life, device)
            due = [a for a in asked if a.sent.mono_s + STOP_S < world.lives_end.get(life, float("inf"))]
            recorded = [r for r in stopped if r["receipt_id"] in world.receipts_in(life, device)]
            world.expect(
                len(due) <= len(recorded) <= len(asked),
                f"{len(asked)} stops of rig {device} have {len(recorded)} receipts",
            )


def _check_closes(world: World) -> None:
    """A close names the operations that have not ended [SESS-006]."""
    for ask in world.asks:
        if ask.method != "mhs.session.close" or ask.result is None or ask.answered is None:
            continue
        if ask.life in world.full_lives:
            # What cannot be recorded has no last receipt.
            continue
        pending = ask.result["summary"].get("operation_ids", [])
        world.expect(
            ask.result["summary"].get("cancellation_pending", False) == bool(pending),
            f"the close {ask.sent.number} does not say what is pending",
        )
        for native in world.natives:
            if native.session_id != ask.params["session_id"] or native.began.number > ask.answered.number:
                continue
            open_still = world.settled_number(native) > ask.answered.number
            operation_id = world.operations.get(native.command_id)
            world.expect(
                not open_still or operation_id in pending or operation_id is None,
                f"the close {ask.sent.number} does not name {operation_id} of {native.command_id}",
            )


def _check_replays(world: World, chain: list[dict[str, Any]]) -> None:
    """Asked again at the end, every finished command answers its final receipt."""
    finals = {
        receipt["command_id"]: receipt
        for receipt in chain
        if receipt["status"] != "rejected"
        and not _is_interim(receipt)
        and not receipt["capability_id"].startswith(INTERNAL)
    }
    for ask in world.last_asks:
        receipt = finals.get(ask.params["command_id"])
        if receipt is None or ask.result is None:
            continue
        own = receipt["principal"]["id"] == PRINCIPALS[ask.principal]
        if not own or ask.result["input_digest"] != receipt["input_digest"]:
            world.expect(
                ask.error_code == "MHS.CONFLICT.COMMAND_ID_REUSE",
                f"{ask.params['command_id']} was used twice",
            )
        elif ask.result["receipt_id"] == receipt["receipt_id"]:
            world.expect(
                ask.result["replayed"] or receipt["evidence"]["seq"] > world.seq_before_last,
                f"the receipt of {ask.params['command_id']} was answered as new",
            )
        else:
            world.expect(False, f"{ask.params['command_id']} answers {ask.result['status']} at the end")
