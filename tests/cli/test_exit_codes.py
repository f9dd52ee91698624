"""The exit-code table of TPT-052, every row through real processes. 5 belongs to `conform`."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.resources import drivers_dir
from mhsd.cli import exits
from tests.cli.conftest import PATIENCE_S, Daemon, ctl
from tests.cli.tiny import Endpoint, Request, Tiny

VALVE = ("call", "-c", "cap.actuation.valve.v1", "-i", '{"open": true}')
STEP = ("call", "-c", "cap.world.step.v1", "-i", '{"ticks": 1}')
CONVEY = ("call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 5000, "speed_mm_s": 50}')
ONE, TWO = "mhs://localhost:7400/lab/one", "mhs://localhost:7400/lab/two"


def fault(daemon: Daemon, kind: str) -> None:
    """The next command of the device ends in this way."""
    assert (
        daemon.ctl("call", "-c", "x-cap.sim.fault.v1", "-i", json.dumps({"kind": kind, "times": 1})).code == 0
    )


def code_of(error: dict[str, Any]) -> str:
    return str(error["error"]["mhs_code"])


# --- 0 ----------------------------------------------------------------------------------------


def test_0_is_a_completed_receipt_and_accepted_or_running_work(own: Daemon) -> None:
    """[TPT-052]"""
    assert own.ctl(*STEP, "--json").json["status"] == "completed"
    running = own.ctl(*CONVEY, "--no-wait", "--deadline-ms", "100", "--json")
    assert (running.code, running.json["status"]) == (exits.OK, "running")
    assert own.ctl("ops", running.json["operation_id"]).code == exits.OK


# --- 1 ----------------------------------------------------------------------------------------


def test_1_is_a_receipt_that_is_rejected_failed_or_unknown(own: Daemon) -> None:
    """Whatever its error: a scripted caller tells a physical refusal from a transport failure [TPT-052]."""
    rejected = own.ctl(
        "call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 1, "speed_mm_s": 900}', "--json"
    )
    assert (rejected.code, rejected.json["status"]) == (exits.FAILED, "rejected")
    for kind, status in (("fail", "failed"), ("outcome_unknown", "unknown"), ("busy", "rejected")):
        fault(own, kind)
        done = own.ctl(*VALVE, "--json")
        assert (done.code, done.json["status"]) == (exits.FAILED, status)


def test_1_is_a_cancelled_receipt(own: Daemon) -> None:
    operation = own.ctl(*CONVEY, "--no-wait", "--deadline-ms", "100", "--json").json["operation_id"]
    done = own.ctl("ops", operation, "--cancel", "--json")
    assert (done.code, done.json["status"]) == (exits.FAILED, "cancelled")


def test_1_is_another_error_of_the_endpoint_an_invalid_document_and_a_strict_refusal(
    shared: Daemon, tmp_path: Path
) -> None:
    unknown = shared.ctl("read", "belt", "--device", "nothing", "--json")
    assert (unknown.code, code_of(unknown.json)) == (exits.FAILED, "MHS.DEVICE.UNKNOWN")
    closed = shared.ctl("session", "close", "mhs_s_01J8ZQ3V6Y7M2N4P6R8S0T2V4X", "--json")
    assert (closed.code, code_of(closed.json)) == (exits.FAILED, "MHS.SESSION.UNKNOWN")
    document = tmp_path / "receipt.json"
    document.write_text("{}")
    assert ctl("validate", str(document), "--schema", "receipt").code == exits.FAILED
    driver = tmp_path / "driver"
    shutil.copytree(drivers_dir() / "conveyor_workcell", driver)
    (driver / "driver.py").write_text("raise RuntimeError\n")
    assert ctl("serve", str(driver), "--port", "0").code == exits.FAILED


# --- 2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("devices", "--nonsense"),
        ("nonsense",),
        ("call", "-c", "cap.world.step.v1", "-i", "[1]"),
        ("call", "-c", "cap.world.step.v1", "-i", "no json"),
        ("call", "-c", "cap.world.step.v1", "-i", "@nothing.json"),
        ("write", "belt", "--patch", "7"),
        ("devices", "--token-file", "nothing"),
        ("evidence", "--file", "nothing.json"),
        ("devices", "-e", "ftp://127.0.0.1"),
        ("estop", "--nonsense"),
        ("serve", "no-such-driver"),
        ("discover", "--file", "nothing.json"),
    ],
    ids=" ".join,
)
def test_2_is_a_command_line_that_cannot_be_carried_out(words: tuple[str, ...], tmp_path: Path) -> None:
    """[TPT-052]"""
    done = ctl(*words, cwd=tmp_path, MHS_ENDPOINT="http://127.0.0.1:1")
    assert (done.code, done.out) == (exits.USAGE, "")
    if words[0] != "serve":
        as_json = ctl(*words, "--json", cwd=tmp_path, MHS_ENDPOINT="http://127.0.0.1:1")
        assert as_json.code == exits.USAGE
        assert as_json.json["error"]["data"]["details"]["reason"] == "usage"


# --- 3 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("devices",), STEP, ("estop",), ("status",), ("watch",)], ids=" ".join)
def test_3_is_an_endpoint_that_was_not_reached(words: tuple[str, ...]) -> None:
    """[TPT-052] Nothing was sent."""
    done = ctl(*words, "-e", "http://127.0.0.1:1", "--json")
    assert (done.code, code_of(done.json)) == (exits.TRANSPORT, "MHS.TRANSPORT.UNAVAILABLE")


@pytest.fixture
def told() -> Iterator[Callable[..., Tiny]]:
    """Endpoints that answer as a test says."""
    running: list[Tiny] = []

    def serve(**methods: Callable[[Request], Any]) -> Tiny:
        running.append(Tiny(Endpoint(**methods)))
        return running[-1]

    yield serve
    for tiny in running:
        tiny.close()


def test_3_is_an_answer_that_was_lost_or_did_not_come(told: Callable[..., Tiny]) -> None:
    """The command may have run."""
    broken = ctl("estop", "-e", told(safety_estop=lambda _: None).url, "--json")
    assert (broken.code, code_of(broken.json)) == (exits.TRANSPORT, "MHS.OUTCOME.UNKNOWN")
    silence = threading.Event()
    slow = told(safety_estop=lambda _: silence.wait(PATIENCE_S) and None)
    late = ctl("estop", "-e", slow.url, "--timeout", "0.3", "--json")
    silence.set()
    assert (late.code, code_of(late.json)) == (exits.TRANSPORT, "MHS.OUTCOME.TIMEOUT")


# --- 4 ----------------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Daemon]:
    for name in ("client", "operator"):
        (tmp_path / name).write_text(f"{name}-secret\n")
        (tmp_path / name).chmod(0o600)
    daemon = Daemon(
        "conveyor-workcell", "--token-file", "client", "--operator-token-file", "operator", cwd=tmp_path
    )
    yield daemon
    daemon.stop()


def test_4_is_who_is_not_known_or_not_allowed(guarded: Daemon) -> None:
    """[TPT-052]"""
    refused = guarded.ctl("devices", "--json")
    assert (refused.code, code_of(refused.json)) == (exits.AUTH, "MHS.AUTH.UNAUTHENTICATED")
    session = guarded.ctl("session", "open", "--token-file", "client", "--json").json["session_id"]
    permit = ("permit", "-c", "cap.actuation.purge.v1", "-i", '{"duration_ms": 10}', "--session", session)
    assert guarded.ctl(*permit, "--token-file", "client").code == exits.AUTH
    plain = ctl("devices", "-e", "http://bench.example:7400", "--json")
    assert (plain.code, code_of(plain.json)) == (exits.AUTH, "MHS.AUTH.TRANSPORT_INSECURE")


def test_4_is_a_reset_without_a_person_at_a_terminal(guarded: Daemon) -> None:
    """[CORE-083] The operator's token is not enough, and nothing is sent."""
    guarded.ctl("estop", "--token-file", "client")
    done = guarded.ctl("reset", "--operator-token-file", "operator", "--json")
    assert (done.code, code_of(done.json)) == (exits.AUTH, "MHS.AUTH.FORBIDDEN")
    status = guarded.ctl("status", "--token-file", "client", "--json").json
    assert status["devices"][0]["estop"]["engaged"] is True


def test_4_is_hardware_that_was_not_allowed(tmp_path: Path) -> None:
    done = ctl("serve", "scpi-psu", "--backend", "hardware", "--port", "0", cwd=tmp_path)
    assert done.code == exits.AUTH
    assert "MHS.AUTH.HARDWARE_DISABLED" in done.err


def test_4_is_a_rejected_receipt_whose_reason_is_who_asked(told: Callable[..., Tiny]) -> None:
    """A refusal of MHS.AUTH.* is the one receipt that is not 0 or 1."""
    receipt = {"status": "rejected", "device_id": ONE, "error": {"mhs_code": "MHS.AUTH.HARDWARE_DISABLED"}}
    tiny = told(
        devices_list=lambda _: {"devices": [{"device_id": ONE, "mode": "hardware", "bindings": []}]},
        session_open=lambda _: {"session_id": "mhs_s_1"},
        session_close=lambda _: {},
        command=lambda _: receipt,
    )
    assert ctl("call", "-c", "cap.x.v1", "-e", tiny.url).code == exits.AUTH


# --- several devices, and an interruption -----------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("completed", "completed", exits.OK),
        ("completed", "failed", exits.FAILED),
        ("MHS.AUTH.FORBIDDEN", "completed", exits.AUTH),
        ("MHS.AUTH.FORBIDDEN", "failed", exits.FAILED),
    ],
)
def test_a_stop_of_several_devices_is_0_only_when_every_one_is_confirmed(
    told: Callable[..., Tiny], first: str, second: str, code: int
) -> None:
    """Otherwise the code that all failures share, else 1 [TPT-052]."""

    def receipt(device_id: str, outcome: str) -> dict[str, Any]:
        if outcome.startswith("MHS."):
            return {"status": "rejected", "device_id": device_id, "error": {"mhs_code": outcome}}
        return {"status": outcome, "device_id": device_id}

    both = [receipt(ONE, first), receipt(TWO, second)]
    tiny = told(safety_estop=lambda _: {**both[0], "x-vendor": {"estop": {"devices": both}}})
    assert ctl("estop", "-e", tiny.url).code == code


def test_130_is_an_interruption(own: Daemon) -> None:
    """[TPT-052]"""
    running = own.start_ctl("session", "keep", own.ctl("session", "open", "--json").json["session_id"])
    assert running.stdout is not None
    assert running.stdout.readline()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == exits.INTERRUPTED
