"""A session of the Trio client: lost answers, operations that nobody waits for, and signs of life."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mhsd.aclient import AsyncClient, AsyncSession
from mhsd.aclient.background import background
from mhsd.aclient.events import EventHub
from mhsd.aclient.session import UNSUBSCRIBE_S
from mhsd.aclient.transport import EventsWanted, Greet
from mhsd.client.errors import MHSError, OutcomeUnknown, SessionError
from mhsd.client.transport import Answer, Lost, NotSent, Over

DEVICE = "mhs://localhost:7400/lab/one"
HELLO = {
    "mhs_version": "1.0",
    "devices": [{"device_id": DEVICE, "mode": "simulated", "display_name": "One"}],
    "limits": {"session_max_ttl_s": 300},
}
Reply = Callable[[dict[str, Any]], Any]


class Endpoint:
    """A transport with the endpoint in it: answers from a table, and notes what was asked when."""

    name = "fake"
    url = "fake:"
    paced = False

    def __init__(self) -> None:
        self.table: dict[str, Reply] = {
            "mhs.hello": lambda _: HELLO,
            "mhs.session.open": lambda _: {"session_id": "mhs_s_1", "mode": "simulated"},
            "mhs.session.heartbeat": lambda _: {},
            "mhs.session.close": lambda _: {"summary": {}},
        }
        self.asked: list[tuple[float, str, dict[str, Any]]] = []
        self.delays_s: dict[str, float] = {}

    async def greet(self, greet: Greet) -> None:
        await greet(self.exchange)

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        await trio.lowlevel.checkpoint()
        request = json.loads(body)
        self.asked.append((trio.current_time(), request["method"], request["params"]))
        await trio.sleep(self.delays_s.get(request["method"], 0))
        reply = self.table[request["method"]](request["params"])
        if isinstance(reply, str):
            return Answer({"id": request_id, "error": {"message": "no", "data": {"mhs_code": reply}}})
        if isinstance(reply, Exception):
            raise reply
        return Answer({"id": request_id, "result": reply})

    async def bring_events(self, wanted: EventsWanted) -> None:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def times(self, method: str) -> list[float]:
        """When a method was called."""
        return [mono_s for mono_s, asked, _ in self.asked if asked == method]

    def params(self, method: str) -> list[dict[str, Any]]:
        return [params for _, asked, params in self.asked if asked == method]


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
async def client(endpoint: Endpoint) -> AsyncIterator[AsyncClient]:
    async with background() as nursery:
        yield AsyncClient(endpoint, nursery, EventHub(), attempts=3)


@pytest.fixture
async def session(client: AsyncClient) -> AsyncSession:
    return await client.session(ttl_s=600)


def receipt(status: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "operation_id": "op_1", "device_id": DEVICE, "session_id": "mhs_s_1", **more}


async def test_a_session_asks_for_no_more_than_the_endpoint_allows(
    endpoint: Endpoint, session: AsyncSession
) -> None:
    (params,) = endpoint.params("mhs.session.open")
    assert (params["ttl_s"], params["device_ids"], params["capabilities"]) == (300, [DEVICE], ["*"])
    assert params["mode"] == session.mode == "simulated"
    assert params["client_info"]["transport"] == "fake"


async def test_a_lost_answer_is_looked_up_until_the_endpoint_can_be_reached(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    """[TPT-062, TPT-064] The command is sent once."""
    found = [NotSent("refused"), Lost("cut"), Lost("cut"), receipt("completed")]
    endpoint.table["mhs.command"] = lambda _: Lost("cut")
    endpoint.table["mhs.operations.get"] = lambda _: found.pop(0)
    done = await session.invoke("cap.world.step.v1", {"ticks": 1}, command_id="01J8ZQ3V6Y7M2N4P6R8S0T0001")
    assert done.status == "completed"
    assert len(endpoint.times("mhs.command")) == 1
    asked = endpoint.params("mhs.operations.get")
    assert {params["command_id"] for params in asked} == {"01J8ZQ3V6Y7M2N4P6R8S0T0001"}
    first, *_, last = endpoint.times("mhs.operations.get")
    assert last > first, "there was a pause between them"


async def test_what_cannot_be_looked_up_is_unknown(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    """[TPT-062, TPT-064] Within the attempts that the client has declared."""
    endpoint.table["mhs.command"] = lambda _: Lost("cut")
    endpoint.table["mhs.operations.get"] = lambda _: NotSent("refused")
    with pytest.raises(OutcomeUnknown) as unknown:
        await session.invoke("cap.world.step.v1", {"ticks": 1})
    assert unknown.value.details["looked_up"] == "MHS.TRANSPORT.UNAVAILABLE"
    assert len(endpoint.times("mhs.operations.get")) == 4
    assert len(endpoint.times("mhs.command")) == 1


async def test_an_operation_keeps_its_session_alive_although_nobody_waits_for_it(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    """[MHSD-4-29] And lets it go when it has ended."""
    status = ["running"]
    endpoint.table["mhs.command"] = lambda _: receipt("running")
    endpoint.table["mhs.operations.get"] = lambda _: receipt(status[0])
    begin = trio.current_time()
    await session.invoke("cap.motion.convey.v1", {})
    await trio.sleep(250)
    status[0] = "completed"
    await trio.sleep(1000)
    beats = [mono_s - begin for mono_s in endpoint.times("mhs.session.heartbeat")]
    assert beats == pytest.approx([100, 200, 300])


async def test_a_session_that_somebody_else_opened_tells_how_long_it_lives(
    endpoint: Endpoint, client: AsyncClient, autojump_clock: MockClock
) -> None:
    """[MHSD-4-29]"""
    now = "2026-10-20T07:45:00.000Z"
    endpoint.table["mhs.hello"] = lambda _: {**HELLO, "time": {"now": now}}
    endpoint.table["mhs.session.heartbeat"] = lambda _: {"expires_at": "2026-10-20T07:46:00.000Z"}
    other = AsyncSession(client, "mhs_s_7", [DEVICE])
    begin = trio.current_time()
    async with other.kept_alive():
        await trio.sleep(50)
    beats = [mono_s - begin for mono_s in endpoint.times("mhs.session.heartbeat")]
    assert beats == pytest.approx([0, 20, 40], abs=0.01)
    other.forget()


async def test_a_subscription_keeps_its_session_alive(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    endpoint.table["mhs.subscribe"] = lambda _: {"subscription_id": "sub_1", "seq_start": 1}
    endpoint.table["mhs.unsubscribe"] = lambda _: {"seq_end": 0, "delivered": 0, "dropped": 0}
    async with await session.subscribe("state"):
        await trio.sleep(250)
    await trio.sleep(1000)
    assert len(endpoint.times("mhs.session.heartbeat")) == 2
    assert endpoint.params("mhs.unsubscribe") == [{"session_id": "mhs_s_1", "subscription_id": "sub_1"}]


async def test_a_session_that_is_refused_ends_its_subscriptions(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    endpoint.table["mhs.subscribe"] = lambda _: {"subscription_id": "sub_1", "seq_start": 1}
    endpoint.table["mhs.session.heartbeat"] = lambda _: "MHS.SESSION.EXPIRED"
    subscription = await session.subscribe("state")
    with pytest.raises(SessionError):
        await anext(subscription)
    assert await subscription.close() == {}
    assert endpoint.params("mhs.unsubscribe") == []


@pytest.mark.parametrize(
    ("elsewhere", "status"), [(receipt("unknown"), "unknown"), ("MHS.OPERATION.UNKNOWN", None)]
)
async def test_a_command_that_lost_its_answer_and_its_session_is_looked_up_in_another(
    endpoint: Endpoint, session: AsyncSession, elsewhere: Any, status: str | None
) -> None:
    """[TPT-062] As when the endpoint was started again."""
    endpoint.table["mhs.session.open"] = lambda _: {"session_id": "mhs_s_2"}
    endpoint.table["mhs.command"] = lambda _: Lost("cut")
    endpoint.table["mhs.operations.get"] = lambda asked: (
        "MHS.SESSION.UNKNOWN" if asked["session_id"] == "mhs_s_1" else elsewhere
    )
    if status is None:
        with pytest.raises(OutcomeUnknown) as unknown:
            await session.invoke("cap.x.v1", {})
        assert unknown.value.details["looked_up"] == "MHS.SESSION.UNKNOWN"
    else:
        assert (await session.invoke("cap.x.v1", {})).status == status
    assert len(endpoint.params("mhs.command")) == 1
    assert len(endpoint.params("mhs.session.open")) == 2


@pytest.mark.parametrize("answer", [NotSent("refused"), Lost("cut"), "MHS.OPERATION.UNKNOWN"])
async def test_what_became_of_an_operation_is_unknown_where_it_cannot_be_asked_for(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock, answer: Any
) -> None:
    """[TPT-062]"""
    endpoint.table["mhs.operations.get"] = lambda _: answer
    with pytest.raises(OutcomeUnknown, match="operation op_1") as unknown:
        await session.wait(receipt("running", command_id="c_1"))
    ids = {"operation_id": "op_1", "command_id": "c_1", "device_id": DEVICE, "session_id": "mhs_s_1"}
    assert unknown.value.details.items() >= ids.items()


async def test_a_client_that_is_closed_is_not_asked_again(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    endpoint.table["mhs.operations.get"] = lambda _: Over("the client is closed")
    with pytest.raises(OutcomeUnknown, match="the client is closed"):
        await session.wait(receipt("running"))
    assert len(endpoint.times("mhs.operations.get")) == 1


async def test_an_operation_is_waited_for_beyond_its_session(
    endpoint: Endpoint, client: AsyncClient, autojump_clock: MockClock
) -> None:
    """[TPT-061]"""
    answers: list[Any] = ["MHS.SESSION.EXPIRED", receipt("running"), receipt("completed")]
    endpoint.table["mhs.operations.get"] = lambda _: answers.pop(0)
    final = await client.wait(receipt("running", session_id="mhs_s_0"))
    assert final.status == "completed"
    assert [params["session_id"] for params in endpoint.params("mhs.operations.get")] == [
        "mhs_s_0",
        "mhs_s_1",
        "mhs_s_1",
    ]
    assert endpoint.params("mhs.session.open")[0]["capabilities"] == []
    assert len(endpoint.times("mhs.session.close")) == 1


async def test_an_unknown_operation_is_an_error_and_an_unknown_command_is_none(
    endpoint: Endpoint, session: AsyncSession
) -> None:
    endpoint.table["mhs.operations.get"] = lambda _: "MHS.OPERATION.UNKNOWN"
    assert await session.look_up("01J8ZQ3V6Y7M2N4P6R8S0T0001") is None
    with pytest.raises(MHSError, match="knows no operation op_1"):
        await session.operation("op_1")
    with pytest.raises(ValueError, match="belongs to nothing"):
        await session.cancel({"status": "rejected"})


async def test_leaving_a_session_that_is_over_is_no_failure(endpoint: Endpoint, client: AsyncClient) -> None:
    endpoint.table["mhs.session.close"] = lambda _: "MHS.SESSION.EXPIRED"
    async with client.session():
        pass
    endpoint.table["mhs.session.close"] = lambda _: Lost("cut")

    async def leave() -> None:
        async with client.session():
            pass

    with pytest.raises(OutcomeUnknown):
        await leave()


async def test_a_device_is_meant_by_any_of_its_names(endpoint: Endpoint, client: AsyncClient) -> None:
    endpoint.table["mhs.safety.estop"] = lambda _: receipt("completed")
    for name in (None, DEVICE, "/lab/one", "one", "One"):
        assert await client.find(name) == DEVICE
        await client.estop("why", device_id=name)
    sent = endpoint.params("mhs.safety.estop")
    assert sent[0] == {"reason": "why"}
    assert sent[1:] == [{"reason": "why", "device_id": DEVICE}] * 4
    with pytest.raises(MHSError, match="names 0 devices"):
        await client.estop(device_id="two")


async def test_a_subscription_is_over_although_the_answer_that_says_so_was_lost(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    """[TPT-062] Asked again, the endpoint does not know it any more."""
    endpoint.table["mhs.subscribe"] = lambda _: {"subscription_id": "sub_1", "seq_start": 1}
    answers = [Lost("cut"), "MHS.RESOURCE.UNKNOWN"]
    endpoint.table["mhs.unsubscribe"] = lambda _: answers.pop(0)
    async with session.subscribe("state") as subscription:
        pass
    assert (answers, await subscription.close()) == ([], {})
    assert len(endpoint.times("mhs.unsubscribe")) == 2


async def test_an_endpoint_that_hangs_holds_nobody_up_who_leaves_a_subscription(
    endpoint: Endpoint, session: AsyncSession, autojump_clock: MockClock
) -> None:
    """It ends with its session, which is what matters."""
    endpoint.table["mhs.subscribe"] = lambda _: {"subscription_id": "sub_1", "seq_start": 1}
    endpoint.table["mhs.unsubscribe"] = lambda _: {}
    endpoint.delays_s["mhs.unsubscribe"] = 3600
    begin = trio.current_time()
    with trio.move_on_after(1):
        async with session.subscribe("state"):
            await trio.sleep_forever()
    assert trio.current_time() - begin == pytest.approx(1 + UNSUBSCRIBE_S)


async def test_a_session_that_comes_when_nobody_wants_it_any_more_is_closed_again(
    endpoint: Endpoint, client: AsyncClient, autojump_clock: MockClock
) -> None:
    """[SESS-006] It would be in the way of others for as long as it lives."""
    endpoint.delays_s["mhs.session.open"] = 5
    with trio.move_on_after(1) as given_up:
        await client.session()
    assert given_up.cancelled_caught
    assert endpoint.times("mhs.session.close") == []
    await trio.sleep(10)
    assert endpoint.params("mhs.session.close") == [{"session_id": "mhs_s_1"}]


async def test_a_session_that_is_refused_says_why(endpoint: Endpoint, client: AsyncClient) -> None:
    endpoint.table["mhs.session.open"] = lambda _: "MHS.LIMIT.SESSION_LIMIT"
    with pytest.raises(MHSError) as refused:
        await client.session()
    assert refused.value.mhs_code == "MHS.LIMIT.SESSION_LIMIT"
