"""Envelopes, ids, methods, parameters and notifications."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.behaviour.conftest import Start
from tests.documents import check_error, methods
from tests.lab import CONVEYOR, ConnectionWire, HttpWire, Lab, Session, ask_until, request, ulid

INVALID_REQUEST = "MHS.PROTOCOL.INVALID_REQUEST"
INVALID_PARAMS = "MHS.PROTOCOL.INVALID_PARAMS"
METHOD_NOT_FOUND = "MHS.PROTOCOL.METHOD_NOT_FOUND"

SERVED = sorted(name for name, row in methods().items() if row["served"])
GENTLE = [name for name in SERVED if name != "mhs.safety.estop"]
"""All but the stop, which latches, and whose parameters refuse nothing; it has tests of its own."""
UNSERVED = sorted(name for name, row in methods().items() if not row["served"])
BLOCKING = sorted(name for name in SERVED if methods()[name]["deadline"])
EFFECTFUL = sorted(name for name in SERVED if methods()[name]["effectful"])


def exchange(lab: Lab, message: Any) -> Any:
    """The answer to a message whose id may be anything."""
    answer = lab.wire.exchange_bytes(json.dumps(message).encode())
    if "error" in answer:
        check_error(answer["error"])
    return answer


def good_params(method: str, session_id: str) -> dict[str, Any]:
    """Parameters that `method` takes and that move nothing."""
    session = {"session_id": session_id}
    wait = {"deadline_ms": 30_000}
    return {
        "mhs.hello": {"client": {"name": "tests", "version": "1"}, "protocol_versions": ["1.0"]},
        "mhs.devices.list": {},
        "mhs.devices.get": {"device_id": CONVEYOR},
        "mhs.schema.get": {"ref": "receipt.schema.json"},
        "mhs.session.open": {
            "device_ids": [CONVEYOR],
            "capabilities": [],
            "mode": "simulated",
            "ttl_s": 1,
            "client_info": {"name": "tests", "version": "1", "transport": "http"},
        },
        "mhs.session.heartbeat": session,
        "mhs.session.close": session,
        "mhs.resource.read": {**session, **wait, "resource_id": "world"},
        "mhs.resource.write": {
            **session,
            **wait,
            "resource_id": "belt",
            "patch": {"speed_mm_s": 1},
            "command_id": ulid(),
        },
        "mhs.command": {
            **session,
            **wait,
            "capability_id": "cap.device.describe.v1",
            "input": {},
            "command_id": ulid(),
        },
        "mhs.operations.get": {**session, **wait, "command_id": ulid()},
        "mhs.operations.list": session,
        "mhs.operations.cancel": {**session, **wait, "operation_id": f"op_{ulid()}"},
        "mhs.snapshot": {**session, **wait, "device_id": CONVEYOR},
        "mhs.restore": {**session, **wait, "device_id": CONVEYOR, "snapshot": {}, "command_id": ulid()},
        "mhs.safety.status": wait,
        "mhs.safety.reset": {**session, **wait, "device_id": CONVEYOR},
        "mhs.safety.permit": {
            **session,
            "capability_id": "cap.actuation.purge.v1",
            "input_digest": "sha256:" + "0" * 64,
            "ttl_s": 1,
            "approvals": [],
        },
        "mhs.evidence.export": {},
        "mhs.evidence.verify": {"bundle": {}},
        "mhs.subscribe": {**session, **wait, "streams": [{"stream": "log"}]},
        "mhs.unsubscribe": {**session, "subscription_id": "sub_x"},
        "mhs.conformance.report": {},
    }[method]


# Envelope.


@pytest.mark.parametrize("jsonrpc", [None, "1.0", "2", 2, 2.0, True], ids=repr)
def test_a_request_that_does_not_say_jsonrpc_2_0_is_refused_with_its_id(lab: Lab, jsonrpc: Any) -> None:
    """[PROTO-002]"""
    message = {**request("mhs.devices.list"), "jsonrpc": jsonrpc}
    if jsonrpc is None:
        del message["jsonrpc"]
    answer = exchange(lab, message)
    assert answer["id"] == message["id"]
    assert (answer["error"]["code"], answer["error"]["data"]["mhs_code"]) == (-32600, INVALID_REQUEST)
    assert answer["jsonrpc"] == "2.0"


@pytest.mark.parametrize("method", [None, 7, [], {}], ids=repr)
def test_a_request_without_a_method_is_refused(lab: Lab, method: Any) -> None:
    """[PROTO-001]"""
    message = {**request("mhs.devices.list"), "method": method}
    if method is None:
        del message["method"]
    assert exchange(lab, message)["error"]["data"]["mhs_code"] == INVALID_REQUEST


@pytest.mark.parametrize("value", ["text", 5, True, None], ids=repr)
def test_a_message_that_is_no_object_is_refused(lab: Lab, value: Any) -> None:
    """[PROTO-001]"""
    answer = exchange(lab, value)
    assert (answer["id"], answer["error"]["data"]["mhs_code"]) == (None, INVALID_REQUEST)


def test_a_response_is_no_request(lab: Lab) -> None:
    """[PROTO-001]"""
    answer = exchange(lab, {"jsonrpc": "2.0", "id": ulid(), "result": {}})
    assert (answer["id"], answer["error"]["data"]["mhs_code"]) == (None, INVALID_REQUEST)


@pytest.mark.parametrize("params", [[], ["mhs"], "text", 3, None], ids=repr)
def test_params_that_are_no_object_are_invalid_params(lab: Lab, params: Any) -> None:
    """[PROTO-001]"""
    answer = exchange(lab, {**request("mhs.devices.list"), "params": params})
    assert (answer["error"]["code"], answer["error"]["data"]["mhs_code"]) == (-32602, INVALID_PARAMS)


# Ids.


@pytest.mark.parametrize(
    "request_id",
    [0, -1, 7, 2**53 + 1, -(2**63), "7", "", "ü 🔬", "a" * 200, '"\\'],
    ids=lambda value: repr(value)[:20],
)
def test_an_id_is_echoed_exactly(lab: Lab, request_id: Any) -> None:
    """[PROTO-004]"""
    answer = exchange(lab, {"jsonrpc": "2.0", "id": request_id, "method": "mhs.devices.list"})
    assert answer["id"] == request_id
    assert type(answer["id"]) is type(request_id)
    assert answer["result"]["devices"]


@pytest.mark.parametrize("request_id", ["null", "true", "false", "1.0", "1e0", "-0.5", "[]", "{}"])
def test_an_id_that_is_no_string_and_no_integer_is_refused_with_id_null(lab: Lab, request_id: str) -> None:
    """[PROTO-004]"""
    answer = lab.wire.exchange_bytes(
        b'{"jsonrpc":"2.0","id":%b,"method":"mhs.devices.list"}' % request_id.encode()
    )
    assert answer["id"] is None
    assert answer["error"]["data"]["mhs_code"] == INVALID_REQUEST


ON_A_CONNECTION = pytest.mark.parametrize("binding", ["stdio", "ws"], indirect=True)


@ON_A_CONNECTION
def test_on_a_connection_an_id_is_used_once(lab: Lab) -> None:
    """[PROTO-004]"""
    message = request("mhs.devices.list")
    assert lab.wire.exchange(message)["result"]["devices"]
    again = lab.wire.exchange(message)
    assert again["id"] == message["id"]
    assert again["error"]["data"]["mhs_code"] == INVALID_REQUEST
    assert again["error"]["data"]["details"]["reason"] == "duplicate_id"


@ON_A_CONNECTION
def test_on_a_connection_the_id_of_a_refused_request_is_used_too(lab: Lab) -> None:
    """[PROTO-004]"""
    message = request("mhs.no.such.method")
    assert lab.wire.exchange(message)["error"]["data"]["mhs_code"] == METHOD_NOT_FOUND
    assert lab.wire.exchange(message)["error"]["data"]["details"]["reason"] == "duplicate_id"


@ON_A_CONNECTION
def test_on_a_connection_a_number_and_its_text_are_two_ids(lab: Lab) -> None:
    """[PROTO-004]"""
    for request_id in (4711, "4711"):
        answer = exchange(lab, {"jsonrpc": "2.0", "id": request_id, "method": "mhs.devices.list"})
        assert answer["id"] == request_id
        assert "result" in answer


def test_over_http_every_request_is_a_connection_of_its_own_for_ids(shared: Callable[[str], Lab]) -> None:
    """[PROTO-004]"""
    message = request("mhs.devices.list")
    assert [exchange(shared("http"), message)["id"] for _ in range(2)] == [message["id"]] * 2


# Methods.


@pytest.mark.parametrize("method", UNSERVED)
def test_a_method_that_is_not_served_says_so(lab: Lab, method: str) -> None:
    """[PROTO-003, PROTO-017, PROTO-039]"""
    refused = lab.refused(method)
    assert (refused.error["code"], refused.code) == (-32601, METHOD_NOT_FOUND)
    assert refused.details["supported"] is False


@pytest.mark.parametrize("method", ["x-unknown", "mhs.unknown", "hello", "", "rpc.discover", "mhs.Hello"])
def test_a_method_that_nobody_knows_is_not_found(lab: Lab, method: str) -> None:
    """[PROTO-003, PROTO-017]"""
    refused = lab.refused(method)
    assert refused.code == METHOD_NOT_FOUND
    assert "supported" not in refused.details


@pytest.mark.parametrize("method", GENTLE)
def test_a_served_method_is_never_not_found(lab: Lab, session: Session, method: str) -> None:
    """[PROTO-016]"""
    answer = lab.wire.exchange(request(method, **good_params(method, session.id)))
    assert answer.get("error", {}).get("code") not in (-32601, -32602, -32603), answer


# Parameters.


@pytest.mark.parametrize("method", GENTLE)
def test_an_unknown_parameter_is_named(lab: Lab, session: Session, method: str) -> None:
    """[PROTO-028, PROTO-040]"""
    params = {**good_params(method, session.id), "surprise": 1}
    refused = lab.refused(method, **params)
    assert (refused.error["code"], refused.code) == (-32602, INVALID_PARAMS)
    assert refused.details["field"] == "surprise"


@pytest.mark.parametrize("method", GENTLE)
def test_trace_id_is_accepted_everywhere(lab: Lab, session: Session, method: str) -> None:
    """[PROTO-003]"""
    trace_id = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    answer = lab.wire.exchange(request(method, **good_params(method, session.id), trace_id=trace_id))
    assert answer.get("error", {}).get("code") != -32602, answer


def test_an_unknown_parameter_inside_another_is_named_with_its_place(lab: Lab) -> None:
    """[PROTO-040]"""
    client = {"name": "tests", "version": "1", "surprise": 1}
    refused = lab.refused("mhs.hello", client=client, protocol_versions=["1.0"])
    assert refused.details["field"] == "client.surprise"


def test_a_missing_parameter_is_named(lab: Lab) -> None:
    """[PROTO-040]"""
    assert lab.refused("mhs.devices.get").details["field"] == "device_id"


@pytest.mark.parametrize(
    ("method", "wrong", "field"),
    [
        ("mhs.hello", {"protocol_versions": "1.0"}, "protocol_versions"),
        ("mhs.devices.list", {"detail": "everything"}, "detail"),
        ("mhs.devices.get", {"include_state": "yes"}, "include_state"),
        ("mhs.devices.get", {"device_id": 5}, "device_id"),
        ("mhs.session.open", {"ttl_s": True}, "ttl_s"),
        ("mhs.session.open", {"ttl_s": 1.0}, "ttl_s"),
        ("mhs.session.open", {"ttl_s": "60"}, "ttl_s"),
        ("mhs.session.open", {"device_ids": CONVEYOR}, "device_ids"),
        ("mhs.command", {"expected_revision": "0"}, "expected_revision"),
        ("mhs.command", {"expected_revision": True}, "expected_revision"),
        ("mhs.command", {"command_id": 5}, "command_id"),
        ("mhs.command", {"capability_id": ""}, "capability_id"),
        ("mhs.session.heartbeat", {"session_id": ""}, "session_id"),
        ("mhs.command", {"lease": "l" * 129}, "lease"),
        ("mhs.resource.write", {"patch": []}, "patch"),
        ("mhs.resource.read", {"fields": "tick"}, "fields"),
        ("mhs.evidence.export", {"include_telemetry": 1}, "include_telemetry"),
    ],
)
def test_a_parameter_of_the_wrong_type_is_named_and_never_coerced(
    lab: Lab, session: Session, method: str, wrong: dict[str, Any], field: str
) -> None:
    """[PROTO-028, PROTO-040]"""
    refused = lab.refused(method, **{**good_params(method, session.id), **wrong})
    assert (refused.code, refused.details["field"]) == (INVALID_PARAMS, field)


@pytest.mark.parametrize(
    "command_id", ["x", ulid()[:25], ulid() + "0", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "I" * 26]
)
@pytest.mark.parametrize("method", ["mhs.command", "mhs.resource.write"])
def test_a_command_id_that_is_no_ulid_is_invalid_params(
    lab: Lab, session: Session, method: str, command_id: str
) -> None:
    """[PROTO-028]"""
    refused = lab.refused(method, **{**good_params(method, session.id), "command_id": command_id})
    assert (refused.code, refused.details["field"]) == (INVALID_PARAMS, "command_id")


NO_DEADLINE = {
    "missing": None,
    "0": 0,
    "-1": -1,
    "true": True,
    "5.0": 5.0,
    "text": "5000",
    "600001": 600_001,
}


@pytest.mark.parametrize("deadline_ms", NO_DEADLINE.values(), ids=NO_DEADLINE.keys())
@pytest.mark.parametrize("method", BLOCKING)
def test_a_blocking_method_needs_a_deadline_that_is_one(
    lab: Lab, session: Session, method: str, deadline_ms: Any
) -> None:
    """[PROTO-010]"""
    params = {**good_params(method, session.id), "deadline_ms": deadline_ms}
    if deadline_ms is None:
        del params["deadline_ms"]
    refused = lab.refused(method, **params)
    assert (refused.error["code"], refused.code) == (-32602, "MHS.PROTOCOL.DEADLINE_INVALID")
    assert refused.details["maximum"] == lab.hello()["limits"]["max_command_deadline_ms"] == 600_000


# Notifications.


def silent(lab: Lab, *messages: dict[str, Any]) -> None:
    """Send what must not be answered, and see that it is not: the next answer is that of the next request."""
    if isinstance(lab.wire, HttpWire):
        for message in messages:
            assert lab.wire.post(json.dumps(message).encode()) == (204, b"")
        return
    assert isinstance(lab.wire, ConnectionWire)
    for message in messages:
        lab.wire.send(json.dumps(message).encode())
    lab.call("mhs.devices.list")
    assert lab.wire.unclaimed() == []


def notification(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def test_a_notification_is_never_answered(lab: Lab) -> None:
    """[PROTO-005]"""
    silent(
        lab,
        notification("mhs.devices.list"),
        notification("mhs.devices.list", surprise=1),
        notification("mhs.no.such.method"),
        {**notification("mhs.devices.list"), "params": []},
    )


@pytest.mark.parametrize("method", EFFECTFUL)
def test_an_effectful_notification_is_dropped_and_logged(lab: Lab, session: Session, method: str) -> None:
    """[PROTO-005]"""
    before = session.revision()
    silent(lab, notification(method, **good_params(method, session.id)))
    ask_until(lab.stderr, lambda log: f"effectful notification: {method}" in log)
    assert session.revision() == before


def test_a_command_sent_as_a_notification_is_never_executed(fresh: Start) -> None:
    """[PROTO-005]"""
    lab = fresh()
    session = lab.open()
    command_id = ulid()
    params = {
        "session_id": session.id,
        "capability_id": "cap.world.step.v1",
        "input": {"ticks": 5},
        "command_id": command_id,
        "deadline_ms": 30_000,
    }
    silent(lab, notification("mhs.command", **params))
    # A command that comes later has been executed, so the earlier one would have been too.
    assert session.completed("cap.world.step.v1", {"ticks": 1})["output"]["tick"] == 1
    assert session.refused("mhs.operations.get", command_id=command_id, deadline_ms=30_000).code == (
        "MHS.OPERATION.UNKNOWN"
    )
    assert session.close()["summary"]["commands"] == 1


# Errors.


def test_no_error_tells_what_the_daemon_knows_of_its_machine(lab: Lab, session: Session) -> None:
    """[PROTO-042]"""
    session.completed("x-cap.sim.fault.v1", {"kind": "raise", "times": 1})
    failed = json.dumps(session.command("cap.world.step.v1", {"ticks": 1}))
    assert "simulated fault" not in failed, "the driver's own message"
    for answer in (
        failed,
        json.dumps(lab.refused("mhs.schema.get", ref="../errors.toml").error),
        json.dumps(lab.refused("mhs.devices.get", device_id="file:///etc/passwd").error),
    ):
        assert "Traceback" not in answer
        assert ".py" not in answer
        assert "/home" not in answer
        assert str(lab.stderr_file.parent) not in answer
