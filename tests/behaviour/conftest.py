"""The daemons of the behaviour tests: one shared by all tests of a binding, fresh ones where a test needs its own.

A test that uses the shared one leaves the device as it found it: door closed, nothing running, no fault pending.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, RpcError, Session, running

UNHURRIED = ("--rate-per-s", "100000", "--rate-burst", "100000", "--log-level", "warning")
"""Tests send as fast as they can; the rate has tests of its own."""

Start = Callable[..., Lab]

BENCH_TARGET = str(Path(__file__).parent / "bench")
BENCH = "mhs://localhost:7400/test/bench"
"""A device for what the conveyor cannot show; its manifest says what it has."""


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """The shared daemon of a binding, started when it is first asked for."""
    labs: dict[str, Lab] = {}
    with ExitStack() as stack:

        def lab_of(binding: str) -> Lab:
            if binding not in labs:
                directory = tmp_path_factory.mktemp(f"shared-{binding}")
                labs[binding] = stack.enter_context(running(binding, directory, *UNHURRIED))
            return labs[binding]

        yield lab_of


OVER_WEBSOCKET = frozenset(
    {
        "test_bindings_alike",
        "test_estop",
        "test_events",
        "test_shutdown",
        "test_stop_scanner",
        "test_wire_hello",
        "test_wire_json",
        "test_wire_requests",
    }
)
"""Where what is tested depends on how messages travel; the other files would only cost their time once more."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for a binding over each; a test that names its own is left alone."""
    names_its_own = any(
        "binding" in mark.args[0] for mark in metafunc.definition.iter_markers(name="parametrize")
    )
    if "binding" in metafunc.fixturenames and not names_its_own:
        has_websocket = metafunc.module.__name__.rpartition(".")[2] in OVER_WEBSOCKET
        metafunc.parametrize("binding", ["stdio", "http", *["ws"] * has_websocket], indirect=True)


@pytest.fixture
def binding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def lab(binding: str, shared: Callable[[str], Lab]) -> Lab:
    """The shared daemon, over each binding in turn."""
    return shared(binding)


@pytest.fixture(scope="session")
def shared_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """As `shared`, for an endpoint that serves the conveyor and the bench."""
    labs: dict[str, Lab] = {}
    with ExitStack() as stack:

        def lab_of(binding: str) -> Lab:
            if binding not in labs:
                directory = tmp_path_factory.mktemp(f"pair-{binding}")
                targets = ("conveyor-workcell", BENCH_TARGET)
                labs[binding] = stack.enter_context(running(binding, directory, *UNHURRIED, targets=targets))
            return labs[binding]

        yield lab_of


@pytest.fixture
def pair(binding: str, shared_pair: Callable[[str], Lab]) -> Lab:
    """The shared daemon with two devices, over each binding in turn."""
    return shared_pair(binding)


PRESS_TARGET = str(Path(__file__).parent / "press")
"""A device that misbehaves as it is told; its driver says how."""


@pytest.fixture(scope="session")
def shared_press(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """As `shared`, for a press and a conveyor, and with little patience for what does not end."""
    labs: dict[str, Lab] = {}
    with ExitStack() as stack:

        def lab_of(binding: str) -> Lab:
            if binding not in labs:
                directory = tmp_path_factory.mktemp(f"press-{binding}")
                targets = (PRESS_TARGET, "conveyor-workcell")
                options = (*UNHURRIED, "--stop-grace-s", "0.3")
                labs[binding] = stack.enter_context(running(binding, directory, *options, targets=targets))
            return labs[binding]

        yield lab_of


@pytest.fixture
def press_lab(binding: str, shared_press: Callable[[str], Lab]) -> Lab:
    """The shared daemon with a press, over each binding in turn; whoever uses it sets it right again."""
    return shared_press(binding)


LIMITS = {
    "max_request_bytes": 16_384,
    "max_batch": 2,
    "max_sessions": 3,
    "max_open_operations": 1,
    "max_export_receipts": 4,
    "session_max_ttl_s": 60,
    "max_command_deadline_ms": 90_000,
    "receipt_retention_days": 2,
    "max_json_items": 900,
}
"""What the limited daemon advertises, each well below its default."""
LIMIT_OPTIONS = {
    "max_export_receipts": "--export-page",
    "receipt_retention_days": "--retention-days",
}
SECOND = "mhs://localhost:7400/lab/second"


@pytest.fixture(scope="session")
def shared_limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """As `shared`, for two conveyors behind small limits."""
    labs: dict[str, Lab] = {}
    with ExitStack() as stack:

        def lab_of(binding: str) -> Lab:
            if binding not in labs:
                directory = tmp_path_factory.mktemp(f"limited-{binding}")
                options = [
                    word
                    for name, limit in LIMITS.items()
                    for word in (LIMIT_OPTIONS.get(name, "--" + name.replace("_", "-")), str(limit))
                ]
                targets = ("conveyor-workcell", "conveyor-workcell@/lab/second")
                labs[binding] = stack.enter_context(
                    running(binding, directory, *UNHURRIED, *options, targets=targets)
                )
            return labs[binding]

        yield lab_of


@pytest.fixture
def limited(binding: str, shared_limited: Callable[[str], Lab]) -> Lab:
    """The shared daemon with small limits; whoever opens a session there closes it."""
    return shared_limited(binding)


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    """A session with every capability on the shared daemon."""
    session = lab.open()
    yield session
    try:
        session.close()
    except RpcError as error:
        if error.code not in ("MHS.SESSION.CLOSED", "MHS.SESSION.EXPIRED"):
            raise


@pytest.fixture
def fresh(binding: str, tmp_path: Path) -> Iterator[Start]:
    """Start daemons of the test's own; they are stopped at its end."""
    with ExitStack() as stack:

        def start(*options: str, **more: Any) -> Lab:
            return stack.enter_context(running(binding, tmp_path, *UNHURRIED, *options, **more))

        yield start
