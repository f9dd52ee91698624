"""An envelope is a request, a notification or malformed, and a malformed one is answered where it must be."""

from typing import Any

import pytest

from mhsd.wire.jsonrpc import Batch, Malformed, Notification, Request, classify, parse_message


def call(**members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "1", "method": "mhs.hello", **members}


def without(name: str, **members: Any) -> dict[str, Any]:
    return {key: value for key, value in call(**members).items() if key != name}


@pytest.mark.parametrize("request_id", ["", "01J8ZQ3V6Y7M2N4P6R8S0T2V4X", 0, -5, 2**70])
def test_a_request_keeps_its_id_and_params(request_id: str | int) -> None:
    assert classify(call(id=request_id, params={"a": 1})) == Request(request_id, "mhs.hello", {"a": 1})


def test_absent_params_are_an_empty_object() -> None:
    assert classify(call()) == Request("1", "mhs.hello", {})


def test_a_call_without_id_is_a_notification() -> None:
    assert classify(without("id", params={"a": 1})) == Notification("mhs.hello", {"a": 1})


@pytest.mark.parametrize(
    ("value", "answered_id", "reason"),
    [
        (None, None, "not_an_object"),
        (True, None, "not_an_object"),
        (1, None, "not_an_object"),
        ("mhs.hello", None, "not_an_object"),
        ([call()], None, "not_an_object"),
        (call(id=None), None, "id"),
        (call(id=True), None, "id"),
        (call(id=1.0), None, "id"),
        (call(id=[1]), None, "id"),
        (call(id={}), None, "id"),
        (without("jsonrpc"), "1", "jsonrpc"),
        (call(jsonrpc="1.0"), "1", "jsonrpc"),
        (call(jsonrpc=2.0), "1", "jsonrpc"),
        (call(jsonrpc=["2.0"]), "1", "jsonrpc"),
        ({}, None, "jsonrpc"),
        (without("method"), "1", "method"),
        (call(method=1), "1", "method"),
        (call(method=None), "1", "method"),
        (call(extra=1), "1", "unknown_member"),
        (call(Id=1), "1", "unknown_member"),
        (call(result={}), "1", "unknown_member"),
        ({"jsonrpc": "2.0", "method": "mhs.hello", "ID": 1}, None, "unknown_member"),
        ({"jsonrpc": "2.0", "id": "1", "result": {}}, None, "response"),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}, None, "response"),
    ],
)
def test_a_defective_envelope_is_an_invalid_request(value: Any, answered_id: Any, reason: str) -> None:
    found = classify(value)
    assert isinstance(found, Malformed)
    assert found.fault.mhs_code == "MHS.PROTOCOL.INVALID_REQUEST"
    assert found.fault.code == -32600
    assert found.fault.details is not None
    assert found.fault.details["reason"] == reason
    assert found.id == answered_id
    assert not found.silent


def test_an_unknown_member_is_named() -> None:
    found = classify(call(Params={}))
    assert isinstance(found, Malformed)
    assert found.fault.details == {"reason": "unknown_member", "field": "Params"}
    assert "'Params'" in found.fault.message


@pytest.mark.parametrize("params", [[], [1], None, "a", 1, False])
def test_params_that_are_no_object_are_invalid_params(params: Any) -> None:
    found = classify(call(params=params))
    assert isinstance(found, Malformed)
    assert found.fault.mhs_code == "MHS.PROTOCOL.INVALID_PARAMS"
    assert found.fault.code == -32602
    assert found.id == "1"
    assert not found.silent


def test_a_notification_with_bad_params_is_not_answered_either() -> None:
    found = classify(without("id", params=[]))
    assert isinstance(found, Malformed)
    assert found.silent


def test_one_message_is_no_batch() -> None:
    assert parse_message(call(), max_batch=2) == Request("1", "mhs.hello", {})


def test_a_batch_keeps_its_order_and_judges_every_element_by_itself() -> None:
    found = parse_message([call(id=1), without("id"), [], call(id=2, params=[])], max_batch=4)
    assert isinstance(found, Batch)
    first, second, third, fourth = found.calls
    assert first == Request(1, "mhs.hello", {})
    assert second == Notification("mhs.hello", {})
    assert isinstance(third, Malformed)
    assert third.id is None
    assert isinstance(fourth, Malformed)
    assert fourth.id == 2


def test_an_empty_batch_is_an_invalid_request() -> None:
    found = parse_message([], max_batch=2)
    assert isinstance(found, Malformed)
    assert found.fault.mhs_code == "MHS.PROTOCOL.INVALID_REQUEST"
    assert found.fault.details == {"reason": "empty_batch"}
    assert found.id is None


def test_a_batch_over_the_limit_is_refused_whole() -> None:
    assert isinstance(parse_message([call()] * 2, max_batch=2), Batch)
    found = parse_message([call()] * 3, max_batch=2)
    assert isinstance(found, Malformed)
    assert found.fault.mhs_code == "MHS.PROTOCOL.BATCH_TOO_LARGE"
    assert found.fault.details == {"limit": 2, "size": 3}
