"""Sessions and commands of the MCP server against an endpoint that answers what a test tells it, on the test clock."""

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest
import trio
import trio.testing

from mhsd.aclient.client import AsyncClient
from mhsd.aclient.session import AsyncSession
from mhsd.base.errors import Fault
from mhsd.client.backoff import Backoff
from mhsd.client.documents import Receipt
from mhsd.client.errors import AnswerLost, MHSError, from_answer
from mhsd.mcp import calls
from mhsd.mcp.calls import Calls
from mhsd.mcp.host import Job, McpHost
from mhsd.mcp.leases import TTL_S, Leases
from mhsd.mcp.session import Call
from mhsd.mcp.tools import Tool, tool_of

DEVICE = "mhs://x/lab/thing"
OPERATION = "op_01ARYZ6S41000G40R40M30E209"
START_S = 1_800_000_000.0


def refusal(mhs_code: str) -> MHSError:
    return from_answer({"code": -32002, "message": "no", "data": {"mhs_code": mhs_code, "retryable": True}})


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class Endpoint:
    """Opens sessions and counts; commands are answered by `answer`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.name = "mhs-mcp"
        self.asked: list[tuple[str, Any]] = []
        self.heard: defaultdict[str, trio.Event] = defaultdict(trio.Event)
        """Set when a method has been asked for."""
        self.refused: dict[str, list[str]] = {}
        self.answer: Callable[[str, Any], Any] = lambda method, params: {}
        self.ttl_s = TTL_S
        self._opened = 0

    def backoff(self) -> Any:
        """Nothing is lost here that would be asked again."""

    def holds(self, session: AsyncSession) -> None:
        """The client that would tell the session of its end is never closed here."""

    def ulid(self) -> str:
        return "01ARYZ6S41000G40R40M30E209"

    async def hello(self) -> dict[str, Any]:
        return {"limits": {"session_max_ttl_s": self.ttl_s}}

    async def endpoint_time_s(self) -> float:
        return START_S + trio.current_time()

    async def call(self, method: str, params: Any = None, *, deadline_s: float | None = None) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked.append((method, params))
        self.heard[method].set()
        if self.refused.get(method):
            raise refusal(self.refused[method].pop(0))
        if method == "mhs.session.open":
            self._opened += 1
            expires = rfc3339(await self.endpoint_time_s() + params["ttl_s"])
            return {"session_id": f"mhs_s_{self._opened}", "expires_at": expires}
        if method == "mhs.session.heartbeat":
            return {"expires_at": rfc3339(await self.endpoint_time_s() + self.ttl_s)}
        found = self.answer(method, params)
        return await found if hasattr(found, "__await__") else found

    def methods(self) -> list[str]:
        return [method for method, _ in self.asked]


@pytest.fixture
def endpoint(nursery: trio.Nursery) -> Endpoint:
    return Endpoint(nursery)


@pytest.fixture
def leases(endpoint: Endpoint) -> Leases:
    return Leases(cast(AsyncClient, endpoint), lambda: "host")


# Sessions


async def test_a_session_covers_one_device_and_one_capability_or_nothing_but_reading(
    leases: Leases, endpoint: Endpoint, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-036."""
    first = await leases.for_command(DEVICE, "cap.a.v1", "simulated")
    assert await leases.for_command(DEVICE, "cap.a.v1", "simulated") is first
    assert await leases.for_command(DEVICE, "cap.b.v1", "simulated") is not first
    await leases.for_reading(DEVICE, "simulated")
    opened = [params for method, params in endpoint.asked if method == "mhs.session.open"]
    assert [params["capabilities"] for params in opened] == [["cap.a.v1"], ["cap.b.v1"], []]
    assert {params["ttl_s"] for params in opened} == {TTL_S}
    assert opened[0]["principal"] == {"kind": "agent", "id": "agent:mcp/host"}


async def test_a_heartbeat_goes_before_a_call_when_less_than_a_third_of_the_life_is_left(
    leases: Leases, endpoint: Endpoint, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-036."""
    lease = await leases.for_command(DEVICE, "cap.a.v1", "simulated")
    await trio.sleep(TTL_S * 0.66)
    assert await leases.for_command(DEVICE, "cap.a.v1", "simulated") is lease
    assert "mhs.session.heartbeat" not in endpoint.methods()
    await trio.sleep(TTL_S * 0.02)
    assert await leases.for_command(DEVICE, "cap.a.v1", "simulated") is lease
    assert endpoint.methods().count("mhs.session.heartbeat") == 1
    await trio.sleep(TTL_S * 0.66)
    await leases.for_command(DEVICE, "cap.a.v1", "simulated")
    assert endpoint.methods().count("mhs.session.heartbeat") == 1


@pytest.mark.parametrize("code", ["MHS.SESSION.EXPIRED", "MHS.SESSION.UNKNOWN", "MHS.SESSION.CLOSED"])
async def test_a_session_that_has_ended_is_replaced(
    leases: Leases, endpoint: Endpoint, code: str, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-036."""
    lease = await leases.for_command(DEVICE, "cap.a.v1", "simulated")
    endpoint.refused["mhs.session.heartbeat"] = [code]
    await trio.sleep(TTL_S * 2)
    assert await leases.for_command(DEVICE, "cap.a.v1", "simulated") is not lease
    assert leases.note(lease, refusal(code))
    assert not leases.note(lease, refusal("MHS.DEVICE.BUSY"))


async def test_a_read_is_asked_once_more_in_a_new_session_and_not_a_third_time(
    leases: Leases, endpoint: Endpoint, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-036."""

    async def ask(session: AsyncSession) -> dict[str, Any]:
        return await session.call("mhs.resource.read", {"resource_id": "r"})

    endpoint.refused["mhs.resource.read"] = ["MHS.SESSION.EXPIRED"]
    assert await leases.reading(DEVICE, "simulated", ask) == {}
    endpoint.refused["mhs.resource.read"] = ["MHS.SESSION.EXPIRED", "MHS.SESSION.EXPIRED"]
    with pytest.raises(MHSError, match="EXPIRED"):
        await leases.reading(DEVICE, "simulated", ask)
    endpoint.refused["mhs.resource.read"] = ["MHS.RESOURCE.UNKNOWN"]
    before = endpoint.methods().count("mhs.resource.read")
    with pytest.raises(MHSError, match="UNKNOWN"):
        await leases.reading(DEVICE, "simulated", ask)
    assert endpoint.methods().count("mhs.resource.read") == before + 1


async def test_only_own_sessions_are_named(leases: Leases, autojump_clock: trio.testing.MockClock) -> None:
    """TPT-048."""
    lease = await leases.for_command(DEVICE, "cap.a.v1", "simulated")
    assert leases.own("mhs_s_1") is lease
    assert leases.any("mhs_s_1", DEVICE) is lease
    with pytest.raises(Fault, match="no session"):
        leases.own("mhs_s_2")
    assert leases.any("mhs_s_2", DEVICE).session.session_id == "mhs_s_2"


async def test_all_sessions_are_closed_though_one_refuses(
    leases: Leases, endpoint: Endpoint, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-008."""
    for name in ("cap.a.v1", "cap.b.v1"):
        await leases.for_command(DEVICE, name, "simulated")
    endpoint.refused["mhs.session.close"] = ["MHS.TRANSPORT.UNAVAILABLE"]
    await leases.close()
    assert endpoint.methods().count("mhs.session.close") == 2
    assert leases.live() == []


# Commands


def tool() -> Tool:
    binding = {
        "capability_id": "cap.a.v1",
        "resource": "r",
        "input_schema": {"type": "object", "additionalProperties": False},
        "long_running": True,
    }
    manifest = {"device_id": DEVICE, "mode": "simulated"}
    return tool_of("mhs__lab_thing__a", manifest, binding, None, max_deadline_ms=600_000)


def receipt(status: str, **more: Any) -> Receipt:
    return Receipt(
        {"status": status, "device_id": DEVICE, "capability_id": "cap.a.v1", "receipt_id": status, **more}
    )


class Commands:
    """One call of the tool, and what the endpoint answers about it."""

    def __init__(self, endpoint: Endpoint, leases: Leases, nursery: trio.Nursery) -> None:
        self.calls = Calls(cast(AsyncClient, endpoint), leases, nursery, external_sessions=False)
        self.endpoint = endpoint
        self.job = Job(Call(1, "tools/call", {"name": "mhs__lab_thing__a"}), cast(McpHost, None))
        self.ended = trio.Event()
        self.found: list[Receipt | None] = []
        self.on_cancel: Any = receipt("cancelled", operation_id=OPERATION)
        self.command_answers: Any = None
        endpoint.answer = self._answer

    def _answer(self, method: str, params: Any) -> Any:
        return {
            "mhs.command": self._command,
            "mhs.operations.get": self._get,
            "mhs.operations.cancel": self._cancel,
        }[method]()

    async def _command(self) -> Any:
        await self.ended.wait()
        if isinstance(self.command_answers, Exception):
            raise self.command_answers
        return self.command_answers

    async def _get(self) -> Any:
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if found is None:
            raise refusal("MHS.OPERATION.UNKNOWN")
        return found

    async def _cancel(self) -> Any:
        if isinstance(self.on_cancel, Exception):
            raise self.on_cancel
        return self.on_cancel

    async def result(self, **arguments: Any) -> Any:
        return (await self.calls.call(self.job, tool(), arguments))["structuredContent"]["receipt"]


@pytest.fixture
def commands(endpoint: Endpoint, leases: Leases, nursery: trio.Nursery) -> Commands:
    return Commands(endpoint, leases, nursery)


async def _after(heard: trio.Event, action: Callable[[], None]) -> None:
    await heard.wait()
    action()


async def test_a_cancellation_waits_for_the_operation_and_answers_its_receipt(
    commands: Commands, endpoint: Endpoint, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-041."""
    commands.found = [None, None, receipt("running", operation_id=OPERATION)]
    nursery.start_soon(_after, endpoint.heard["mhs.command"], commands.job.cancelled.set)
    assert (await commands.result())["status"] == "cancelled"
    assert endpoint.methods().count("mhs.command") == 1
    assert endpoint.methods().count("mhs.operations.cancel") == 1


async def test_an_accepted_receipt_without_an_operation_is_answered_and_the_cancellation_recorded(
    commands: Commands, endpoint: Endpoint, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-041."""
    commands.found = [receipt("accepted")]
    nursery.start_soon(_after, endpoint.heard["mhs.command"], commands.job.cancelled.set)
    assert (await commands.result())["status"] == "accepted"
    assert "mhs.operations.cancel" not in endpoint.methods()
    commands.found = [receipt("running", operation_id=OPERATION)]
    await endpoint.heard["mhs.operations.cancel"].wait()


async def test_a_cancellation_that_fails_leaves_the_commands_own_answer(
    commands: Commands, endpoint: Endpoint, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-041."""
    commands.found = [receipt("running", operation_id=OPERATION)]
    commands.on_cancel = refusal("MHS.AUTH.FORBIDDEN")
    commands.command_answers = receipt("completed", operation_id=OPERATION)
    nursery.start_soon(_after, endpoint.heard["mhs.command"], commands.job.cancelled.set)
    nursery.start_soon(_after, endpoint.heard["mhs.operations.cancel"], commands.ended.set)
    assert (await commands.result())["status"] == "completed"


async def test_a_cancellation_on_its_way_is_waited_for_when_the_deadline_answers_running(
    commands: Commands, endpoint: Endpoint, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-041."""
    commands.found = [None]
    commands.command_answers = receipt("running", operation_id=OPERATION)

    def cancel_and_answer() -> None:
        commands.job.cancelled.set()
        commands.ended.set()
        commands.found = [None, None, receipt("running", operation_id=OPERATION)]

    nursery.start_soon(_after, endpoint.heard["mhs.command"], cancel_and_answer)
    assert (await commands.result())["status"] == "cancelled"


async def test_an_endpoint_that_never_answers_is_unknown_a_little_after_the_deadline(
    commands: Commands, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-042."""
    began_s = trio.current_time()
    with pytest.raises(Fault) as problem:
        await commands.result(deadline_ms=5_000)
    assert problem.value.mhs_code == "MHS.OUTCOME.TIMEOUT"
    assert (problem.value.details or {})["command_id"] == "01ARYZ6S41000G40R40M30E209"
    assert trio.current_time() - began_s == pytest.approx(5 + calls.MARGIN_S)


async def test_a_session_that_never_opens_means_that_nothing_was_sent(
    commands: Commands,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """TPT-042."""

    async def never(*args: Any) -> Any:
        await trio.sleep_forever()

    monkeypatch.setattr(endpoint, "hello", never)
    with pytest.raises(Fault) as problem:
        await commands.result(deadline_ms=5_000)
    assert problem.value.mhs_code == "MHS.TRANSPORT.UNAVAILABLE"
    assert "mhs.command" not in endpoint.methods()


@pytest.mark.parametrize("code", ["MHS.SESSION.EXPIRED", "MHS.SESSION.UNKNOWN", "MHS.SESSION.CLOSED"])
async def test_a_command_is_never_sent_a_second_time(
    commands: Commands, endpoint: Endpoint, leases: Leases, code: str, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-036."""
    commands.command_answers = refusal(code)
    commands.ended.set()
    with pytest.raises(MHSError, match=code):
        await commands.result()
    assert endpoint.methods().count("mhs.command") == 1
    assert leases.live() == []


async def test_a_command_whose_answer_and_session_are_lost_is_looked_up_in_another_one(
    commands: Commands, endpoint: Endpoint, leases: Leases, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-062."""
    commands.command_answers = AnswerLost("MHS.OUTCOME.UNKNOWN", "the connection broke")
    commands.ended.set()
    endpoint.refused["mhs.operations.get"] = ["MHS.SESSION.UNKNOWN"]
    commands.found = [receipt("unknown", operation_id=OPERATION)]
    assert (await commands.result())["status"] == "unknown"
    assert endpoint.methods().count("mhs.command") == 1
    assert [lease.capability_id for lease in leases.live()] == [None]


async def test_a_command_that_nobody_knows_of_is_said_to_be_unknown(
    commands: Commands, endpoint: Endpoint, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-062."""
    commands.command_answers = AnswerLost("MHS.OUTCOME.UNKNOWN", "the connection broke")
    commands.ended.set()
    endpoint.refused["mhs.operations.get"] = ["MHS.SESSION.UNKNOWN"]
    commands.found = [None]
    with pytest.raises(MHSError, match=r"OUTCOME\.UNKNOWN"):
        await commands.result()
    assert endpoint.methods().count("mhs.command") == 1


async def test_an_endpoint_that_stays_away_is_not_waited_for_to_the_deadline(
    commands: Commands,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """TPT-062."""
    commands.command_answers = AnswerLost("MHS.OUTCOME.UNKNOWN", "the connection broke")
    commands.ended.set()
    monkeypatch.setattr(endpoint, "backoff", Backoff)
    endpoint.refused["mhs.operations.get"] = ["MHS.TRANSPORT.UNAVAILABLE"] * 1000
    began_s = trio.current_time()
    with pytest.raises(MHSError, match=r"OUTCOME\.UNKNOWN") as problem:
        await commands.result(deadline_ms=60_000)
    assert trio.current_time() - began_s == pytest.approx(calls.LOOK_UP_S)
    assert problem.value.details["command_id"] == "01ARYZ6S41000G40R40M30E209"


async def test_an_answer_that_is_lost_shortly_before_the_deadline_is_said_to_be_unknown_at_the_deadline(
    commands: Commands,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """TPT-042, TPT-062."""
    commands.command_answers = AnswerLost("MHS.OUTCOME.UNKNOWN", "the connection broke")
    commands.ended.set()
    monkeypatch.setattr(endpoint, "backoff", Backoff)
    endpoint.refused["mhs.operations.get"] = ["MHS.TRANSPORT.UNAVAILABLE"] * 1000
    began_s = trio.current_time()
    with pytest.raises(MHSError, match=r"OUTCOME\.UNKNOWN"):
        await commands.result(deadline_ms=1_000)
    assert trio.current_time() - began_s == pytest.approx(1 + calls.MARGIN_S)


async def test_a_recorded_cancellation_ends_when_the_command_can_begin_no_more(
    commands: Commands, endpoint: Endpoint, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """TPT-041."""
    commands.found = [receipt("accepted")]
    nursery.start_soon(_after, endpoint.heard["mhs.command"], commands.job.cancelled.set)
    assert (await commands.result())["status"] == "accepted"
    await trio.sleep(600)
    asked = endpoint.methods().count("mhs.operations.get")
    await trio.sleep(600)
    assert endpoint.methods().count("mhs.operations.get") == asked
