"""The first call of a connection: versions, features, limits."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.behaviour.conftest import LIMITS, Start
from tests.lab import CONVEYOR, Lab

CLIENT = {"name": "tests", "version": "1"}
DEFAULTS = {
    "max_request_bytes": 1 << 20,
    "max_batch": 64,
    "max_rate_per_s": 50,
    "rate_burst": 100,
    "max_status_rate_per_s": 20,
    "max_connections": 256,
    "max_sessions": 256,
    "max_subscriptions": 64,
    "max_buffered_events": 1024,
    "max_sse_streams": 4,
    "max_open_operations": 8,
    "max_export_receipts": 1000,
    "session_max_ttl_s": 86400,
    "max_command_deadline_ms": 600_000,
    "receipt_retention_days": 30,
    "max_receipt_retention_s": 2_592_000,
    "receipt_store": "memory",
    "max_json_depth": 64,
    "max_json_items": 20_000,
}


def test_hello_says_what_this_is(lab: Lab) -> None:
    """[PROTO-013, PROTO-015]"""
    info = lab.hello()
    assert (info["server"]["name"], info["implementation"]["name"]) == ("mhsd", "mhsd")
    assert info["server"]["version"] == info["implementation"]["version"]
    assert (info["spec_version"], info["mhs_version"], info["protocol_versions"]) == ("0.9", "1.0", ["1.0"])
    assert info["endpoint_id"] == "mhs://localhost:7400"
    assert info["conformance"] == []
    assert info["safety"] == {"certified": False, "notice": "MHS.SAFETY.NOT_CERTIFIED"}


def test_hello_may_be_called_again_and_needs_no_session(lab: Lab) -> None:
    """[PROTO-019]"""
    first, second = lab.hello(), lab.hello()
    assert first["started_at"] == second["started_at"]
    assert first["time"]["mono_ms"] <= second["time"]["mono_ms"]
    assert {**first, "time": None} == {**second, "time": None}


def test_the_devices_of_hello_are_those_of_the_list(lab: Lab) -> None:
    """[PROTO-019, PROTO-020]"""
    assert lab.hello()["devices"] == lab.call("mhs.devices.list")["devices"]


@pytest.mark.parametrize("versions", [["1.0"], ["0.9", "1.0", "2.0"], ["2.0", "1.0"]], ids=str)
def test_the_highest_common_version_is_selected(lab: Lab, versions: list[str]) -> None:
    """[PROTO-013]"""
    assert lab.call("mhs.hello", client=CLIENT, protocol_versions=versions)["mhs_version"] == "1.0"


@pytest.mark.parametrize("versions", [["2.0"], ["0.9", "10.0"], [], ["one"]], ids=str)
def test_without_a_common_major_version_hello_fails(lab: Lab, versions: list[str]) -> None:
    """[PROTO-013]"""
    refused = lab.refused("mhs.hello", client=CLIENT, protocol_versions=versions)
    assert (refused.error["code"], refused.code) == (-32600, "MHS.PROTOCOL.VERSION_UNSUPPORTED")
    assert "1.0" in str(refused.details)


def test_features_name_what_this_process_serves_and_nothing_else(lab: Lab) -> None:
    """[PROTO-018]"""
    features = lab.call("mhs.hello", client=CLIENT, protocol_versions=["1.0"], features=["mcp", "sse"])[
        "features"
    ]
    bindings = {"stdio"} if lab.binding == "stdio" else {"http", "sse", "ws"}
    assert sorted(features) == sorted({"MHS.SAFETY.NOT_CERTIFIED", "batch", *bindings})


def test_limits_are_advertised_with_their_defaults(lab: Lab) -> None:
    """[PROTO-043]"""
    # The rate is the one option that the shared daemon is started with.
    rate = {"max_rate_per_s": 100_000, "rate_burst": 100_000}
    assert lab.hello()["limits"] == {**DEFAULTS, **rate}


def test_limits_that_are_set_are_advertised(limited: Lab) -> None:
    """[PROTO-043]"""
    limits = limited.hello()["limits"]
    assert {name: limits[name] for name in LIMITS} == LIMITS
    assert limits["max_receipt_retention_s"] == LIMITS["receipt_retention_days"] * 86400


def refusal_of(lab: Lab, method: str, **params: Any) -> tuple[str, Any]:
    refused = lab.refused(method, **params)
    return refused.code, refused.details.get("reason")


ON_A_CONNECTION = pytest.mark.parametrize("binding", ["stdio", "ws"], indirect=True)
HELLO_REQUIRED = ("MHS.PROTOCOL.INVALID_REQUEST", "hello_required")


@ON_A_CONNECTION
def test_on_a_connection_hello_comes_first(fresh: Start) -> None:
    """[PROTO-013]"""
    lab = fresh(greet=False)
    assert refusal_of(lab, "mhs.devices.list") == HELLO_REQUIRED
    assert refusal_of(lab, "mhs.session.heartbeat", session_id="mhs_s_x") == HELLO_REQUIRED
    assert lab.call("mhs.safety.status", deadline_ms=30_000)["device_id"] == CONVEYOR
    assert refusal_of(lab, "mhs.devices.list") == HELLO_REQUIRED

    assert lab.refused("mhs.hello", client=CLIENT, protocol_versions=["9.0"]).code == (
        "MHS.PROTOCOL.VERSION_UNSUPPORTED"
    )
    assert refusal_of(lab, "mhs.devices.list") == HELLO_REQUIRED, "a refused hello opens nothing"

    lab.hello()
    assert lab.call("mhs.devices.list")["devices"]


@ON_A_CONNECTION
def test_on_a_connection_an_emergency_stop_needs_no_hello(fresh: Start) -> None:
    """[PROTO-013, CORE-076]"""
    lab = fresh(greet=False)
    assert lab.call("mhs.safety.estop", reason="test")["status"] == "completed"


@ON_A_CONNECTION
def test_on_a_connection_a_batch_that_begins_with_hello_is_served(fresh: Start) -> None:
    """[PROTO-007, PROTO-013]"""
    lab = fresh(greet=False)
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "mhs.hello",
        "params": {"client": CLIENT, "protocol_versions": ["1.0"]},
    }
    devices = {"jsonrpc": "2.0", "id": 2, "method": "mhs.devices.list"}
    answers = {answer["id"]: answer for answer in lab.wire.exchange([hello, devices])}
    assert answers[1]["result"]["mhs_version"] == "1.0"
    assert answers[2]["result"]["devices"]


def test_over_http_there_is_no_such_order(shared: Callable[[str], Lab]) -> None:
    """[PROTO-013]"""
    lab = shared("http")
    assert lab.call("mhs.devices.list")["devices"]
