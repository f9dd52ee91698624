"""The thermal chamber through the wire: a device whose values move by themselves, behind a polled interlock."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import UNHURRIED
from tests.behaviour.safety import reset, stop
from tests.documents import digest
from tests.lab import Lab, Session, ask_until, running, ulid

CHAMBER = "mhs://localhost:7400/lab/thermal-chamber"
CONFIGURE = "cap.device.configure.v1"
RAMP = "cap.thermal.ramp.v1"
LID = "x-cap.sim.lid.v1"
SPEED = "x-cap.sim.speed.v1"
SLOW = {"target_cel": 150, "rate_cel_min": 1}
"""A ramp that goes on for longer than any test."""

WAIT = {"deadline_ms": 30_000}


@pytest.fixture(scope="session")
def shared_chamber(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """A daemon of each binding that serves the chamber."""
    labs: dict[str, Lab] = {}
    with ExitStack() as stack:

        def lab_of(binding: str) -> Lab:
            if binding not in labs:
                directory = tmp_path_factory.mktemp(f"chamber-{binding}")
                labs[binding] = stack.enter_context(
                    running(binding, directory, *UNHURRIED, targets=("thermal-chamber",))
                )
            return labs[binding]

        yield lab_of


@pytest.fixture
def chamber(binding: str, shared_chamber: Callable[[str], Lab]) -> Iterator[Session]:
    """A session on the chamber, whose lid is closed and which runs in real time; its end is the safe state."""
    session = shared_chamber(binding).open(device_id=CHAMBER)
    session.completed(LID, {"closed": True})
    session.completed(SPEED, {"factor": 1})
    yield session
    session.close()


def state(session: Session) -> Any:
    return session.read("chamber")["state"]


def counted(shown: Any) -> Any:
    """What of a state counts in its hash."""
    return {name: shown[name] for name in ("setpoint_cel", "ramping", "lid")}


def test_its_manifest_says_what_it_is_and_how_it_is_kept_safe(chamber: Session) -> None:
    """[PROTO-021, PROTO-022]"""
    manifest = chamber.lab.call("mhs.devices.get", device_id=CHAMBER)
    assert (manifest["mode"], manifest["risk_class"]) == ("simulated", "R2")
    assert {binding["capability_id"]: binding["interlocks"] for binding in manifest["bindings"]} == {
        CONFIGURE: ["lid_closed"],
        RAMP: ["lid_closed"],
        LID: [],
        SPEED: [],
        "cap.device.describe.v1": [],
    }
    assert {"stream": "telemetry", "resource_id": "chamber", "native_rate_hz": 10}.items() <= next(
        each for each in manifest["streams"] if each["stream"] == "telemetry"
    ).items()
    served = chamber.lab.call("mhs.schema.get", ref=RAMP)
    assert served["digest"] == digest(served["schema"])


def test_what_moves_by_itself_never_moves_the_revision(chamber: Session) -> None:
    """[OP-007, PROTO-023]"""
    receipt = chamber.write("chamber", {"setpoint_cel": 90})
    assert (receipt["status"], receipt["output"]["applied"]) == ("completed", {"setpoint_cel": 90})
    assert receipt["state_revision_after"] == receipt["state_revision_before"] + 1
    chamber.completed(SPEED, {"factor": 1000})
    warm = ask_until(lambda: chamber.read("chamber"), lambda found: found["state"]["temperature_cel"] > 85)
    assert warm["revision"] == receipt["state_revision_after"]
    assert warm["state_hash"] == digest(counted(warm["state"]))
    assert receipt["state_hash_after"] == digest({"chamber": counted(warm["state"])})
    again = chamber.write("chamber", {"setpoint_cel": 90})
    assert again["state_revision_after"] == again["state_revision_before"], (
        "the same setpoint changes nothing"
    )


@pytest.mark.parametrize(
    ("setpoint_cel", "code"),
    [
        (150, None),
        (-40, None),
        (150.1, "MHS.SAFETY.ENVELOPE_VIOLATION"),
        (-40.5, "MHS.SAFETY.ENVELOPE_VIOLATION"),
        (200.5, "MHS.CAPABILITY.INPUT_INVALID"),
        ("warm", "MHS.CAPABILITY.INPUT_INVALID"),
    ],
)
def test_the_setpoint_has_the_same_limits_in_a_write_and_in_a_ramp(
    chamber: Session, setpoint_cel: Any, code: str | None
) -> None:
    """[PROTO-025, PROTO-027]"""
    chamber.completed(SPEED, {"factor": 1000})
    written = chamber.write("chamber", {"setpoint_cel": setpoint_cel})
    ramped = chamber.command(RAMP, {"target_cel": setpoint_cel, "rate_cel_min": 600})
    for receipt in (written, ramped):
        assert receipt.get("error", {}).get("mhs_code") == code, receipt


def test_a_ramp_runs_with_progress_and_ends_at_its_target(chamber: Session) -> None:
    """[PROTO-011, OP-007]"""
    before = chamber.read("chamber")["revision"]
    pending, going = chamber.started(RAMP, {"target_cel": 80, "rate_cel_min": 10})
    assert state(chamber)["ramping"] is True
    moving = ask_until(lambda: chamber.get(going["operation_id"]), lambda r: r["progress"]["percent"] > 0)
    assert moving["status"] == "running"
    chamber.completed(SPEED, {"factor": 1000})
    receipt = pending.result()
    assert receipt["status"] == "completed", receipt
    assert receipt["output"]["setpoint_cel"] == 80
    assert receipt["state_revision_before"], receipt["state_revision_after"] == (before, before + 1)
    assert counted(state(chamber)) == {"setpoint_cel": 80, "ramping": False, "lid": "closed"}


@pytest.mark.parametrize(
    ("capability_id", "given"), [(RAMP, SLOW), (CONFIGURE, {"setpoint_cel": 50})], ids=["ramp", "configure"]
)
def test_nothing_drives_behind_an_open_lid(chamber: Session, capability_id: str, given: Any) -> None:
    """[CORE-060]"""
    chamber.completed(LID, {"closed": False})
    receipt = chamber.command(capability_id, given)
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("rejected", "MHS.SAFETY.INTERLOCK_OPEN")
    assert receipt["error"]["interlocks"] == [{"id": "lid_closed", "state": "open"}]
    shown = chamber.lab.call("mhs.safety.status", device_id=CHAMBER, **WAIT)
    assert [(each["id"], each["state"], each["hard"]) for each in shown["interlocks"]] == [
        ("lid_closed", "open", True)
    ]


def test_opening_the_lid_ends_a_ramp_and_is_the_safe_state(chamber: Session) -> None:
    """[CORE-060, OP-011]"""
    pending, _ = chamber.started(RAMP, SLOW)
    chamber.completed(LID, {"closed": False})
    receipt = pending.result()
    assert (receipt["status"], receipt["error"]["mhs_code"]) == ("failed", "MHS.SAFETY.INTERLOCK_OPEN")
    assert receipt["error"]["details"]["reason"] == "opened_while_running"
    chamber.completed(LID, {"closed": True})
    assert counted(state(chamber)) == {"setpoint_cel": 20, "ramping": False, "lid": "closed"}
    assert state(chamber)["duty"] == 0


def test_a_stop_ends_a_ramp_and_the_lid_must_be_closed_to_reset_it(chamber: Session) -> None:
    """[SAFE-002, SAFE-003]"""
    pending, going = chamber.started(RAMP, SLOW)
    receipt = stop(chamber.lab, device_id=CHAMBER, reason="smoke")
    assert (receipt["status"], receipt["output"]["safe_state_achieved"]) == ("completed", True)
    assert receipt["output"]["cancelled_operations"] == [going["operation_id"]]
    ended = pending.result()
    assert (ended["status"], ended["cancellation"]["reason"]) == ("cancelled", "estop")
    shown = state(chamber)
    assert (shown["setpoint_cel"], shown["duty"], shown["ramping"]) == (20, 0, False)
    chamber.completed(LID, {"closed": False})
    refused = reset(chamber, CHAMBER)
    assert (refused["status"], refused["error"]["mhs_code"]) == ("rejected", "MHS.SAFETY.RESET_REFUSED")
    chamber.completed(LID, {"closed": True})
    assert reset(chamber, CHAMBER)["status"] == "completed"
    assert state(chamber)["duty"] == 0


def test_the_end_of_its_session_is_its_safe_state(chamber: Session) -> None:
    """[SESS-004, SESS-006]"""
    driving = chamber.lab.open(device_id=CHAMBER)
    driving.write("chamber", {"setpoint_cel": 120})
    assert state(chamber)["duty"] > 0
    driving.close()
    assert (state(chamber)["setpoint_cel"], state(chamber)["duty"]) == (20, 0)


def test_a_snapshot_brings_back_what_is_excluded_from_its_hash_too(chamber: Session) -> None:
    """[PROTO-034, PROTO-035]"""
    chamber.write("chamber", {"setpoint_cel": 90})
    chamber.completed(SPEED, {"factor": 1000})
    ask_until(lambda: state(chamber), lambda shown: shown["temperature_cel"] > 85)
    chamber.completed(SPEED, {"factor": 1})
    taken = chamber.call("mhs.snapshot", device_id=CHAMBER, **WAIT)
    assert taken["state_hash"] == digest({"chamber": counted(taken["state"]["chamber"])})
    chamber.write("chamber", {"setpoint_cel": -40})
    chamber.completed(SPEED, {"factor": 1000})
    ask_until(lambda: state(chamber), lambda shown: shown["temperature_cel"] < 0)
    chamber.completed(SPEED, {"factor": 1})
    receipt = chamber.call("mhs.restore", device_id=CHAMBER, snapshot=taken, command_id=ulid(), **WAIT)
    assert (receipt["status"], receipt["state_hash_after"]) == ("completed", taken["state_hash"])
    shown = state(chamber)
    assert shown["setpoint_cel"] == 90
    assert shown["temperature_cel"] > 80


def test_a_stop_before_the_first_command_that_changes_nothing_moves_no_revision(
    binding: str, tmp_path: Path
) -> None:
    """[OP-007, OP-009]"""
    with running(binding, tmp_path, targets=["scpi-psu"]) as lab:
        receipt = lab.call("mhs.safety.estop", reason="at the start")
        assert receipt["status"] == "completed"
        assert receipt["state_revision_after"] == receipt["state_revision_before"]
