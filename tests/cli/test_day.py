"""An operator's day on the reference fixture, through real processes."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.resources import drivers_dir
from mhsd.client.client import connect
from mhsd.client.session import Session
from tests.cli.conftest import BIN, PATIENCE_S, Daemon, Done, ctl, environment
from tests.cli.shapes import check, has_shape, shapes

CONVEY = ("call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 5000, "speed_mm_s": 50}')
PURGE = ("call", "-c", "cap.actuation.purge.v1", "-i", '{"duration_ms": 100}')
STEP = ("call", "-c", "cap.world.step.v1", "-i", '{"ticks": 3}')


def until(what: Callable[[], bool]) -> None:
    """Asks again until it is so."""
    give_up_mono_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < give_up_mono_s
        time.sleep(0.02)


def belt_runs(daemon: Daemon) -> bool:
    return bool(daemon.ctl("read", "belt", "--json").json["state"]["running"])


def live_sessions(daemon: Daemon, session_id: str) -> bool:
    """Whether the session lives, by a heartbeat."""
    with connect(daemon.url) as client:
        try:
            Session(client, session_id).heartbeat()
        except Exception:
            return False
        return True


# --- looking -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("hello", ("hello",)),
        ("devices", ("devices",)),
        ("describe", ("describe",)),
        ("describe", ("inspect", "conveyor-workcell")),
        ("read", ("read", "belt")),
        ("status", ("status",)),
        ("session open", ("session", "open", "--ttl", "5")),
        ("evidence", ("evidence",)),
        ("evidence --verify", ("evidence", "--verify")),
        ("version", ("version",)),
        ("completion", ("completion", "bash")),
        ("validate", ("validate", str(drivers_dir() / "conveyor_workcell"))),
        ("describe --python", ("describe", "conveyor-workcell", "--python")),
        ("run", ("run", "sweep.py")),
        ("evidence --ledger", ("evidence", "--ledger", "sweep.ledger.json")),
        ("errors", ("read", "nothing")),
        ("errors", ("read",)),
    ],
)
def test_the_documents_are_those_of_the_guide(shared: Daemon, title: str, words: tuple[str, ...]) -> None:
    """[TPT-051]"""
    (shared.cwd / "sweep.py").write_text("import mhsd\n\nwith mhsd.lab() as lab:\n    lab.read('world')\n")
    # What stands behind a code file's name is the code file's.
    done = shared.ctl("run", "--json", *words[1:]) if words[0] == "run" else shared.ctl(*words, "--json")
    # Only a code file's own words may stand beside the document.
    assert done.err == "" or title == "run"
    has_shape(done.json, shapes()[title])


def test_every_shape_of_the_guide_is_a_command_or_the_errors() -> None:
    assert set(shapes()) >= {"errors", "hello", "read", "status", "permit", "validate", "evidence -o"}


def test_every_document_of_the_guide_is_compared_with_what_a_command_prints() -> None:
    """[TPT-051] A shape that no test asks for could be wrong for long."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [title for title in shapes() if f'"{title}"' not in tests] == []


def test_documents_validate_against_the_shipped_schemas(shared: Daemon) -> None:
    check(shared.ctl("hello", "--json").json, "server-info")
    check(shared.ctl("devices", "--json").json, "device-list")
    check(shared.ctl("describe", "--json").json["devices"][0]["manifest"], "device")
    check(shared.ctl("read", "world", "--json").json, "state-document")
    check(shared.ctl(*STEP, "--json").json, "receipt")
    check(shared.ctl("evidence", "--json").json, "evidence-bundle")


def test_a_person_sees_the_device_with_limits_and_units(shared: Daemon) -> None:
    text = shared.ctl("describe", "conveyor-workcell").out
    for expected in (
        "mode",
        "simulated",
        "risk class",
        "R1",
        "not certified; not conformance tested",
        "fidelity gap",
        "door_closed (hard)",
        "safe state",
        "limit up to 500 mm/s",
        "needs a permit",
        "takes long",
        "needs door_closed",
    ):
        assert expected in text
    assert "mm/s" in shared.ctl("read", "belt").out
    assert shared.ctl("devices").out.splitlines()[1].startswith("/lab/conveyor-workcell  simulated  R1")


# --- commanding --------------------------------------------------------------------------------


def test_a_step_completes_and_exits_0(shared: Daemon) -> None:
    done = shared.ctl(*STEP, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["status"] == "completed"
    assert done.json["output"]["tick"] >= 3


def test_a_write_sets_and_reads_back(shared: Daemon) -> None:
    done = shared.ctl("write", "belt", "--patch", '{"speed_mm_s": 120}', "--json")
    assert (done.code, done.json["capability_id"]) == (0, "cap.device.configure.v1")
    assert shared.ctl("read", "belt", "--json").json["state"]["speed_mm_s"] == 120


@pytest.mark.parametrize(
    ("words", "status", "mhs_code"),
    [
        (("call", "-c", "cap.nothing.v1"), "rejected", "MHS.CAPABILITY.UNKNOWN"),
        (("call", "-c", "cap.thermal.ramp.v9"), "rejected", "MHS.CAPABILITY.UNKNOWN"),
        (("call", "-c", "cap.electrical.output.v1"), "rejected", "MHS.CAPABILITY.NOT_BOUND"),
        (
            ("call", "-c", "cap.world.step.v1", "-i", '{"ticks": 0}'),
            "rejected",
            "MHS.CAPABILITY.INPUT_INVALID",
        ),
        (
            ("call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 10, "speed_mm_s": 600}'),
            "rejected",
            "MHS.SAFETY.ENVELOPE_VIOLATION",
        ),
        ((*STEP, "--expect-revision", "999999"), "rejected", "MHS.CONFLICT.REVISION"),
        (PURGE, "rejected", "MHS.SAFETY.APPROVAL_REQUIRED"),
        (("write", "belt", "--patch", '{"position_mm": 1}'), "rejected", "MHS.RESOURCE.NOT_WRITABLE"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_refusal_is_a_receipt_and_exits_1(
    shared: Daemon, words: tuple[str, ...], status: str, mhs_code: str
) -> None:
    done = shared.ctl(*words, "--json")
    assert (done.code, done.json["status"], done.json["error"]["mhs_code"]) == (1, status, mhs_code)
    assert done.err == ""


@pytest.mark.parametrize(
    ("words", "mhs_code"),
    [
        (("read", "nothing"), "MHS.RESOURCE.UNKNOWN"),
        (("write", "valve", "--patch", "{}"), "MHS.RESOURCE.NOT_WRITABLE"),
        (("describe", "oven"), "MHS.DEVICE.UNKNOWN"),
        ((*STEP, "--session", "mhs_s_nothing"), "MHS.SESSION.UNKNOWN"),
        (("session", "close", "mhs_s_nothing"), "MHS.SESSION.UNKNOWN"),
        ((*STEP, "--deadline-ms", "0"), "MHS.PROTOCOL.DEADLINE_INVALID"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_error_without_a_receipt_exits_1(shared: Daemon, words: tuple[str, ...], mhs_code: str) -> None:
    done = shared.ctl(*words, "--json")
    assert (done.code, done.json["error"]["mhs_code"]) == (1, mhs_code)


def test_a_command_id_never_runs_twice(shared: Daemon) -> None:
    again = (*STEP, "--command-id", "01J8ZQ3V6Y7M2N4P6R8S0T2V4Y", "--json")
    first, second = shared.ctl(*again).json, shared.ctl(*again).json
    assert first["output"] == second["output"]
    assert (first["replayed"], second["replayed"]) == (False, True)


def test_an_open_door_stops_the_valve_and_exits_1(own: Daemon) -> None:
    door = ("call", "-c", "x-cap.sim.door.v1", "-i")
    assert own.ctl(*door, '{"closed": false}').code == 0
    refused = own.ctl("call", "-c", "cap.actuation.valve.v1", "-i", '{"open": true}')
    assert refused.code == 1
    assert "MHS.SAFETY.INTERLOCK_OPEN" in refused.out
    assert "door_closed open" in own.ctl("status").out
    assert own.ctl(*door, '{"closed": true}').code == 0
    assert own.ctl("call", "-c", "cap.actuation.valve.v1", "-i", '{"open": true}').code == 0


def test_a_permit_lets_exactly_its_input_through_once(own: Daemon) -> None:
    session = own.ctl("session", "open", "--json").json["session_id"]
    permit = own.ctl("permit", *PURGE[1:], "--session", session, "--json").json
    has_shape(permit, shapes()["permit"])
    with_permit = (*PURGE, "--session", session, "--permit", permit["permit_id"], "--json")
    assert own.ctl(*with_permit).json["status"] == "completed"
    second = own.ctl(*with_permit)
    assert (second.code, second.json["error"]["mhs_code"]) == (1, "MHS.SAFETY.PERMIT_INVALID")
    closed = own.ctl("session", "close", session, "--json")
    has_shape(closed.json, shapes()["session close"])
    assert closed.json["summary"]["completed"] == 1


def test_a_session_is_kept_alive(own: Daemon) -> None:
    session = own.ctl("session", "open", "--ttl", "2", "--json").json["session_id"]
    kept = own.ctl("session", "keep", session, "--for", "3", "--json")
    assert kept.code == 0
    has_shape(kept.json, shapes()["session keep"])
    assert live_sessions(own, session)


# --- what takes long ---------------------------------------------------------------------------


def test_a_long_operation_is_waited_for(own: Daemon) -> None:
    done = own.ctl(
        "call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 40, "speed_mm_s": 100}', "--json"
    )
    assert (done.code, done.json["status"], done.err) == (0, "completed", "")
    assert done.json["output"]["position_mm"] == pytest.approx(40)


def test_a_deadline_that_passes_during_a_long_operation_does_not_end_the_wait(own: Daemon) -> None:
    short = ("call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 60, "speed_mm_s": 100}')
    done = own.ctl(*short, "--deadline-ms", "50", "--json")
    assert (done.code, done.json["status"]) == (0, "completed")


def test_progress_is_shown_where_stderr_is_a_terminal(own: Daemon) -> None:
    master, slave = pty.openpty()
    words = ("call", "-c", "cap.motion.convey.v1", "-i", '{"distance_mm": 150, "speed_mm_s": 100}', "--json")
    done = subprocess.run(
        [BIN / "mhsctl", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=slave,
        env=environment(MHS_ENDPOINT=own.url),
        timeout=PATIENCE_S,
        check=False,
    )
    shown = os.read(master, 65536).decode()
    os.close(master)
    os.close(slave)
    assert json.loads(done.stdout)["status"] == "completed"
    assert re.search(r"cap\.motion\.convey\.v1  \d+ s  \d+ %", shown)
    assert shown.endswith("\r\x1b[2K")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_what_ends_a_terminal_cancel_wait_for_the_receipt_and_exit_130(
    own: Daemon, signum: signal.Signals
) -> None:
    running = own.start_ctl(*CONVEY, "--json")
    until(lambda: belt_runs(own))
    running.send_signal(signum)
    out, err = running.communicate(timeout=PATIENCE_S)
    receipt = json.loads(out)
    assert (running.returncode, receipt["status"]) == (130, "cancelled")
    assert receipt["cancellation"]["safe_state_achieved"] is True
    assert "stopping" in err
    assert not belt_runs(own)
    assert not live_sessions(own, receipt["session_id"])


def test_no_wait_leaves_the_operation_running_and_says_how_to_follow_and_stop_it(own: Daemon) -> None:
    done = own.ctl(*CONVEY, "--no-wait", "--deadline-ms", "100", "--json")
    assert (done.code, done.json["status"]) == (0, "running")
    assert done.json["operation_id"] in done.err
    follow, stop = re.findall(r"(?:follow|stop) it +mhsctl (.+)", done.err)
    assert belt_runs(own)
    following = own.start_ctl(*shlex.split(follow), "--json")
    stopped = own.ctl(*shlex.split(stop), "--json")
    assert stopped.code == 0
    out, _ = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 1
    answered = json.loads(out)
    assert answered.get("status") == "cancelled" or answered["error"]["mhs_code"].startswith("MHS.SESSION.")
    assert not belt_runs(own)


def test_an_interim_unknown_leaves_its_session_open_until_it_is_known(own: Daemon) -> None:
    session = own.ctl("session", "open", "--json").json["session_id"]
    slow = ("call", "-c", "cap.actuation.purge.v1", "-i", '{"duration_ms": 1500}')
    permit = own.ctl("permit", *slow[1:], "--session", session, "--json").json["permit_id"]
    words = (*slow, "--session", session, "--permit", permit, "--deadline-ms", "100")
    done = own.ctl(*words, "--json")
    assert (done.code, done.json["status"]) == (1, "unknown")
    assert done.json["error"]["mhs_code"] == "MHS.OUTCOME.TIMEOUT"
    follow = re.search(r"follow it +mhsctl (.+)", done.err)
    assert follow is not None
    known = own.ctl(*shlex.split(follow[1]), "--json")
    assert (known.code, known.json["status"]) == (0, "completed")
    assert known.json["command_id"] == done.json["command_id"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [("busy", "rejected"), ("fail", "failed"), ("raise", "failed"), ("outcome_unknown", "unknown")],
)
def test_what_a_device_does_wrong_exits_1(own: Daemon, kind: str, status: str) -> None:
    fault = json.dumps({"kind": kind, "times": 1})
    assert own.ctl("call", "-c", "x-cap.sim.fault.v1", "-i", fault).code == 0
    done = own.ctl("call", "-c", "cap.actuation.valve.v1", "-i", '{"open": true}', "--json")
    assert (done.code, done.json["status"]) == (1, status)
    assert done.err == ""


def test_a_daemon_that_dies_in_the_middle_leaves_the_outcome_unknown_and_exits_3(own: Daemon) -> None:
    running = own.start_ctl(*CONVEY, "--json")
    until(lambda: belt_runs(own))
    own.process.kill()
    out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 3
    error = json.loads(out)["error"]
    assert error["mhs_code"] == "MHS.OUTCOME.UNKNOWN"
    assert error["data"]["details"]["command_id"] in err
    assert "Traceback" not in err


# --- stopping ----------------------------------------------------------------------------------


def test_the_stop_latches_and_only_a_person_at_a_terminal_releases_it(own: Daemon) -> None:
    running = own.start_ctl(*CONVEY, "--json")
    until(lambda: belt_runs(own))
    stop = own.ctl("estop", "smoke", "--json")
    assert (stop.code, stop.json["status"], stop.json["output"]["latched"]) == (0, "completed", True)
    out, _ = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, json.loads(out)["status"]) == (1, "cancelled")
    assert not belt_runs(own)

    assert own.ctl("status", "--json").json["devices"][0]["estop"]["engaged"] is True
    assert "ENGAGED" in own.ctl("status").out
    refused = own.ctl("call", "-c", "cap.actuation.valve.v1", "-i", '{"open": true}', "--json")
    assert (refused.code, refused.json["error"]["mhs_code"]) == (1, "MHS.SAFETY.ESTOP_LATCHED")

    assert own.ctl("reset").code == 4
    assert at_terminal(own, "reset", "--json", typed="no\n").code == 4
    assert own.ctl("status", "--json").json["devices"][0]["estop"]["engaged"] is True
    reset = at_terminal(own, "reset", "--json", typed="conveyor-workcell\n")
    assert (reset.code, reset.json["status"]) == (0, "completed")
    assert own.ctl("status", "--json").json["devices"][0]["estop"]["engaged"] is False
    again = at_terminal(own, "reset", "--json", typed="conveyor-workcell\n")
    assert (again.code, again.json["error"]["mhs_code"]) == (1, "MHS.SAFETY.RESET_REFUSED")


def at_terminal(daemon: Daemon, *words: str, typed: str) -> Done:
    """`mhsctl` with a terminal as its stdin, on which a person has typed."""
    master, slave = pty.openpty()
    try:
        os.write(master, typed.encode())
        done = subprocess.run(
            [BIN / "mhsctl", *words],
            stdin=slave,
            capture_output=True,
            text=True,
            env=environment(MHS_ENDPOINT=daemon.url),
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(master)
        os.close(slave)
    return Done(done.returncode, done.stdout, done.stderr)


def test_a_stop_for_a_person_says_what_was_confirmed(own: Daemon) -> None:
    done = own.ctl("estop", "smoke from the hood")
    assert done.code == 0
    assert done.out.startswith("STOPPED  /lab/conveyor-workcell\n")
    assert "safe state reached" in done.out


def test_a_stop_of_several_devices_names_each(tmp_path: Path) -> None:
    daemon = Daemon("conveyor-workcell", "conveyor-workcell@/lab/second", cwd=tmp_path)
    try:
        done = daemon.ctl("estop")
        assert done.code == 0
        assert "/lab/conveyor-workcell" in done.out
        assert "/lab/second" in done.out
        assert daemon.ctl("read", "belt").code == 2
        assert daemon.ctl("read", "belt", "--device", "second").code == 0
        assert daemon.ctl("session", "open", "--device", "second", "--ttl", "5").code == 0
    finally:
        daemon.stop()


# --- evidence ----------------------------------------------------------------------------------


def test_evidence_is_exported_verified_and_a_changed_bundle_found_out(own: Daemon) -> None:
    for _ in range(3):
        own.ctl(*STEP)
    file = own.cwd / "bundle.json"
    written = own.ctl("evidence", "-o", "bundle.json", "--verify", "--json")
    assert written.code == 0
    has_shape(written.json, shapes()["evidence -o"])
    assert written.json["report"]["valid"] is True
    assert written.json["receipts"] == 3
    check(json.loads(file.read_text()), "evidence-bundle")
    assert own.ctl("evidence", "--file", "bundle.json").code == 0
    assert own.ctl("validate", "bundle.json", "--json").json["kind"] == "evidence-bundle"

    bundle = json.loads(file.read_text())
    bundle["receipts"][1]["output"]["tick"] = 99
    file.write_text(json.dumps(bundle))
    found = own.ctl("evidence", "--file", "bundle.json", "--json")
    assert (found.code, found.json["valid"]) == (1, False)
    assert found.json["errors"][0]["mhs_code"] == "MHS.EVIDENCE.CHAIN_BROKEN"
    person = own.ctl("evidence", "--file", "bundle.json")
    assert person.code == 1
    assert "NOT VALID" in person.out

    del bundle["receipts"][1]
    file.write_text(json.dumps(bundle))
    cut = own.ctl("evidence", "--file", "bundle.json")
    assert cut.code == 1
    assert "seq 3 follows seq 1" in cut.out
    assert "a selection" not in cut.out


def test_evidence_of_many_pages_is_one_bundle(tmp_path: Path) -> None:
    daemon = Daemon("conveyor-workcell", "--export-page", "2", cwd=tmp_path)
    try:
        for _ in range(5):
            daemon.ctl(*STEP)
        bundle = daemon.ctl("evidence", "--json").json
        assert [receipt["evidence"]["seq"] for receipt in bundle["receipts"]] == [1, 2, 3, 4, 5]
        assert bundle["truncation"] is None
        assert daemon.ctl("evidence", "--verify").code == 0
    finally:
        daemon.stop()


def test_a_reader_that_has_seen_enough_changes_nothing(shared: Daemon) -> None:
    """A closed pipe behind stdout is no traceback, and the exit code stays the outcome's."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [BIN / "mhsctl", "describe", "--json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=environment(MHS_ENDPOINT=shared.url),
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


# --- who may -----------------------------------------------------------------------------------


@pytest.fixture
def guarded(tmp_path: Path) -> Any:
    """A daemon with a client's and an operator's token."""
    for name in ("client", "operator", "wrong"):
        (tmp_path / name).write_text(f"{name}-secret\n")
        (tmp_path / name).chmod(0o600)
    daemon = Daemon(
        "conveyor-workcell", "--token-file", "client", "--operator-token-file", "operator", cwd=tmp_path
    )
    yield daemon
    daemon.stop()


def test_tokens_decide_who_may_do_what(guarded: Daemon) -> None:
    for words in (("devices",), STEP, ("estop",), ("status",)):
        assert guarded.ctl(*words).code == 4
        assert guarded.ctl(*words, "--token-file", "wrong").code == 4
    assert guarded.ctl("devices", "--token-file", "client").code == 0
    assert guarded.ctl(*STEP, "--token-file", "client").code == 0
    refused = guarded.ctl("devices", "--json")
    assert refused.json["error"]["data"]["http_status"] == 401
    assert "secret" not in refused.out + refused.err


def test_a_permit_and_a_reset_take_the_operators_token(guarded: Daemon) -> None:
    session = guarded.ctl("session", "open", "--token-file", "client", "--json").json["session_id"]
    permit = ("permit", *PURGE[1:], "--session", session, "--json")
    assert guarded.ctl(*permit, "--token-file", "client").code == 4
    granted = guarded.ctl(*permit, "--operator-token-file", "operator")
    assert granted.code == 0
    done = guarded.ctl(
        *PURGE, "--session", session, "--permit", granted.json["permit_id"], "--token-file", "client"
    )
    assert done.code == 0

    assert guarded.ctl("estop", "--token-file", "client").code == 0
    operator = str(guarded.cwd / "operator")
    client = str(guarded.cwd / "client")
    refused = at_terminal(guarded, "reset", "--token-file", client, "--json", typed="conveyor-workcell\n")
    assert (refused.code, refused.json["error"]["mhs_code"]) == (4, "MHS.AUTH.FORBIDDEN")
    released = at_terminal(guarded, "reset", "--operator-token-file", operator, "--json", typed="")
    assert (released.code, released.json["status"]) == (0, "completed")


# --- stdio -------------------------------------------------------------------------------------


def test_an_endpoint_on_stdio_is_started_used_and_ended(tmp_path: Path) -> None:
    endpoint = f"stdio:{BIN / 'mhsd'} --stdio conveyor-workcell"
    assert ctl("devices", "-e", endpoint, cwd=tmp_path).code == 0
    done = ctl(*STEP, "-e", endpoint, "--json", cwd=tmp_path)
    assert (done.code, done.json["status"], done.err) == (0, "completed", "")
    assert ctl("estop", "-e", endpoint, cwd=tmp_path).code == 0


def test_an_endpoint_on_stdio_that_does_not_start_says_why(tmp_path: Path) -> None:
    done = ctl("devices", "-e", f"stdio:{BIN / 'mhsd'} --stdio no-such-driver", cwd=tmp_path)
    assert done.code == 3
    assert "no such driver" in done.err
    assert "Traceback" not in done.err
