"""Every binding serves every method, with the same members in what it answers and sends."""

from collections.abc import Callable
from typing import Any

import pytest

from mhsd.base.resources import METHODS
from tests.behaviour.listening import listening
from tests.lab import CONVEYOR, Lab, RpcError, request, ulid

BINDINGS = ("stdio", "http", "ws")
REFUSED_PARAMETERS = ("MHS.PROTOCOL.INVALID_PARAMS", "MHS.PROTOCOL.DEADLINE_INVALID")
SERVED = sorted(name for name, row in METHODS.items() if row.served)


@pytest.mark.parametrize("method", SERVED)
def test_every_method_is_served(lab: Lab, method: str) -> None:
    """[TPT-003] With parameters of no method it is refused for these, or does what it does without any."""
    answer = lab.wire.exchange(request(method, nonsense=1))
    if method == "mhs.safety.estop":
        # A stop is served with whatever parameters, and has to be released for the tests that follow.
        assert answer["result"]["status"] == "completed"
        session = lab.open()
        session.call("mhs.safety.reset", device_id=CONVEYOR, deadline_ms=30_000)
        session.close()
    else:
        assert answer["error"]["data"]["mhs_code"] in REFUSED_PARAMETERS


def shape(value: Any) -> Any:
    """Which members a document has, and of what kind each is."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in sorted(value.items())}
    if isinstance(value, list):
        return [shape(member) for member in value]
    return type(value).__name__


def conversation(lab: Lab) -> dict[str, Any]:
    """What this binding answers and sends, by what was asked for."""
    seen: dict[str, Any] = {"hello": lab.hello()}
    # These name the binding, and on stdio nothing limits the rate.
    seen["hello"].pop("features")
    session = lab.open()
    seen["grant"] = session.grant
    with listening(session, "state", "events", "progress") as listener:
        seen["subscription"] = listener.grant
        seen["receipt"] = session.completed("cap.world.step.v1", {"ticks": 1})
        seen["events"] = sorted(map(repr, map(shape, listener.take(5))))
    seen["rejected"] = session.command("cap.world.step.v1", {"ticks": "many"})
    seen["state"] = session.read("world")
    seen["operations"] = session.call("mhs.operations.list")["operations"][:1]
    seen["error"] = session.refused("mhs.resource.read", resource_id="nothing", deadline_ms=1000).error
    try:
        session.look_up(ulid())
    except RpcError as error:
        seen["unknown"] = error.error
    seen["batch"] = lab.wire.exchange([request("mhs.safety.status"), request("mhs.nothing")])
    seen["closed"] = session.close()
    return seen


def test_every_binding_carries_the_same_payloads(shared: Callable[[str], Lab]) -> None:
    """[TPT-001] No member more and none less, in results, errors, receipts and events."""
    first, *others = (conversation(shared(name)) for name in BINDINGS)
    assert first["events"]
    for other in others:
        for name, document in first.items():
            assert shape(other[name]) == shape(document), name
        assert other["events"] == first["events"]
