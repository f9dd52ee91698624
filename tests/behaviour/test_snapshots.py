"""`mhs.snapshot` and `mhs.restore`: a device's whole state, taken and put back, with the receipt of a mutation."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH, UNHURRIED, Start
from tests.behaviour.safety import latched, reset, restored, stop, token_file
from tests.behaviour.test_operations import receipts_of
from tests.documents import check_chain, digest, input_digest
from tests.lab import CONVEYOR, ConnectionWire, HttpWire, Lab, Session, ask_until, request, running, ulid

STEP = "cap.world.step.v1"
VALVE = "cap.actuation.valve.v1"
CONVEY = "cap.motion.convey.v1"
CONFIGURE = "cap.device.configure.v1"
DOOR = "x-cap.sim.door.v1"
TEMPER = "x-cap.test.temper.v1"
LET = "x-cap.test.let.v1"
RESTORE = "cap.internal.restore.v1"
FAR = {"distance_mm": 10_000, "speed_mm_s": 100}
WAIT = {"deadline_ms": 30_000}

MISMATCH, STATE_HASH = "MHS.CONFLICT.SNAPSHOT_MISMATCH", "MHS.CONFLICT.STATE_HASH"
UNSUPPORTED = "MHS.MODE.RESTORE_UNSUPPORTED"
ZEROS = "sha256:" + "0" * 64

VAULT_TARGET = str(Path(__file__).parent / "vault")
VAULT = "mhs://localhost:7400/test/vault"
"""A device that restores well or badly, as it is told; its driver says how."""


def take(session: Session, device_id: str = CONVEYOR) -> Any:
    return session.call("mhs.snapshot", device_id=device_id, **WAIT)


def restore(session: Session, snapshot: Any, device_id: str = CONVEYOR, **more: Any) -> Any:
    """The receipt of a restore, whatever its status."""
    params = {"command_id": ulid(), **WAIT, **more}
    return session.call("mhs.restore", device_id=device_id, snapshot=snapshot, **params)


def sealed(snapshot: Any, state: Any) -> Any:
    """A forged snapshot of `state` that holds together; for a device without hash exclusions."""
    forged = {**snapshot, "snapshot": state, "state": state, "state_hash": digest(state)}
    named = {name: value for name, value in forged.items() if name not in ("state", "snapshot_digest")}
    return {**forged, "snapshot_digest": digest(named)}


def code_of(receipt: Any) -> str:
    code: str = receipt["error"]["mhs_code"]
    return code


def reason_of(receipt: Any) -> Any:
    return receipt["error"]["details"]["reason"]


def states(session: Session) -> dict[str, Any]:
    return {name: session.read(name)["state"] for name in ("world", "belt", "valve")}


@pytest.fixture(scope="session")
def shared_vault(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """A daemon of each binding that serves the vault."""
    labs: dict[str, Lab] = {}
    with ExitStack() as stack:

        def lab_of(binding: str) -> Lab:
            if binding not in labs:
                directory = tmp_path_factory.mktemp(f"vault-{binding}")
                labs[binding] = stack.enter_context(
                    running(binding, directory, *UNHURRIED, targets=(VAULT_TARGET,))
                )
            return labs[binding]

        yield lab_of


@pytest.fixture
def vault(binding: str, shared_vault: Callable[[str], Lab]) -> Iterator[Session]:
    """A session on the vault, which is well-tempered and holds the number 7."""
    session = shared_vault(binding).open(device_id=VAULT)
    session.completed(TEMPER, {"temper": "obey"})
    session.completed(CONFIGURE, {"value": 7})
    yield session
    session.completed(LET, {})
    session.completed(TEMPER, {"temper": "obey"})
    session.close()


@pytest.fixture
def kept(vault: Session) -> Any:
    """A snapshot of the vault with the number 7 in it, which is 8 by now."""
    snapshot = take(vault, VAULT)
    vault.completed(CONFIGURE, {"value": 8})
    return snapshot


def cell(session: Session) -> Any:
    return session.read("cell")["state"]


# Taking one.


def test_a_snapshot_is_the_whole_state_and_everything_in_it_recomputes(session: Session) -> None:
    """[PROTO-034, PROTO-012]"""
    session.completed(STEP, {"ticks": 3})
    taken = take(session)
    assert taken.keys() == {
        *("device_id", "instance_id", "revision", "state_hash", "state", "snapshot", "mode"),
        *("fidelity_digest", "snapshot_digest", "created_at"),
    }
    manifest = session.lab.call("mhs.devices.get", device_id=CONVEYOR)
    assert taken["snapshot"] == taken["state"] == states(session)
    assert {name: taken[name] for name in ("device_id", "instance_id", "mode")} == {
        name: manifest[name] for name in ("device_id", "instance_id", "mode")
    }
    assert taken["fidelity_digest"] == digest(manifest["fidelity"])
    assert taken["state_hash"] == digest(taken["state"])
    named = {name: value for name, value in taken.items() if name not in ("state", "snapshot_digest")}
    assert taken["snapshot_digest"] == digest(named)
    assert taken["revision"] == session.revision()
    stepped = session.completed(STEP, {"ticks": 1})
    assert take(session)["state_hash"] == stepped["state_hash_after"] == stepped["output"]["state_hash"]


def test_the_hash_leaves_out_what_the_manifest_excludes(vault: Session) -> None:
    """[PROTO-034]"""
    taken = take(vault, VAULT)
    assert taken["state"]["cell"].keys() == {"value", "restores", "halts"}
    assert taken["state_hash"] == digest({"cell": {"value": 7}})


def test_taking_a_snapshot_moves_nothing_and_leaves_no_receipt(session: Session) -> None:
    """[OP-008, PROTO-034]"""
    before, head = session.revision(), session.lab.call("mhs.evidence.export")["head_digest"]
    take(session)
    assert session.revision() == before
    assert session.lab.call("mhs.evidence.export")["head_digest"] == head


def test_a_device_that_does_not_promise_it_is_not_snapshotted(pair: Lab) -> None:
    """[PROTO-034]"""
    session = pair.open(device_id=BENCH)
    refused = session.refused("mhs.snapshot", device_id=BENCH, **WAIT)
    assert (refused.error["code"], refused.code) == (-32007, "MHS.MODE.SNAPSHOT_UNSUPPORTED")
    receipt = restore(session, {}, BENCH)
    assert (receipt["status"], code_of(receipt)) == ("rejected", UNSUPPORTED)
    session.close()


def test_a_device_that_is_being_driven_is_busy(session: Session) -> None:
    """[PROTO-034]"""
    pending, going = session.started(CONVEY, FAR)
    refused = session.refused("mhs.snapshot", device_id=CONVEYOR, **WAIT)
    assert refused.code == "MHS.DEVICE.BUSY"
    assert refused.error["data"]["retryable"] is True
    assert refused.details["retry_after_ms"] > 0
    session.cancel(going["operation_id"])
    pending.result()
    assert take(session)["snapshot"]["belt"]["running"] is False


def test_a_session_that_may_only_read_takes_one(lab: Lab) -> None:
    """[PROTO-034]"""
    reading = lab.open([])
    assert take(reading)["device_id"] == CONVEYOR
    reading.close()


def test_a_snapshot_needs_its_device_a_deadline_and_a_session_that_covers_it(
    pair: Lab,
) -> None:
    """[PROTO-034, PROTO-010]"""
    session = pair.open()
    assert session.refused("mhs.snapshot", **WAIT).details["field"] == "device_id"
    assert session.refused("mhs.snapshot", device_id=CONVEYOR).code == "MHS.PROTOCOL.DEADLINE_INVALID"
    refused = session.refused("mhs.snapshot", device_id=BENCH, **WAIT)
    assert refused.code == "MHS.SESSION.DEVICE_NOT_GRANTED"
    refused = session.refused("mhs.restore", device_id=BENCH, snapshot={}, command_id=ulid(), **WAIT)
    assert refused.code == "MHS.SESSION.DEVICE_NOT_GRANTED"
    session.close()
    assert session.refused("mhs.snapshot", device_id=CONVEYOR, **WAIT).code == "MHS.SESSION.CLOSED"


def test_a_device_that_does_not_answer_times_out(vault: Session) -> None:
    """[PROTO-011, OP-012]"""
    vault.completed(TEMPER, {"temper": "hang_in_read"})
    refused = vault.refused("mhs.snapshot", device_id=VAULT, deadline_ms=100)
    assert refused.code == "MHS.OUTCOME.TIMEOUT"
    vault.completed(TEMPER, {"temper": "blind"})
    assert vault.refused("mhs.snapshot", device_id=VAULT, **WAIT).code == "MHS.DEVICE.FAULT"


# Restoring it.


def test_a_restore_puts_everything_back_and_is_receipted_like_any_mutation(lab: Lab) -> None:
    """[PROTO-035, PROTO-036, PROTO-037, OP-007, OP-009, PROTO-038]"""
    with restored(lab) as session:
        taken = take(session)
        before = states(session)
        session.completed(STEP, {"ticks": 9})
        session.completed(VALVE, {"open": True})
        session.write("belt", {"speed_mm_s": 321})
        session.completed(CONVEY, {"distance_mm": 1, "speed_mm_s": 100})
        assert states(session) != before
        revision = session.revision()
        receipt = restore(session, taken)
        assert (receipt["status"], receipt["capability_id"]) == ("completed", RESTORE)
        assert (receipt["state_revision_before"], receipt["state_revision_after"]) == (revision, revision + 1)
        assert receipt["state_hash_after"] == taken["state_hash"] == digest(states(session))
        assert receipt["output"] == {
            "snapshot_digest": taken["snapshot_digest"],
            "state_hash": taken["state_hash"],
        }
        assert [effect["kind"] for effect in receipt["effects"]] == ["state.restore"]
        value = {"snapshot_digest": taken["snapshot_digest"]}
        assert receipt["input_digest"] == input_digest(RESTORE, None, value)
        assert states(session) == before
        assert session.revision() == revision + 1
        assert receipts_of(lab, receipt["command_id"]) == [receipt]
        assert session.get(receipt["operation_id"]) == receipt


def test_a_completed_restore_advances_the_revision_even_where_nothing_changed(session: Session) -> None:
    """[PROTO-035]"""
    taken = take(session)
    receipt = restore(session, taken)
    assert (receipt["status"], receipt["state_hash_after"]) == ("completed", taken["state_hash"])
    assert receipt["state_revision_after"] == receipt["state_revision_before"] + 1 == taken["revision"] + 1


@pytest.mark.parametrize(
    "left_out",
    [("state",), ("snapshot",), ("snapshot_digest",), ("revision", "created_at", "snapshot_digest", "state")],
)
def test_one_name_of_the_state_is_enough(session: Session, left_out: tuple[str, ...]) -> None:
    """[PROTO-034, PROTO-035]"""
    taken = take(session)
    session.completed(STEP, {"ticks": 1})
    sent = {name: value for name, value in taken.items() if name not in left_out}
    assert restore(session, sent)["status"] == "completed"
    assert session.read("world")["state"] == taken["state"]["world"]


def test_a_number_may_come_back_in_another_spelling(session: Session) -> None:
    """[PROTO-012, PROTO-035]"""
    taken = take(session)
    for name in ("snapshot", "state"):
        world = {**taken[name]["world"], "tick": float(taken[name]["world"]["tick"])}
        taken[name] = {**taken[name], "world": world}
    assert restore(session, taken)["status"] == "completed"
    assert isinstance(session.read("world")["state"]["tick"], int)


def _without(name: str) -> Callable[[Any], Any]:
    return lambda taken: {key: value for key, value in taken.items() if key != name}


def _with(**changes: Any) -> Callable[[Any], Any]:
    return lambda taken: {**taken, **changes}


def _with_tick(*names: str, sealing: bool = False) -> Callable[[Any], Any]:
    def changed(taken: Any) -> Any:
        state = {**taken["state"], "world": {**taken["state"]["world"], "tick": -1}}
        return sealed(taken, state) if sealing else {**taken, **dict.fromkeys(names, state)}

    return changed


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_without("device_id"), MISMATCH),
        (_without("instance_id"), MISMATCH),
        (_without("mode"), MISMATCH),
        (_without("fidelity_digest"), MISMATCH),
        (_without("state_hash"), MISMATCH),
        (lambda taken: _without("state")(_without("snapshot")(taken)), MISMATCH),
        (lambda _: {}, MISMATCH),
        (_with(device_id=f"{CONVEYOR}-2"), MISMATCH),
        (_with(device_id=None), MISMATCH),
        (_with(instance_id="01J8ZQ3V6Y7M2N4P6R8S0T2V4W"), MISMATCH),
        (_with(fidelity_digest=ZEROS), MISMATCH),
        (_with(snapshot_digest=ZEROS), MISMATCH),
        (_with(revision=10**6), MISMATCH),
        (_with(surprise=1), MISMATCH),
        (_with(snapshot=None), MISMATCH),
        (_with(mode="hardware"), UNSUPPORTED),
        (_with(mode="replay"), UNSUPPORTED),
        (_with(state_hash=ZEROS), STATE_HASH),
        (_with(snapshot={}), STATE_HASH),
        (_with_tick("snapshot"), STATE_HASH),
        (_with_tick("state"), STATE_HASH),
        (_with_tick("snapshot", "state"), STATE_HASH),
        (_with_tick(sealing=True), MISMATCH),
        (lambda taken: sealed(taken, {**taken["state"], "lamp": {}}), MISMATCH),
        (lambda taken: sealed(taken, {"world": taken["state"]["world"]}), MISMATCH),
    ],
)
def test_what_is_no_snapshot_of_this_very_device_is_refused_without_an_effect(
    session: Session, spoil: Callable[[Any], Any], code: str
) -> None:
    """[PROTO-035, OP-002]"""
    taken = take(session)
    session.completed(STEP, {"ticks": 1})
    before, revision = states(session), session.revision()
    receipt = restore(session, spoil(taken))
    assert (receipt["status"], code_of(receipt)) == ("rejected", code)
    assert receipt["error"]["retryable"] is False
    assert receipt["capability_id"] == RESTORE
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == revision
    assert (states(session), session.revision()) == (before, revision)
    assert receipts_of(session.lab, receipt["command_id"]) == [receipt]


@pytest.mark.parametrize("snapshot", [None, [], "x", 7, True])
def test_a_snapshot_that_is_no_object_is_no_request(session: Session, snapshot: Any) -> None:
    """[PROTO-035, PROTO-028]"""
    refused = session.refused("mhs.restore", device_id=CONVEYOR, snapshot=snapshot, command_id=ulid(), **WAIT)
    assert (refused.code, refused.details["field"]) == ("MHS.PROTOCOL.INVALID_PARAMS", "snapshot")


def test_a_snapshot_without_canonical_form_is_no_request(session: Session) -> None:
    """[PROTO-035, PROTO-012]"""
    refused = session.refused(
        "mhs.restore", device_id=CONVEYOR, snapshot={"revision": 2**53}, command_id=ulid(), **WAIT
    )
    assert (refused.code, refused.details["reason"]) == (
        "MHS.CAPABILITY.INPUT_INVALID",
        "not_canonical_json",
    )


@pytest.mark.parametrize("command_id", ["", "x", "01J8ZQ3V6Y7M2N4P6R8S0T2V4", 7])
def test_a_restore_needs_a_ulid(session: Session, command_id: Any) -> None:
    """[PROTO-035]"""
    refused = session.refused("mhs.restore", device_id=CONVEYOR, snapshot={}, command_id=command_id, **WAIT)
    assert (refused.code, refused.details["field"]) == ("MHS.PROTOCOL.INVALID_PARAMS", "command_id")


def test_a_restore_needs_a_deadline(session: Session) -> None:
    """[PROTO-010]"""
    refused = session.refused("mhs.restore", device_id=CONVEYOR, snapshot={}, command_id=ulid())
    assert refused.code == "MHS.PROTOCOL.DEADLINE_INVALID"


def test_a_restarted_device_is_another_instance(fresh: Start, tmp_path: Path) -> None:
    """[PROTO-035]"""
    lab = fresh("--state-dir", str(tmp_path / "state"))
    taken = take(lab.open())
    lab.kill()
    again = fresh("--state-dir", str(tmp_path / "state")).open()
    receipt = restore(again, taken)
    assert (receipt["status"], code_of(receipt), reason_of(receipt)) == ("rejected", MISMATCH, "instance_id")


# What stands before it, in its order.


def test_latch_interlocks_snapshot_and_revision_answer_in_this_order(lab: Lab) -> None:
    """[PROTO-035, CORE-060]"""
    with restored(lab) as session:
        good, bad, stale = take(session), {}, {"expected_revision": session.revision() + 99}
        stop(lab, reason="test")
        session.completed(DOOR, {"closed": False})
        assert code_of(restore(session, bad, **stale)) == "MHS.SAFETY.ESTOP_LATCHED"
        session.completed(DOOR, {"closed": True})
        assert reset(session)["status"] == "completed"
        session.completed(DOOR, {"closed": False})
        opened = restore(session, bad, **stale)
        assert code_of(opened) == "MHS.SAFETY.INTERLOCK_OPEN"
        assert opened["error"]["interlocks"] == [{"id": "door_closed", "state": "open"}]
        session.completed(DOOR, {"closed": True})
        assert code_of(restore(session, bad, **stale)) == MISMATCH
        conflict = restore(session, good, **stale)
        assert code_of(conflict) == "MHS.CONFLICT.REVISION"
        assert conflict["error"]["current_revision"] == session.revision()
        assert restore(session, good, expected_revision=session.revision())["status"] == "completed"


def test_a_restore_never_sets_or_releases_the_emergency_stop(lab: Lab) -> None:
    """[PROTO-035, CORE-080]"""
    with restored(lab) as session:
        stop(lab, reason="test")
        engaged = take(session)
        assert engaged["state"]["world"]["estop"] == "engaged"
        assert code_of(restore(session, engaged)) == "MHS.SAFETY.ESTOP_LATCHED"
        assert reset(session)["status"] == "completed"
        receipt = restore(session, engaged)
        assert (receipt["status"], code_of(receipt), reason_of(receipt)) == ("rejected", MISMATCH, "latch")
        assert "Reset" in receipt["error"]["remediation"]
        assert session.read("world")["state"]["estop"] == "released"
        assert not latched(lab)


def test_a_restore_is_no_way_round_the_limits(session: Session) -> None:
    """[PROTO-035, PROTO-025a]"""
    taken = take(session)
    for value, allowed in ((500, True), (500.1, False)):
        belt = {**taken["state"]["belt"], "speed_mm_s": value}
        receipt = restore(session, sealed(taken, {**taken["state"], "belt": belt}))
        if allowed:
            assert receipt["status"] == "completed"
            continue
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.SAFETY.ENVELOPE_VIOLATION")
        assert receipt["error"]["details"]["field"] == "speed_mm_s"
    assert session.read("belt")["state"]["speed_mm_s"] == 500
    assert restore(session, taken)["status"] == "completed"


def test_a_device_that_is_being_driven_is_not_restored(session: Session) -> None:
    """[PROTO-035]"""
    taken = take(session)
    pending, going = session.started(CONVEY, FAR)
    receipt = restore(session, taken)
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.DEVICE.BUSY")
    assert receipt["error"]["details"]["retry_after_ms"] > 0
    session.cancel(going["operation_id"])
    pending.result()
    assert restore(session, taken)["status"] == "completed"


def test_a_reader_does_not_restore_and_a_session_without_grants_does(tmp_path: Path) -> None:
    """[PROTO-035, MHSD-6-04]"""
    tokens = token_file(tmp_path / "t.toml", ("see", "human:v", "reader"), ("do", "human:c", "client"))
    with running("http", tmp_path, "--token-file", str(tokens), *UNHURRIED) as lab:
        assert isinstance(lab.wire, HttpWire)
        lab.wire.token = "see"
        reader = lab.open([])
        taken = take(reader)
        refused = reader.refused("mhs.restore", device_id=CONVEYOR, snapshot=taken, command_id=ulid(), **WAIT)
        assert refused.code == "MHS.AUTH.FORBIDDEN"
        lab.wire.token = "do"
        assert restore(lab.open([]), taken)["status"] == "completed"


def test_a_restore_counts_among_the_commands_of_its_session(lab: Lab) -> None:
    """[SESS-006]"""
    session = lab.open()
    taken = take(session)
    restore(session, taken)
    restore(session, {})
    summary = session.close()["summary"]
    assert (summary["commands"], summary["completed"], summary["rejected"]) == (2, 1, 1)


# Once and only once.


def test_a_restore_is_done_once_for_one_command_id(vault: Session, kept: Any) -> None:
    """[OP-001, OP-003, PROTO-035]"""
    done = cell(vault)["restores"]
    command_id = ulid()
    first = restore(vault, kept, VAULT, command_id=command_id)
    assert (first["status"], first["replayed"]) == ("completed", False)
    vault.completed(CONFIGURE, {"value": 9})
    for sent in (kept, {**kept, "snapshot_digest": kept["snapshot_digest"]}, _without("state")(kept)):
        assert restore(vault, sent, VAULT, command_id=command_id) == {**first, "replayed": True}
    assert (cell(vault)["value"], cell(vault)["restores"]) == (9, done + 1)


def test_a_command_id_of_anything_else_is_reused(vault: Session, kept: Any) -> None:
    """[OP-004, PROTO-035]"""
    restored_id, written_id = ulid(), ulid()
    restore(vault, kept, VAULT, command_id=restored_id)
    vault.completed(CONFIGURE, {"value": 3}, command_id=written_id)
    other = take(vault, VAULT)
    for receipt in (
        restore(vault, other, VAULT, command_id=restored_id),
        restore(vault, other, VAULT, command_id=written_id),
        vault.command(CONFIGURE, {"value": 4}, command_id=restored_id),
    ):
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.CONFLICT.COMMAND_ID_REUSE")
    assert cell(vault)["value"] == 3


def test_a_refused_restore_does_not_reserve_its_command_id(vault: Session, kept: Any) -> None:
    """[OP-001, OP-002]"""
    command_id = ulid()
    assert restore(vault, {}, VAULT, command_id=command_id)["status"] == "rejected"
    receipt = restore(vault, kept, VAULT, command_id=command_id)
    assert (receipt["status"], receipt["replayed"]) == ("completed", False)


def test_a_restore_keeps_its_place_in_a_batch(vault: Session, kept: Any) -> None:
    """[PROTO-008, PROTO-009]"""
    shared = {"session_id": vault.id, "device_id": VAULT, **WAIT}
    command_id = ulid()

    def write(value: int) -> Any:
        params = {"resource_id": "cell", "patch": {"value": value}, "command_id": ulid()}
        return request("mhs.resource.write", **shared, **params)

    def put_back() -> Any:
        return request("mhs.restore", **shared, snapshot=kept, command_id=command_id)

    batch = [write(1), put_back(), write(2), put_back(), write(3)]
    answers = {answer["id"]: answer["result"] for answer in vault.lab.wire.exchange(batch)}
    receipts = [answers[message["id"]] for message in batch]
    assert [receipt["status"] for receipt in receipts] == ["completed"] * 5
    assert receipts[3] == {**receipts[1], "replayed": True}
    revisions = [receipt["state_revision_after"] for receipt in receipts if not receipt["replayed"]]
    assert revisions == list(range(revisions[0], revisions[0] + 4))
    assert receipts[1]["state_hash_after"] == kept["state_hash"]
    assert cell(vault)["value"] == 3


def test_a_restore_without_an_id_is_not_executed(vault: Session, kept: Any) -> None:
    """[PROTO-005]"""
    message = request(
        "mhs.restore", session_id=vault.id, device_id=VAULT, snapshot=kept, command_id=ulid(), **WAIT
    )
    del message["id"]
    if isinstance(vault.lab.wire, ConnectionWire):
        vault.lab.wire.send(json.dumps(message).encode())
    else:
        assert vault.lab.wire.exchange(message) is None
    assert cell(vault)["value"] == 8


# When it takes long, or is ended.


def waiting(session: Session, kept: Any, command_id: str) -> Any:
    """A restore that runs, and its running receipt."""
    session.completed(TEMPER, {"temper": "wait"})
    params = {"device_id": VAULT, "snapshot": kept, "command_id": command_id, **WAIT}
    pending = session.lab.begin("mhs.restore", session_id=session.id, **params)
    running_receipt = ask_until(
        lambda: session.call("mhs.operations.list", state="running")["operations"],
        lambda operations: any(operation["capability_id"] == RESTORE for operation in operations),
    )
    return pending, running_receipt[0]["operation_id"]


def test_a_deadline_ends_the_waiting_and_the_restore_goes_on_to_its_receipt(
    vault: Session, kept: Any
) -> None:
    """[PROTO-011, PROTO-035, OP-010, OP-013]"""
    vault.completed(TEMPER, {"temper": "wait"})
    command_id = ulid()
    for deadline_ms in (100, 1000, 10_000):
        told = restore(vault, kept, VAULT, command_id=command_id, deadline_ms=deadline_ms)
        if told["status"] != "rejected":
            break
    assert (told["status"], code_of(told)) == ("unknown", "MHS.OUTCOME.TIMEOUT")
    assert (told["command_id"], told["capability_id"]) == (command_id, RESTORE)
    assert told["error"]["retryable"] is False
    assert vault.look_up(command_id)["status"] == "running"
    replay = restore(vault, kept, VAULT, command_id=command_id)
    assert (replay["status"], replay["replayed"]) == ("running", True)
    vault.completed(LET, {})
    final = vault.follow(told["operation_id"])
    assert (final["status"], final["x-vendor"]["reconciles"]) == ("completed", told["receipt_id"])
    assert final["state_hash_after"] == kept["state_hash"]
    assert receipts_of(vault.lab, command_id)[-2:] == [told, final]


def test_a_deadline_that_passes_before_it_begins_leaves_everything_as_it_is(
    vault: Session, kept: Any
) -> None:
    """[OP-012]"""
    vault.completed(TEMPER, {"temper": "hang_in_read"})
    receipt = restore(vault, kept, VAULT, deadline_ms=100)
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.OUTCOME.TIMEOUT")
    assert reason_of(receipt) == "deadline_exceeded_before_dispatch"
    vault.completed(TEMPER, {"temper": "obey"})
    assert cell(vault)["value"] == 8


def test_a_restore_can_be_cancelled(vault: Session, kept: Any) -> None:
    """[PROTO-032, OP-011]"""
    halts = cell(vault)["halts"]
    pending, operation_id = waiting(vault, kept, ulid())
    receipt = vault.cancel(operation_id)
    assert receipt["status"] == "cancelled"
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert receipt["state_revision_after"] == receipt["state_revision_before"]
    assert pending.result() == receipt
    assert (cell(vault)["value"], cell(vault)["halts"]) == (8, halts + 1)


def test_an_emergency_stop_ends_a_restore(fresh: Start) -> None:
    """[PROTO-035, CORE-074]"""
    lab = fresh(targets=(VAULT_TARGET,))
    session = lab.open(device_id=VAULT)
    kept = take(session, VAULT)
    session.completed(CONFIGURE, {"value": 8})
    pending, operation_id = waiting(session, kept, ulid())
    receipt = stop(lab, reason="test")
    assert (receipt["status"], receipt["output"]["cancelled_operations"]) == ("completed", [operation_id])
    ended = pending.result()
    assert (ended["status"], ended["cancellation"]["reason"]) == ("cancelled", "estop")
    assert cell(session)["value"] == 8


def test_what_a_dead_daemon_was_restoring_stays_unknown(fresh: Start, tmp_path: Path) -> None:
    """[PROTO-035, OP-006, OP-013]"""
    options = ("--state-dir", str(tmp_path / "state"))
    lab = fresh(*options, targets=(VAULT_TARGET,))
    session = lab.open(device_id=VAULT)
    command_id = ulid()
    waiting(session, take(session, VAULT), command_id)
    lab.kill()
    again = fresh(*options, targets=(VAULT_TARGET,)).open(device_id=VAULT)
    receipt = again.look_up(command_id)
    assert (receipt["status"], receipt["capability_id"]) == ("unknown", RESTORE)
    assert (code_of(receipt), reason_of(receipt)) == ("MHS.OUTCOME.UNKNOWN", "endpoint_restarted")
    assert cell(again)["restores"] == 0, "it never runs again"


# When the device does not take it.


def test_a_device_that_keeps_its_state_has_failed_to_restore(vault: Session, kept: Any) -> None:
    """[PROTO-035, OP-014]"""
    before = vault.read("cell")
    vault.completed(TEMPER, {"temper": "ignore"})
    receipt = restore(vault, kept, VAULT)
    assert (receipt["status"], code_of(receipt)) == ("failed", STATE_HASH)
    assert receipt["error"]["details"] == {
        "reason": "not_reproduced",
        "rolled_back": True,
        "expected_state_hash": kept["state_hash"],
        "observed_state_hash": digest({"cell": {"value": 8}}),
    }
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == before["revision"]
    assert receipt["effects"] == []
    assert receipt["state_hash_after"] == digest({"cell": {"value": 8}})


def test_a_wrong_state_is_rolled_back_and_that_is_proved(vault: Session, kept: Any) -> None:
    """[PROTO-035, OP-014]"""
    before, restores = vault.read("cell"), cell(vault)["restores"]
    vault.completed(TEMPER, {"temper": "spoil_once"})
    receipt = restore(vault, kept, VAULT)
    assert (receipt["status"], code_of(receipt)) == ("failed", STATE_HASH)
    details = receipt["error"]["details"]
    assert details["observed_state_hash"] == digest({"cell": {"value": 7 + restores + 1}})
    assert details["rolled_back"] is True
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == before["revision"]
    assert receipt["state_hash_after"] == digest({"cell": {"value": 8}})
    assert (cell(vault)["value"], cell(vault)["restores"]) == (8, restores + 2)
    assert vault.read("cell")["revision"] == before["revision"]


def test_a_state_that_is_neither_is_unknown_and_its_hash_is_told(vault: Session, kept: Any) -> None:
    """[PROTO-035, OP-014]"""
    before, restores = vault.read("cell"), cell(vault)["restores"]
    vault.completed(TEMPER, {"temper": "spoil"})
    receipt = restore(vault, kept, VAULT)
    seen = digest({"cell": {"value": 8 + restores + 2}})
    assert (receipt["status"], code_of(receipt)) == ("unknown", "MHS.OUTCOME.UNKNOWN")
    assert receipt["error"]["details"] == {
        "reason": "not_reproduced",
        "rolled_back": False,
        "expected_state_hash": kept["state_hash"],
        "observed_state_hash": seen,
    }
    assert receipt["error"]["retryable"] is False
    assert receipt["state_hash_after"] == seen
    assert receipt["state_revision_after"] == before["revision"] + 1


def test_a_device_that_shows_nothing_any_more_is_unknown(vault: Session, kept: Any) -> None:
    """[PROTO-035, OP-009, OP-014]"""
    before = vault.read("cell")
    vault.completed(TEMPER, {"temper": "go_blind"})
    receipt = restore(vault, kept, VAULT)
    assert (receipt["status"], code_of(receipt)) == ("unknown", "MHS.OUTCOME.UNKNOWN")
    assert receipt["error"]["details"]["observed_state_hash"] is None
    assert "state_hash_after" not in receipt
    assert receipt["state_revision_after"] == before["revision"] + 1


@pytest.mark.parametrize(
    ("temper", "status", "code"),
    [
        ("busy", "rejected", "MHS.DEVICE.BUSY"),
        ("link_down", "rejected", "MHS.DEVICE.FAULT"),
        ("blind", "rejected", "MHS.DEVICE.FAULT"),
        ("fail", "failed", "MHS.DEVICE.FAULT"),
        ("raise", "failed", "MHS.ADAPTER.SHIM_FAILED"),
        ("unknown", "unknown", "MHS.OUTCOME.UNKNOWN"),
        ("spoil_and_fail", "failed", "MHS.DEVICE.FAULT"),
        ("spoil_and_raise", "failed", "MHS.ADAPTER.SHIM_FAILED"),
    ],
)
def test_what_the_driver_signals_becomes_the_receipt_it_becomes_for_any_command(
    vault: Session, kept: Any, temper: str, status: str, code: str
) -> None:
    """[PROTO-035, OP-014]"""
    before = vault.read("cell")
    vault.completed(TEMPER, {"temper": temper})
    receipt = restore(vault, kept, VAULT)
    assert (receipt["status"], code_of(receipt)) == (status, code)
    assert receipt["state_revision_before"] == receipt["state_revision_after"] == before["revision"]
    vault.completed(TEMPER, {"temper": "obey"})
    assert cell(vault)["value"] == 8
    assert restore(vault, kept, VAULT)["status"] == "completed"


def test_the_chain_holds_after_all_of_this(vault: Session, kept: Any) -> None:
    """[EVID-003, PROTO-035]"""
    for temper in ("obey", "ignore", "spoil_once", "spoil"):
        vault.completed(TEMPER, {"temper": temper})
        restore(vault, kept, VAULT)
    bundle = vault.lab.call("mhs.evidence.export")
    assert bundle["truncation"] is None
    check_chain(bundle["receipts"], bundle["endpoint_info"]["genesis_digest"])
    assert vault.lab.call("mhs.evidence.verify", bundle=bundle)["valid"] is True
