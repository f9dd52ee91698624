"""The whole way to an instrument that is not ours: protocol, envelope, store, SCPI over TCP, sinstruments-server.

The server is a process of its own with `drivers/scpi_psu/tests/instruments/sin_psu.py`; what it was sent is read from
itself, over a connection that the daemon knows nothing of.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab import MHSD, PATIENCE_S, HttpWire, Lab, Session, ask_until, running, stop, ulid

INSTRUMENTS = Path(__file__).parents[2] / "drivers" / "scpi_psu" / "tests" / "instruments"
SERVER = Path(sys.executable).with_name("sinstruments-server")
PSU = "mhs://localhost:7400/bench/psu"
OUTPUT = "cap.electrical.output.v1"
SAMPLE = "cap.measure.sample.v1"
RAMP = "cap.electrical.ramp.v1"
WAIT = {"deadline_ms": 30_000}
OPERATOR = "token-of-the-operator"


class Instrument:
    """The supply as it is seen from the bench."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.link = f"tcp://127.0.0.1:{port}"

    def ask(self, *lines: str) -> str:
        """Send the lines; the last one is a query, and its reply is returned."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall("".join(f"{line}\n" for line in lines).encode())
            reply = b""
            while not reply.endswith(b"\n"):
                data = connection.recv(4096)
                assert data, "the instrument closed the connection"
                reply += data
            return reply.decode().strip()

    def log(self, *lines: str) -> list[str]:
        """What it was told so far, in order: commands, and when its meter had to wait."""
        return self.ask(*lines, "SIM:LOG?").split(";")

    def shows(self) -> tuple[bool, float, float]:
        """Whether the output is on, the voltage setpoint, and the current limit."""
        return self.ask("OUTP?") == "1", float(self.ask("VOLT?")), float(self.ask("CURR?"))

    def is_there(self) -> bool:
        try:
            self.ask("*IDN?")
        except OSError:
            return False
        return True


def serve(directory: Path, stack: ExitStack) -> tuple[Instrument, "subprocess.Popen[bytes]"]:
    """Start an instrument server; it is ended with the stack."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    transport = {"type": "tcp", "url": ["127.0.0.1", port]}
    device = {"name": "psu", "package": "sin_psu", "class": "ErrorQueuePsu", "transports": [transport]}
    config = directory / "instruments.json"
    config.write_text(json.dumps({"devices": [device]}))
    process = subprocess.Popen(
        [str(SERVER), "-c", str(config)],
        env={**os.environ, "PYTHONPATH": str(INSTRUMENTS)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stack.callback(stop, process)
    instrument = Instrument(port)
    ask_until(instrument.is_there, bool)
    return instrument, process


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrument]:
    with ExitStack() as stack:
        yield serve(tmp_path_factory.mktemp("bench"), stack)[0]


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instrument]:
    """The instrument of the daemon that tests share; no other daemon may drive it meanwhile."""
    with ExitStack() as stack:
        yield serve(tmp_path_factory.mktemp("shared-bench"), stack)[0]


@pytest.fixture
def instrument(request: pytest.FixtureRequest) -> Iterator[Instrument]:
    """The instrument with its output off, 0 V and 1 A; its meter waits for nothing."""
    is_shared = "armed" in request.fixturenames
    instrument: Instrument = request.getfixturevalue("shared_bench" if is_shared else "bench")
    yield instrument
    instrument.log("SIM:RELEASE", "OUTP OFF", "VOLT 0", "CURR 1")


@pytest.fixture(params=["stdio", "http"])
def binding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def options(tmp_path: Path, link: str, *more: str, timeout_s: float = 20) -> list[str]:
    """What drives the instrument; over HTTP there is an operator. A reply may take `timeout_s`."""
    operators = tmp_path / "operators"
    operators.write_text(OPERATOR + "\n")
    operators.chmod(0o600)
    return [
        "--backend",
        "hardware",
        "--allow-hardware",
        "--state-dir",
        str(tmp_path / "state"),
        "--operator-token-file",
        str(operators),
        "--option",
        f"/bench/psu:link={link}",
        "--option",
        "/bench/psu:idn=EXAMPLE,BENCH-30-5,0001,",
        "--option",
        f"/bench/psu:timeout_s={timeout_s}",
        "--rate-per-s",
        "100000",
        "--rate-burst",
        "100000",
        *more,
    ]


@contextmanager
def driving(
    binding: str, tmp_path: Path, instrument: Instrument, *more: str, **settings: Any
) -> Iterator[Lab]:
    """A daemon on the instrument."""
    given = options(tmp_path, instrument.link, *more, **settings)
    with running(binding, tmp_path, *given, targets=("scpi-psu",), greet=False) as lab:
        if isinstance(lab.wire, HttpWire):
            lab.wire.token = OPERATOR
        lab.hello()
        yield lab


Drive = Callable[..., Session]


@pytest.fixture
def drive(binding: str, tmp_path: Path, instrument: Instrument) -> Iterator[Drive]:
    """Start a daemon on the instrument, and open a session there."""
    with ExitStack() as stack:

        def started(*more: str, **settings: Any) -> Session:
            lab = stack.enter_context(driving(binding, tmp_path, instrument, *more, **settings))
            return lab.open(device_id=PSU, mode="hardware")

        yield started


@pytest.fixture(scope="module", params=["stdio", "http"])
def armed(
    request: pytest.FixtureRequest, shared_bench: Instrument, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """A daemon that the tests of ordinary work share, over each binding in turn."""
    with driving(request.param, tmp_path_factory.mktemp("armed"), shared_bench, "--arm") as lab:
        yield lab


@pytest.fixture
def session(armed: Lab, instrument: Instrument) -> Iterator[Session]:
    session = armed.open(device_id=PSU, mode="hardware")
    yield session
    session.close()


def code_of(receipt: Any) -> str | None:
    return receipt["error"]["mhs_code"] if "error" in receipt else None


def state(session: Session) -> Any:
    return session.read("output")["state"]


# Set, read back, refuse, switch.


def test_a_voltage_is_set_and_the_instrument_has_it(session: Session, instrument: Instrument) -> None:
    """[PROTO-025, OP-014]"""
    receipt = session.write("output", {"voltage_v": 4.5, "current_a": 2})
    assert (receipt["status"], receipt["mode"]) == ("completed", "hardware")
    assert receipt["output"]["applied"] == {"voltage_v": 4.5, "current_a": 2}
    assert receipt["state_revision_after"] == receipt["state_revision_before"] + 1
    assert [effect["kind"] for effect in receipt["effects"]] == ["output.configure"]
    assert instrument.shows() == (False, 4.5, 2.0)
    shown = state(session)
    assert (shown["voltage_v"], shown["current_a"], shown["enabled"]) == (4.5, 2, False)


def test_a_voltage_outside_the_limits_never_reaches_the_instrument(
    session: Session, instrument: Instrument
) -> None:
    """[PROTO-027, OP-002]"""
    before = instrument.log()
    for voltage_v in (30.001, 31, -0.1, "5", None):
        receipt = session.write("output", {"voltage_v": voltage_v})
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.CAPABILITY.INPUT_INVALID")
    assert instrument.log() == before
    assert session.write("output", {"voltage_v": 30})["status"] == "completed"
    assert instrument.shows()[1] == 30.0


def test_the_output_is_switched_and_measured(session: Session, instrument: Instrument) -> None:
    """[OP-014]"""
    session.write("output", {"voltage_v": 5})
    on = session.completed(OUTPUT, {"enabled": True})
    assert on["output"] == {"enabled": True}
    assert instrument.shows()[0] is True
    assert session.completed(SAMPLE, {})["output"] == {"voltage_v": 5.0, "current_a": 0.5}
    assert state(session)["measured_v"] == 5.0
    session.completed(OUTPUT, {"enabled": False})
    assert instrument.shows()[0] is False


def test_a_ramp_runs_on_and_can_be_followed(session: Session, instrument: Instrument) -> None:
    """[PROTO-030]"""
    pending, begun = session.started(RAMP, {"to_v": 2, "rate_v_s": 10})
    assert begun["progress"]["percent"] <= 100
    final = session.follow(begun["operation_id"])
    assert (final["status"], final["output"]) == ("completed", {"voltage_v": 2.0})
    assert pending.result()["operation_id"] == begun["operation_id"]
    assert instrument.shows()[1] == 2.0


def test_what_the_bench_changes_by_hand_is_seen(session: Session, instrument: Instrument) -> None:
    """[PROTO-024] Nothing is answered from memory."""
    session.write("output", {"voltage_v": 5})
    instrument.log("VOLT 7")
    assert state(session)["voltage_v"] == 7.0


def test_a_session_that_ends_takes_its_output_with_it(
    armed: Lab, session: Session, instrument: Instrument
) -> None:
    """[SESS-006, MHSD-4-28]"""
    drives = armed.open(device_id=PSU, mode="hardware")
    drives.completed(OUTPUT, {"enabled": True})
    looks = armed.open(device_id=PSU, mode="hardware")
    looks.completed(SAMPLE, {})
    looks.close()
    assert instrument.shows()[0] is True
    drives.close()
    assert instrument.shows()[0] is False


# The stop.


def test_a_stop_does_not_wait_behind_a_query_that_hangs(drive: Drive, instrument: Instrument) -> None:
    """[SAFE-002, CORE-074, MHSD-4-31]"""
    session = drive("--arm", timeout_s=60)
    lab = session.lab
    session.write("output", {"voltage_v": 20})
    session.completed(OUTPUT, {"enabled": True})
    instrument.log("SIM:HOLD")
    reading = lab.begin("mhs.resource.read", session_id=session.id, resource_id="output", deadline_ms=60_000)
    assert instrument.ask("SIM:WAITING?") == "1"

    receipt = lab.call("mhs.safety.estop", reason="smoke")
    # The meter has not answered, and so neither has the read that asked it: the stop overtook both.
    log = instrument.log()
    assert log[-3:] == ["meter waits", "OUTP OFF", "VOLT 0"]
    assert not reading.done
    assert receipt["status"] == "completed"
    assert receipt["output"]["safe_state_achieved"] is True
    assert receipt["output"]["latch_durable"] is True
    assert instrument.shows()[:2] == (False, 0.0)

    instrument.log("SIM:RELEASE")
    assert reading.result()["state"]["enabled"] is False
    refused = session.write("output", {"voltage_v": 1})
    assert (refused["status"], code_of(refused)) == ("rejected", "MHS.SAFETY.ESTOP_LATCHED")
    assert instrument.shows()[:2] == (False, 0.0)


def test_a_stop_ends_a_command_that_hangs(drive: Drive, instrument: Instrument) -> None:
    """[SAFE-002, MHSD-4-31]"""
    session = drive("--arm", timeout_s=60)
    session.completed(OUTPUT, {"enabled": True})
    instrument.log("SIM:HOLD")
    sampling = session.begin(SAMPLE, {}, deadline_ms=60_000)
    assert instrument.ask("SIM:WAITING?") == "1"
    receipt = session.lab.call("mhs.safety.estop", reason="smoke")
    assert receipt["status"] == "completed"
    ended = sampling.result()
    assert (ended["status"], ended["cancellation"]["reason"]) == ("cancelled", "estop")
    assert ended["cancellation"]["requested_by"] == "endpoint:estop"
    assert "meter answers" not in instrument.log()[-4:], "it waits to this moment"
    assert instrument.shows()[0] is False


def test_a_command_that_was_being_checked_when_the_stop_came_is_refused(
    drive: Drive, instrument: Instrument
) -> None:
    """[MHSD-4-11, MHSD-4-31]"""
    session = drive("--arm", timeout_s=60)
    instrument.log("SIM:HOLD")
    writing = session.lab.begin(
        "mhs.resource.write",
        session_id=session.id,
        resource_id="output",
        patch={"voltage_v": 12},
        command_id=ulid(),
        deadline_ms=60_000,
    )
    assert instrument.ask("SIM:WAITING?") == "1", "its state is read before anything is sent"
    session.lab.call("mhs.safety.estop", reason="smoke")
    instrument.log("SIM:RELEASE")
    receipt = writing.result()
    assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.SAFETY.ESTOP_LATCHED")
    assert "VOLT 12" not in instrument.log()


def test_a_ramp_is_stopped_at_zero(drive: Drive, instrument: Instrument) -> None:
    """[SAFE-002, MHSD-4-32]"""
    session = drive("--arm")
    session.completed(OUTPUT, {"enabled": True})
    _, begun = session.started(RAMP, {"to_v": 30, "rate_v_s": 0.5})
    ask_until(lambda: instrument.shows()[1], lambda volts: volts > 0)
    receipt = session.lab.call("mhs.safety.estop", reason="smoke")
    assert receipt["output"]["operations"] == [{"operation_id": begun["operation_id"], "state": "stopped"}]
    log = instrument.log()
    assert instrument.shows()[:2] == (False, 0.0)
    assert session.get(begun["operation_id"])["status"] == "cancelled"
    # Whatever was asked since then, no step of the ramp has come behind the stop.
    assert [line for line in instrument.log()[len(log) :] if line.startswith("VOLT ")] == []


def test_the_latch_of_an_instrument_outlives_the_daemon(drive: Drive, instrument: Instrument) -> None:
    """[CORE-186, MHSD-4-33]"""
    session = drive("--arm")
    session.lab.call("mhs.safety.estop", reason="smoke")
    session.lab.kill()
    # Somebody switches it on at its front meanwhile.
    instrument.log("OUTP ON", "VOLT 3")
    again = drive("--arm")
    assert instrument.shows()[:2] == (False, 0.0), "it is stopped before anything is served"
    assert code_of(again.command(OUTPUT, {"enabled": True})) == "MHS.SAFETY.ESTOP_LATCHED"
    receipt = again.call("mhs.safety.reset", device_id=PSU, **WAIT)
    if again.lab.binding == "http":
        assert receipt["status"] == "completed"
        assert instrument.shows()[:2] == (False, 0.0), "a reset switches nothing on"
        again.completed(OUTPUT, {"enabled": True})
    else:
        assert code_of(receipt) == "MHS.AUTH.FORBIDDEN", "over stdio there is no operator"


def test_an_instrument_that_is_gone_is_never_said_to_be_stopped(tmp_path: Path) -> None:
    """[CORE-077, OP-014]"""
    with ExitStack() as stack:
        instrument, server = serve(tmp_path, stack)
        given = options(tmp_path, instrument.link, "--arm", "--stop-grace-s", "1")
        lab = stack.enter_context(running("stdio", tmp_path, *given, targets=("scpi-psu",)))
        session = lab.open(device_id=PSU, mode="hardware")
        session.completed(OUTPUT, {"enabled": True})
        stop(server)
        receipt = lab.call("mhs.safety.estop", reason="smoke")
        assert (receipt["status"], code_of(receipt)) == ("failed", "MHS.SAFETY.SAFE_STATE_UNREACHED")
        assert receipt["output"]["latched"] is True
        assert receipt["output"]["safe_state_achieved"] is False


# The end.


def test_the_output_is_off_when_the_daemon_has_ended(drive: Drive, instrument: Instrument) -> None:
    """[TPT-009, MHSD-8-03]"""
    session = drive("--arm")
    session.write("output", {"voltage_v": 12})
    session.completed(OUTPUT, {"enabled": True})
    assert stop(session.lab.process) == 0
    assert instrument.shows()[:2] == (False, 0.0)


def test_a_command_in_flight_at_a_power_cut_leaves_the_instrument_safe(
    drive: Drive, instrument: Instrument
) -> None:
    """[CORE-172, MHSD-4-33]"""
    session = drive("--arm")
    session.completed(OUTPUT, {"enabled": True})
    begun = session.command(RAMP, {"to_v": 30, "rate_v_s": 0.5}, deadline_ms=500)
    assert begun["status"] == "running"
    session.lab.kill()
    assert instrument.shows()[0] is True, "nobody has told it"
    again = drive("--arm")
    assert instrument.shows()[:2] == (False, 0.0)
    final = again.get(begun["operation_id"])
    assert (final["status"], final["error"]["details"]["reason"]) == ("unknown", "endpoint_restarted")
    assert again.write("output", {"voltage_v": 1})["status"] == "completed"


# What a start needs.


def test_hardware_that_is_not_armed_is_only_looked_at(drive: Drive, instrument: Instrument) -> None:
    """[MHSD-4-03, MHSD-4-06]"""
    session = drive()
    before = instrument.log()
    for receipt in (
        session.write("output", {"voltage_v": 1}),
        session.command(OUTPUT, {"enabled": True}),
        session.command(OUTPUT, {"enabled": False}),
        session.command(RAMP, {"to_v": 1, "rate_v_s": 1}),
    ):
        assert (receipt["status"], code_of(receipt)) == ("rejected", "MHS.AUTH.HARDWARE_DISABLED")
    assert session.completed(SAMPLE, {})["output"] == {"voltage_v": 0.0, "current_a": 0.0}
    assert state(session)["enabled"] is False
    assert instrument.log() == before
    assert session.lab.call("mhs.safety.estop")["status"] == "completed", "stopping needs no arming"
    assert instrument.log()[len(before) :] == ["OUTP OFF", "VOLT 0"]


def test_arming_names_the_devices_that_it_means(drive: Drive, instrument: Instrument) -> None:
    """[MHSD-4-03]"""
    session = drive("--arm", "/bench/psu")
    assert session.write("output", {"voltage_v": 1})["status"] == "completed"


def start(tmp_path: Path, *arguments: str, runtime: str = "run") -> tuple[int, str]:
    """The exit code and the standard error of a start that must be refused."""
    done = subprocess.run(
        [str(MHSD), "scpi-psu", "--port", "0", *arguments],
        env={**os.environ, "MHSD_RUNTIME_DIR": str(tmp_path / runtime)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert done.stdout == b"", "nothing was ready"
    return done.returncode, done.stderr.decode()


def without(given: list[str], *names: str) -> list[str]:
    """The options but for these switches and, for `--option X`, but for the pairs that mention X."""
    kept: list[str] = []
    words = iter(given)
    for word in words:
        if word in ("--option", "--state-dir"):
            value = next(words)
            if word not in names and not any(f":{name}=" in value for name in names):
                kept += [word, value]
        elif word not in names:
            kept.append(word)
    return kept


@pytest.mark.parametrize(
    ("missing", "exit_code", "says"),
    [
        ("--allow-hardware", 4, "MHS.AUTH.HARDWARE_DISABLED"),
        ("link", 2, "option link is required on the hardware backend"),
        ("--state-dir", 2, "--state-dir"),
    ],
)
def test_a_start_that_lacks_something_is_refused_in_one_line(
    tmp_path: Path, instrument: Instrument, missing: str, exit_code: int, says: str
) -> None:
    """[MHSD-8-01]"""
    before = instrument.log()
    code, errors = start(tmp_path, *without(options(tmp_path, instrument.link, "--arm"), missing))
    assert code == exit_code
    assert says in errors
    assert len(errors.splitlines()) == 1
    assert instrument.log() == before


@pytest.mark.parametrize(
    ("changed", "exit_code", "says"),
    [
        ("/bench/psu:link=http://127.0.0.1:1", 2, "link"),
        ("/bench/psu:link=tcp://127.0.0.1", 2, "tcp://host:port"),
        ("/bench/psu:timeout_s=fast", 2, "timeout_s"),
        ("/bench/psu:volume=11", 2, "option volume is unknown"),
        ("/bench/dmm:link=tcp://127.0.0.1:1", 2, "no device at /bench/dmm is served"),
        ("/bench/psu:idn=EXAMPLE,BENCH-30-5,0002,", 1, "EXAMPLE,BENCH-30-5,0001,2.1"),
        ("/bench/psu:idn=(", 2, "no regular expression"),
        ("/bench/psu:link=tcp://127.0.0.1:1", 1, "no connection"),
    ],
)
def test_a_start_with_a_wrong_option_is_refused_in_one_line(
    tmp_path: Path, instrument: Instrument, changed: str, exit_code: int, says: str
) -> None:
    """[MHSD-8-01] Another instrument at this address is never driven."""
    before = instrument.log()
    code, errors = start(tmp_path, *options(tmp_path, instrument.link, "--arm", "--option", changed))
    assert (code, says in errors) == (exit_code, True), errors
    assert len(errors.splitlines()) == 1, errors
    assert instrument.log() == before


# One daemon at a link.


def test_a_link_is_driven_by_one_daemon_at_a_time(tmp_path: Path, instrument: Instrument) -> None:
    """[MHSD-8-01] However the second one spells it, and however the first one ends."""
    given = options(tmp_path, instrument.link, "--arm")
    with running("stdio", tmp_path, *given, targets=("scpi-psu",)) as lab:
        session = lab.open(device_id=PSU, mode="hardware")
        for host, runtime in (("127.0.0.1", "run"), ("LocalHost", "r2")):
            link = f"tcp://{host}:{instrument.port}"
            other = options(tmp_path, link, "--arm", "--state-dir", str(tmp_path / "state of another"))
            code, errors = start(tmp_path, *other, runtime=runtime)
            assert code == 1
            assert errors == f"mhsd: /bench/psu: {link} is in use by process {lab.process.pid}\n"
        assert session.write("output", {"voltage_v": 2})["status"] == "completed"
        lab.kill()
    with running("stdio", tmp_path, *given, targets=("scpi-psu",)) as lab:
        assert lab.open(device_id=PSU, mode="hardware").completed(SAMPLE, {})


def test_two_devices_do_not_share_a_link(tmp_path: Path, instrument: Instrument) -> None:
    """[MHSD-8-01]"""
    config = tmp_path / "mhsd.toml"
    device = f'target = "scpi-psu"\nbackend = "hardware"\noptions = {{ link = "{instrument.link}" }}\n'
    config.write_text(f'[[device]]\n{device}path = "/bench/one"\n[[device]]\n{device}path = "/bench/two"\n')
    done = subprocess.run(
        [str(MHSD), "--port", "0", "--allow-hardware", "--state-dir", str(tmp_path / "state")],
        env={**os.environ, "MHSD_RUNTIME_DIR": str(tmp_path / "run")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 2
    assert f"/bench/two: {instrument.link} is the link of /bench/one already" in done.stderr.decode()


def test_simulations_lock_nothing(tmp_path: Path) -> None:
    """[MHSD-1-08]"""
    with (
        running("stdio", tmp_path, targets=("scpi-psu",)) as one,
        running("stdio", tmp_path, targets=("scpi-psu",)) as other,
    ):
        for lab in (one, other):
            lab.open(device_id=PSU).completed(OUTPUT, {"enabled": True})


def test_two_of_one_kind_at_two_links_work_side_by_side(tmp_path: Path, instrument: Instrument) -> None:
    """[MHSD-1-08]"""
    with ExitStack() as stack:
        (tmp_path / "second").mkdir()
        second, _ = serve(tmp_path / "second", stack)
        given = options(tmp_path, instrument.link, "--arm")
        given += ["--option", f"/bench/other:link={second.link}"]
        targets = ("scpi-psu", "scpi-psu@/bench/other")
        lab: Lab = stack.enter_context(running("stdio", tmp_path, *given, targets=targets))
        other = "mhs://localhost:7400/bench/other"
        for device_id, volts in ((PSU, 3), (other, 4)):
            session = lab.open(device_id=device_id, mode="hardware")
            assert session.write("output", {"voltage_v": volts})["status"] == "completed"
        assert (instrument.shows()[1], second.shows()[1]) == (3.0, 4.0)
        receipt = lab.call("mhs.safety.estop")
        listed = {each["device_id"]: each["status"] for each in receipt["x-vendor"]["estop"]["devices"]}
        assert listed == {PSU: "completed", other: "completed"}
        assert (instrument.shows()[1], second.shows()[1]) == (0.0, 0.0)
