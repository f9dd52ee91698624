"""What the safety tests share: names, the steps of stopping and resetting, and devices left as they were found."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.documents import check_receipt, input_digest
from tests.lab import CONVEYOR, Lab, RpcError, Session, ask_until, ulid

STEP = "cap.world.step.v1"
VALVE = "cap.actuation.valve.v1"
PURGE = "cap.actuation.purge.v1"
CONVEY = "cap.motion.convey.v1"
CONFIGURE = "cap.device.configure.v1"
DESCRIBE = "cap.device.describe.v1"
DOOR = "x-cap.sim.door.v1"
FAULT = "x-cap.sim.fault.v1"
STOP = "mhs.safety.estop"
STOP_CLASS = "cap.motion.estop.v1"

FAR = {"distance_mm": 10_000, "speed_mm_s": 100}
"""A convey that goes on for longer than any test."""

WAIT = {"deadline_ms": 30_000}

PRESS = "mhs://localhost:7400/test/press"

NUDGE = "x-cap.test.nudge.v1"
HOLD = "x-cap.test.hold.v1"
RELEASE = "x-cap.test.release.v1"
CONDUCT = "x-cap.test.conduct.v1"


def status(lab: Lab, device_id: str = CONVEYOR, **more: Any) -> Any:
    """The safety status. It has a rate of its own, which tests that ask all the time wait for."""

    def ask() -> Any:
        try:
            return lab.call("mhs.safety.status", device_id=device_id, **WAIT, **more)
        except RpcError as error:
            if error.code != "MHS.LIMIT.RATE_EXCEEDED":
                raise
            return None

    return ask_until(ask, lambda answer: answer is not None)


def latched(lab: Lab, device_id: str = CONVEYOR) -> bool:
    engaged: bool = status(lab, device_id)["estop"]["engaged"]
    return engaged


def stop(lab: Lab, **params: Any) -> Any:
    """The receipt of a stop, whatever its status."""
    return lab.call(STOP, **params)


def reset(session: Session, device_id: str = CONVEYOR, **more: Any) -> Any:
    """The receipt of a reset, whatever its status."""
    return session.call("mhs.safety.reset", device_id=device_id, **{**WAIT, **more})


def code_of(receipt: Any) -> str | None:
    """The MHS code of a receipt's error."""
    return receipt["error"]["mhs_code"] if "error" in receipt else None


def reason_of(receipt: Any) -> str | None:
    """`details.reason` of a receipt's error."""
    reason: str | None = receipt["error"].get("details", {}).get("reason")
    return reason


def receipt_in(answer: Any) -> Any:
    """The stop's receipt in an answer: its result, or beside the defect that its error names."""
    if "result" in answer:
        receipt = answer["result"]
    else:
        details = answer["error"]["data"]["details"]
        assert details["estop_served"] is True
        receipt = details["receipt"]
    check_receipt(receipt)
    return receipt


def conveying(session: Session, **more: Any) -> Any:
    """The running receipt of a convey whose caller has stopped waiting."""
    receipt = session.command(CONVEY, FAR, **{"deadline_ms": 500, **more})
    assert receipt["status"] == "running", receipt
    return receipt


def permit(session: Session, value: Any, capability_id: str = PURGE, **more: Any) -> Any:
    """A permit for exactly this input on the valve, or with `resource` on another resource."""
    resource = more.pop("resource", "valve")
    params = {
        "capability_id": capability_id,
        "resource": resource,
        "input_digest": input_digest(capability_id, resource, value),
        "ttl_s": 60,
        "approvals": [],
        **more,
    }
    return session.call("mhs.safety.permit", **params)


def evidence(lab: Lab) -> list[Any]:
    """All receipts of the endpoint so far, in order."""
    bundle = lab.call("mhs.evidence.export")
    receipts: list[Any] = bundle["receipts"]
    while bundle["truncation"] is not None:
        bundle = lab.call("mhs.evidence.export", since_receipt=bundle["truncation"]["next_since_receipt"])
        receipts += bundle["receipts"]
    return receipts


@contextmanager
def restored(lab: Lab) -> Iterator[Session]:
    """A session on the conveyor; afterwards the door is closed, no fault pending, nothing runs, no latch is engaged."""
    session = lab.open()
    yield session
    try:
        session.close()
    except RpcError as error:
        if error.code not in ("MHS.SESSION.CLOSED", "MHS.SESSION.EXPIRED"):
            raise
    after = lab.open()
    after.completed(DOOR, {"closed": True})
    if latched(lab):
        assert reset(after)["status"] == "completed"
    # The newest fault replaces the one before; spent on a step, it leaves none.
    after.completed(FAULT, {"kind": "busy", "times": 1})
    assert code_of(after.command(STEP, {"ticks": 1})) == "MHS.DEVICE.BUSY"
    after.close()


@contextmanager
def restored_press(lab: Lab) -> Iterator[Session]:
    """A session on the press; afterwards it behaves, holds nothing, and no device of the endpoint is latched."""
    session = lab.open(device_id=PRESS)
    yield session
    after = lab.open(device_id=PRESS)
    after.completed(
        CONDUCT, {"stop": "confirm", "reset": "obey", "read": "answer", "gate": "closed", "cover": "closed"}
    )
    after.completed(RELEASE, {})
    # A device that is not confirmed to be safe is reset as one that is latched; the conveyor may be neither.
    ask_until(lambda: reset(after, PRESS), is_released)
    conveyor = lab.open()
    ask_until(lambda: reset(conveyor), is_released)
    for each in (after, conveyor, session):
        each.close()


def is_released(receipt: Any) -> bool:
    return receipt["status"] == "completed" or reason_of(receipt) == "not_latched"


def token_file(path: Path, *entries: tuple[str, str, str]) -> Path:
    """A token file of `(secret, principal, role)` entries."""
    path.write_text(
        "".join(
            f'[[token]]\nsha256 = "{sha256(secret.encode()).hexdigest()}"\nprincipal = "{principal}"\n'
            f'kind = "human"\nrole = "{role}"\n'
            for secret, principal, role in entries
        )
    )
    path.chmod(0o600)
    return path


def text(method: str, /, **members: Any) -> bytes:
    """A request as bytes; `members` are put into its envelope, and `...` leaves one out."""
    members = {"jsonrpc": "2.0", "id": ulid(), "method": method, **members}
    return json.dumps({name: value for name, value in members.items() if value is not ...}).encode()
