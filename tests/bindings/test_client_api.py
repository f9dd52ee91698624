"""The code API against a real daemon, over each way to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import mhsd
from mhsd.client.code_session import CodeSession
from tests.bindings.code_endpoints import WAYS, Places, places
from tests.lab import CONVEYOR

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
VALVE = "cap.actuation.valve.v1"
PURGE = "cap.actuation.purge.v1"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("code"), "conveyor-workcell") as found:
        yield found


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, served: Places) -> str | Sequence[str]:
    return served[request.param]


@pytest.fixture
def client(place: str | Sequence[str]) -> Iterator[mhsd.Client]:
    with mhsd.connect(place) as opened:
        yield opened


@pytest.fixture
def session(client: mhsd.Client) -> Iterator[CodeSession]:
    with client.session() as opened:
        yield opened


def test_a_client_shows_what_was_negotiated_and_what_is_claimed(client: mhsd.Client) -> None:
    """[TPT-056]"""
    assert client.mhs_version == "1.0"
    assert client.endpoint_id == "mhs://localhost:7400"
    assert client.conformance == []
    assert client.limits["max_batch"] == 64
    (device,) = client.devices()
    assert isinstance(device, mhsd.Device)
    assert (device.device_id, device.path) == (CONVEYOR, "/lab/conveyor-workcell")
    assert (device.mode, device.risk_class, device.determinism) == ("simulated", "R1", "exact")
    assert len(device.fidelity_gaps) == 3
    assert client.device("conveyor-workcell")["resources"][0]["state"]["door"] == "closed"


def test_a_command_answers_its_receipt(session: CodeSession) -> None:
    """[TPT-054]"""
    receipt = session.invoke(STEP, {"ticks": 3})
    assert isinstance(receipt, mhsd.Receipt)
    assert (receipt.status, receipt.ok, receipt.final) == ("completed", True, True)
    assert receipt.output["tick"] == receipt["output"]["tick"]
    assert receipt["session_id"] == session.session_id
    assert session.operation(str(receipt.operation_id)).status == "completed"


def test_a_refusal_is_a_receipt_and_no_exception(session: CodeSession) -> None:
    """[TPT-055]"""
    receipt = session.invoke(CONVEY, {"distance_mm": 10, "speed_mm_s": 900})
    assert (receipt.status, receipt.mhs_code) == ("rejected", "MHS.SAFETY.ENVELOPE_VIOLATION")
    assert receipt.error is not None
    assert receipt.error["details"]["limit"] == 500
    assert session.invoke("cap.no.such.v1", {}).mhs_code == "MHS.CAPABILITY.UNKNOWN"


def test_a_session_that_is_over_is_an_exception(client: mhsd.Client) -> None:
    """[TPT-055]"""
    session = client.session()
    assert session.close()["summary"]["commands"] == 0
    assert session.close() == {}
    with pytest.raises(mhsd.SessionError) as refused:
        session.invoke(STEP, {"ticks": 1})
    assert refused.value.mhs_code == "MHS.SESSION.CLOSED"


def test_the_same_command_id_gets_the_same_receipt(client: mhsd.Client, session: CodeSession) -> None:
    command_id = client.ulid()
    first = session.invoke(STEP, {"ticks": 1}, command_id=command_id)
    again = session.invoke(STEP, {"ticks": 1}, command_id=command_id)
    assert again["receipt_id"] == first["receipt_id"]
    assert again["replayed"] is True


def test_an_operation_is_followed_to_its_end_when_that_is_wanted(session: CodeSession) -> None:
    seen: list[Any] = []
    receipt = session.invoke(
        CONVEY,
        {"distance_mm": 20, "speed_mm_s": 100},
        deadline_ms=20,
        wait=True,
        on_progress=lambda running: seen.append(running.status),
    )
    assert receipt.status == "completed"
    assert set(seen) == {"running"}


def test_without_waiting_the_running_receipt_is_returned_and_waited_for_by_hand(
    client: mhsd.Client, session: CodeSession
) -> None:
    running = session.invoke(CONVEY, {"distance_mm": 20, "speed_mm_s": 100}, deadline_ms=20)
    assert (running.status, running.final) == ("running", False)
    assert running["operation_id"] in [each["operation_id"] for each in session.operations("running")]
    assert session.wait(running).status == "completed"
    assert client.wait(running).status == "completed"


def test_an_operation_can_be_waited_for_when_its_session_is_over(client: mhsd.Client) -> None:
    """[TPT-061]"""
    with client.session() as session:
        running = session.invoke(CONVEY, {"distance_mm": 2000, "speed_mm_s": 100}, deadline_ms=20)
    final = client.wait(running)
    assert (final.status, final["operation_id"]) == ("cancelled", running["operation_id"])


def test_an_operation_is_cancelled_by_its_receipt(session: CodeSession) -> None:
    running = session.invoke(CONVEY, {"distance_mm": 2000, "speed_mm_s": 100}, deadline_ms=20)
    cancelled = session.wait(session.cancel(running))
    assert cancelled.status == "cancelled"
    assert cancelled["cancellation"]["safe_state_achieved"] is True
    rejected = session.invoke(CONVEY, {"distance_mm": 20, "speed_mm_s": 900})
    with pytest.raises(ValueError, match="could be cancelled"):
        session.cancel(rejected)


def test_resources_are_read_and_written(session: CodeSession) -> None:
    receipt = session.write("belt", {"speed_mm_s": 120})
    assert receipt.output["applied"] == {"speed_mm_s": 120}
    reading = session.read("belt")
    assert set(reading) == {"revision", "state", "state_hash", "sampled_at"}
    assert reading["revision"] == receipt.revision
    assert session.read("belt", fields=["speed_mm_s"])["state"] == {"speed_mm_s": 120}
    stale = session.write("belt", {"speed_mm_s": 10}, expected_revision=int(reading["revision"]) + 7)
    assert stale.mhs_code == "MHS.CONFLICT.REVISION"


def test_a_snapshot_is_restored(session: CodeSession) -> None:
    session.write("belt", {"speed_mm_s": 33})
    snapshot = session.snapshot()
    session.write("belt", {"speed_mm_s": 44})
    assert session.restore(snapshot).ok
    assert session.read("belt")["state"]["speed_mm_s"] == 33


def test_a_permit_is_for_exactly_one_input(session: CodeSession) -> None:
    permit = session.permit(PURGE, {"duration_ms": 5})
    other = session.invoke(PURGE, {"duration_ms": 6}, permit_id=permit["permit_id"])
    assert other.mhs_code == "MHS.SAFETY.PERMIT_INVALID"
    assert session.invoke(PURGE, {"duration_ms": 5}, permit_id=permit["permit_id"]).ok
    assert session.invoke(PURGE, {"duration_ms": 5}).mhs_code == "MHS.SAFETY.APPROVAL_REQUIRED"


def test_a_device_is_stopped_and_released(client: mhsd.Client, session: CodeSession) -> None:
    stopped = session.estop("a test")
    assert stopped.ok
    assert client.safety_status()["estop"]["engaged"] is True
    assert session.invoke(VALVE, {"open": True}).mhs_code == "MHS.SAFETY.ESTOP_LATCHED"
    assert session.reset().ok
    assert session.safety_status()["estop"]["engaged"] is False
    assert client.estop(device_id="conveyor-workcell").ok
    assert client.reset().ok


def test_the_evidence_has_every_receipt(client: mhsd.Client, session: CodeSession) -> None:
    receipt = session.invoke(STEP, {"ticks": 1})
    mine = session.export_evidence()
    assert [each["receipt_id"] for each in mine["receipts"]] == [receipt["receipt_id"]]
    whole = client.export_evidence()
    assert whole["truncation"] is None
    assert [each["evidence"]["seq"] for each in whole["receipts"]] == list(
        range(1, len(whole["receipts"]) + 1)
    )


def test_threads_share_a_client(client: mhsd.Client) -> None:
    """[TPT-057]"""
    failures: list[BaseException] = []
    ticks: list[int] = []

    def work() -> None:
        try:
            with client.session() as own:
                ticks.extend(own.invoke(STEP, {"ticks": 1}).output["tick"] for _ in range(10))
        except BaseException as problem:
            failures.append(problem)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(ticks)) == 40


def test_what_is_not_there_is_named_with_what_is(client: mhsd.Client) -> None:
    with pytest.raises(mhsd.MHSError, match="/lab/conveyor-workcell") as unknown:
        client.session("press")
    assert unknown.value.mhs_code == "MHS.DEVICE.UNKNOWN"


def test_several_devices_have_to_be_named(tmp_path: Any) -> None:
    with places(tmp_path, "conveyor-workcell", "scpi-psu") as found, mhsd.connect(found["http"]) as client:
        with pytest.raises(mhsd.MHSError, match="/lab/conveyor-workcell, /bench/psu"):
            client.session()
        with client.session(["conveyor-workcell", "/bench/psu"]) as both:
            assert both.read("output", device_id="psu")["state"]["enabled"] is False
            assert both.read("output")["state"]["enabled"] is False
            assert both.invoke(STEP, {"ticks": 1}).ok
            assert both.write("belt", {"speed_mm_s": 120}).ok
            with pytest.raises(mhsd.MHSError, match="the session has 2 devices"):
                both.snapshot()
            assert client.safety_status("psu")["device_id"].endswith("/bench/psu")
            stopped = client.estop("all of them")
            assert {each["device_id"] for each in stopped["x-vendor"]["estop"]["devices"]} == set(
                both.device_ids
            )


def test_a_session_without_capabilities_only_reads(client: mhsd.Client) -> None:
    with client.session(capabilities=[]) as session:
        assert session.grant["granted"] == []
        assert session.read("belt")["state"]
        assert session.invoke(STEP, {"ticks": 1}).mhs_code == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
