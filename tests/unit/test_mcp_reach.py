"""How the tools of an endpoint become known, stay known while it is away, and are told of when they change."""

from typing import Any, cast

import pytest
import trio
import trio.testing

from mhsd.aclient.client import AsyncClient
from mhsd.base.errors import Fault
from mhsd.client.errors import AuthError, MHSError, error
from mhsd.mcp.policy import Policy
from mhsd.mcp.reach import ANSWER_S, Reach
from mhsd.mcp.tools import ProjectionError


def manifest(device_id: str, *capabilities: str) -> dict[str, Any]:
    return {
        "device_id": device_id,
        "mode": "simulated",
        "bindings": [
            {"capability_id": each, "resource": "r", "input_schema": {"type": "object"}}
            for each in capabilities
        ],
    }


class Endpoint:
    """Tells its manifests, unless something else is to be raised first."""

    name = "mhs-mcp"

    def __init__(self, *manifests: dict[str, Any]) -> None:
        self.manifests = {each["device_id"]: each for each in manifests}
        self.problem: Exception | None = None
        """Raised in place of an answer; a KeyError stands for an answer that lacks what is looked for."""
        self.granted: list[str] | None = None
        self.is_silent = False
        self.class_answer: dict[str, Any] | None = None

    async def hello(self) -> dict[str, Any]:
        return {"endpoint_id": "mhs://x", "limits": {}}

    async def call(self, method: str, params: Any = None) -> Any:
        await trio.lowlevel.checkpoint()
        if self.is_silent:
            await trio.sleep_forever()
        if self.problem is not None:
            raise self.problem
        return {
            "mhs.devices.list": lambda: {"devices": [{"device_id": each} for each in self.manifests]},
            "mhs.devices.get": lambda: self.manifests[params["device_id"]],
            "mhs.schema.get": lambda: self._no_class(),
            "mhs.session.open": lambda: self._session(params["device_ids"][0]),
            "mhs.session.close": dict,
        }[method]()

    def _no_class(self) -> Any:
        if self.class_answer is not None:
            return self.class_answer
        raise error("MHS.PROTOCOL.INVALID_PARAMS", "no such class")

    def _session(self, device_id: str) -> Any:
        if self.granted == []:
            refusal = error("MHS.AUTH.FORBIDDEN", "nothing is granted")
            refusal.mhs_code = "MHS.SESSION.CAPABILITY_NOT_GRANTED"
            raise refusal
        granted = [binding["capability_id"] for binding in self.manifests[device_id]["bindings"]]
        wanted = granted if self.granted is None else self.granted
        return {
            "session_id": "mhs_s_1",
            "granted": [{"device_id": device_id, "capability_id": each} for each in wanted],
        }


def reach_of(endpoint: Endpoint, *, url: str | None = "http://x", policy: Policy | None = None) -> Reach:
    return Reach(cast(AsyncClient, endpoint), policy or Policy(), url=url)


def names(reach: Reach) -> list[str]:
    return list(reach.projection.tools)


AWAY = error("MHS.TRANSPORT.UNAVAILABLE", "nobody listens")
A = "mhs://x/lab/a"


async def test_what_is_granted_becomes_a_tool() -> None:
    """TPT-046, TPT-060."""
    endpoint = Endpoint(manifest(A, "cap.one.v1", "cap.two.v1"))
    reach = reach_of(endpoint)
    await reach.load()
    assert names(reach) == ["mhs__lab_a__one", "mhs__lab_a__two"]
    endpoint.granted = ["cap.two.v1"]
    await reach.load()
    assert names(reach) == ["mhs__lab_a__two"]
    endpoint.granted = []
    await reach.load()
    assert names(reach) == []
    # In the own process the agent may do all that is bound, and no session is opened to find that out.
    local = reach_of(endpoint, url=None)
    await local.load()
    assert len(names(local)) == 2


@pytest.mark.parametrize("answer", [{}, {"schema": None}, {"schema": 7}])
async def test_a_class_without_a_document_only_makes_its_tool_less_well_described(
    answer: dict[str, Any],
) -> None:
    """TPT-034."""
    endpoint = Endpoint(manifest(A, "cap.one.v1"))
    endpoint.class_answer = answer
    reach = reach_of(endpoint)
    await reach.load()
    assert names(reach) == ["mhs__lab_a__one"]


async def test_an_endpoint_that_is_away_at_the_start_is_no_error_and_one_that_refuses_is() -> None:
    """MHSD-9a-85, TPT-053."""
    endpoint = Endpoint(manifest(A, "cap.one.v1"))
    endpoint.problem = AWAY
    reach = reach_of(endpoint)
    await reach.start()
    assert names(reach) == []
    assert reach.projection.endpoint_id == "http://x"
    with pytest.raises(MHSError, match="nobody listens"):
        await reach.sure()
    endpoint.problem = error("MHS.AUTH.UNAUTHENTICATED", "no")
    with pytest.raises(AuthError):
        await reach.start()
    endpoint.problem = None
    assert (await reach.sure()).endpoint_id == "mhs://x"
    endpoint.problem = AWAY
    assert list((await reach.sure()).tools) == ["mhs__lab_a__one"], "what is known stays known"


async def test_an_endpoint_that_says_nothing_is_away(autojump_clock: trio.testing.MockClock) -> None:
    """MHSD-9a-85."""
    endpoint = Endpoint(manifest(A, "cap.one.v1"))
    endpoint.is_silent = True
    began_s = trio.current_time()
    with pytest.raises(MHSError, match="UNAVAILABLE"):
        await reach_of(endpoint).load()
    assert trio.current_time() - began_s == pytest.approx(ANSWER_S)


async def test_what_is_not_mhs_is_said_to_be_none() -> None:
    endpoint = Endpoint(manifest(A, "cap.one.v1"))
    endpoint.problem = KeyError("devices")
    with pytest.raises(MHSError, match="not MHS"):
        await reach_of(endpoint).load()


async def test_devices_that_cannot_be_projected_end_the_start_and_are_an_error_later() -> None:
    """TPT-032."""
    endpoint = Endpoint(manifest(A, "cap.one.v1", "cap.one.v2"))
    reach = reach_of(endpoint)
    with pytest.raises(ProjectionError, match="mhs__lab_a__one"):
        await reach.start()
    with pytest.raises(Fault, match="mhs__lab_a__one"):
        await reach.sure()


async def test_the_client_is_told_when_there_are_other_tools(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """MHSD-9a-85, TPT-064."""
    endpoint = Endpoint(manifest(A, "cap.one.v1"))
    endpoint.problem = AWAY
    reach = reach_of(endpoint)
    await reach.start()
    told: list[list[str]] = []
    nursery.start_soon(reach.keep, lambda: told.append(names(reach)))
    await trio.sleep(100)
    assert told == []
    endpoint.problem = None
    await trio.sleep(11)
    assert told == [["mhs__lab_a__one"]]
    # It goes away and comes back as it was: nobody needs to know.
    reach.lost()
    await trio.sleep(100)
    assert len(told) == 1
    endpoint.manifests[A] = manifest(A, "cap.two.v1")
    reach.seen([A])
    await trio.sleep(100)
    assert len(told) == 1, "the same devices are seen, and nothing asks again"
    reach.lost()
    await trio.sleep(11)
    assert told[1:] == [["mhs__lab_a__two"]]
    endpoint.manifests["mhs://x/lab/b"] = manifest("mhs://x/lab/b", "cap.two.v1")
    reach.seen(endpoint.manifests)
    await trio.sleep(11)
    assert told[2:] == [["mhs__lab_a__two", "mhs__lab_b__two"]]


async def test_the_background_gives_up_in_the_end_and_a_call_still_asks(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """TPT-064."""
    endpoint = Endpoint(manifest(A, "cap.one.v1"))
    endpoint.problem = AWAY
    reach = reach_of(endpoint)
    nursery.start_soon(reach.keep, lambda: None)
    await trio.sleep(4 * 3600)
    assert "did not come back" in caplog.text
    endpoint.problem = None
    assert list((await reach.sure()).tools) == ["mhs__lab_a__one"]


async def test_devices_that_the_policy_hides_are_not_missed(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """CORE-130."""
    endpoint = Endpoint(manifest(A, "cap.one.v1"), manifest("mhs://x/lab/b", "cap.one.v1"))
    reach = reach_of(endpoint, policy=Policy(devices=("/lab/a",)))
    await reach.load()
    assert names(reach) == ["mhs__lab_a__one"]
    endpoint.problem = AssertionError("nothing is to be asked")
    nursery.start_soon(reach.keep, lambda: None)
    reach.seen(endpoint.manifests)
    await trio.sleep(100)
