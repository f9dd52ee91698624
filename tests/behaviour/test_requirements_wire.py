"""Methods without a rate, names of devices, descriptors, and that both bindings answer alike."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import BENCH, UNHURRIED, Start
from tests.behaviour.safety import CONVEY, FAR
from tests.lab import CONVEYOR, HttpWire, Lab, RpcError, request, running, stop, ulid

FIXTURES = {
    "conveyor-workcell": ("/lab/conveyor-workcell", "simulated", "R1"),
    "thermal-chamber": ("/lab/thermal-chamber", "simulated", "R2"),
    "scpi-psu": ("/bench/psu", "simulated", "R2"),
    "replay-thermal": ("/lab/replay-thermal", "replay", "R0"),
}


def refused_for_its_rate(lab: Lab, method: str, /, **params: Any) -> bool:
    try:
        lab.call(method, **params)
    except RpcError as error:
        return error.code == "MHS.LIMIT.RATE_EXCEEDED"
    return False


# Rates.


def test_the_status_has_a_rate_of_its_own_which_is_advertised(tmp_path: Path) -> None:
    """[PROTO-043, MHSD-7-03]"""
    with running("http", tmp_path, "--rate-per-s", "1", "--rate-burst", "30") as lab:
        limit = lab.hello()["limits"]["max_status_rate_per_s"]
        wait = {"deadline_ms": 30_000}
        assert not any(refused_for_its_rate(lab, "mhs.safety.status", **wait) for _ in range(limit))
        assert not refused_for_its_rate(lab, "mhs.devices.list"), "looking has not used up the rate of doing"
        assert isinstance(lab.wire, HttpWire)
        # In one message it is certainly more than the endpoint takes at once.
        batch = [request("mhs.safety.status", **wait) for _ in range(limit + 1)]
        status, body = lab.wire.post(json.dumps(batch).encode())
        assert (status, json.loads(body)["error"]["data"]["mhs_code"]) == (429, "MHS.LIMIT.RATE_EXCEEDED")
        while (answer := lab.wire.post(json.dumps(request("mhs.safety.status", **wait)).encode()))[0] != 429:
            pass
        assert json.loads(answer[1])["id"] is None, "as in the body of every 4xx"


def test_what_ends_or_keeps_something_has_no_rate(tmp_path: Path) -> None:
    """[MHSD-7-03]"""
    with running("http", tmp_path, "--rate-per-s", "1", "--rate-burst", "200") as lab:
        sessions = [lab.open() for _ in range(5)]
        _, moving = sessions[0].started(CONVEY, FAR)
        while not refused_for_its_rate(lab, "mhs.devices.list"):
            pass
        for _ in range(20):
            sessions[0].call("mhs.session.heartbeat")
            sessions[0].cancel(moving["operation_id"])
        for session in sessions:
            session.close()


@pytest.mark.parametrize("binding", ["stdio"], indirect=True)
def test_on_stdio_the_local_principal_has_no_rate(binding: str, tmp_path: Path) -> None:
    """[MHSD-7-02]"""
    with running(binding, tmp_path, "--rate-per-s", "1", "--rate-burst", "1") as lab:
        for _ in range(50):
            lab.call("mhs.devices.list")


# The order in which a command is refused.


def test_the_first_error_of_the_order_answers(pair: Lab) -> None:
    """[MHSD-4-02, CORE-060]"""
    session = pair.open(device_id=BENCH)
    spent = session.completed("x-cap.test.identify.v1", {})["command_id"]
    defects: list[tuple[dict[str, Any], tuple[str, str | None]]] = [
        ({"expected_revision": "x"}, ("MHS.PROTOCOL.INVALID_PARAMS", "expected_revision")),
        ({"session_id": "mhs_s_x"}, ("MHS.SESSION.UNKNOWN", None)),
        ({"device_id": f"{BENCH}x"}, ("MHS.DEVICE.UNKNOWN", None)),
        ({"command_id": "no-ulid"}, ("MHS.PROTOCOL.INVALID_PARAMS", "command_id")),
        ({"capability_id": "cap.electrical.output.v1"}, ("MHS.PROTOCOL.INVALID_PARAMS", "resource")),
        ({"input": {"enabled": 2**60}}, ("MHS.CAPABILITY.INPUT_INVALID", None)),
    ]
    sound = {
        "session_id": session.id,
        "capability_id": "x-cap.nobody.knows.v1",
        "input": {},
        "command_id": spent,
        "deadline_ms": 30_000,
    }
    for first, (_, expected) in enumerate(defects):
        params = dict(sound)
        # What stands before it is sound, and everything behind it is not.
        for changes, _ in reversed(defects[first:]):
            params |= changes
        refused = pair.refused("mhs.command", **params)
        assert (refused.code, refused.details.get("field")) == expected
    # Behind the errors the command_id stands before the class, which nobody knows.
    reused = pair.call("mhs.command", **sound)
    assert (reused["status"], reused["error"]["mhs_code"]) == ("rejected", "MHS.CONFLICT.COMMAND_ID_REUSE")
    session.close()


# Who drives.


def test_the_end_of_a_session_leaves_the_operation_of_another_alone(lab: Lab) -> None:
    """[MHSD-4-28, MHSD-9a-39] Although it was the last one to act on the device."""
    moving, meddling = lab.open(), lab.open()
    pending, running_ = moving.started(CONVEY, FAR)
    meddling.completed("x-cap.sim.door.v1", {"closed": True})
    meddling.close()
    assert moving.get(running_["operation_id"])["status"] == "running"
    assert moving.read("belt")["state"]["running"] is True
    moving.close()
    assert pending.result()["status"] == "cancelled"


# Names.


def test_a_device_id_is_the_endpoint_id_and_the_path_of_the_manifest(fresh: Start) -> None:
    """[MHSD-1-04, PROTO-020]"""
    lab = fresh("--endpoint-id", "mhs://elsewhere:7401/cell", targets=("conveyor-workcell", "scpi-psu"))
    assert lab.hello()["endpoint_id"] == "mhs://elsewhere:7401/cell"
    assert [device["device_id"] for device in lab.call("mhs.devices.list")["devices"]] == [
        "mhs://elsewhere:7401/cell/lab/conveyor-workcell",
        "mhs://elsewhere:7401/cell/bench/psu",
    ]
    assert lab.refused("mhs.devices.get", device_id=CONVEYOR).code == "MHS.DEVICE.UNKNOWN"


def test_every_fixture_is_served_under_its_path_and_can_be_described(fresh: Start) -> None:
    """[MHSD-1-08, MHSD-3-01, MHSD-3-06, MHSD-3-21]"""
    lab = fresh(targets=tuple(FIXTURES))
    listed = lab.call("mhs.devices.list")["devices"]
    endpoint_id = lab.hello()["endpoint_id"]
    assert [
        (device["device_id"].removeprefix(endpoint_id), device["mode"], device["risk_class"])
        for device in listed
    ] == list(FIXTURES.values())
    for device in listed:
        session = lab.open(device_id=device["device_id"], mode=device["mode"])
        described = session.completed("cap.device.describe.v1", {})["output"]
        manifest = lab.call("mhs.devices.get", device_id=device["device_id"], include_state=False)
        assert described == {"digest": manifest["digest"]}
        session.close()


def test_the_conveyor_declares_its_streams(lab: Lab) -> None:
    """[MHSD-3-17]"""
    manifest = lab.call("mhs.devices.get", device_id=CONVEYOR, include_state=False)
    streams = {(each["stream"], each.get("resource_id")): each for each in manifest["streams"]}
    assert set(streams) == {
        *[("state", name) for name in ("world", "belt", "valve")],
        ("telemetry", "belt"),
        ("events", None),
        ("log", None),
        ("progress", None),
    }
    assert streams["telemetry", "belt"]["native_rate_hz"] == 50
    schemas = {each["resource_id"]: each["state_schema"] for each in manifest["resources"]}
    assert streams["state", "belt"]["schema"] == schemas["belt"]


@pytest.mark.parametrize("left", [True, False])
def test_what_a_stop_of_the_daemon_leaves_on_is_in_the_log(binding: str, tmp_path: Path, left: bool) -> None:
    """[MHSD-9a-62] The conveyor is left as it is, the supply is switched off."""
    target = "conveyor-workcell" if left else "scpi-psu"
    with running(binding, tmp_path, targets=(target,)) as lab:
        manifest = lab.call("mhs.devices.list", detail="full")["devices"][0]
        assert manifest["safety"]["on_shutdown"] == ("leave" if left else "safe_state")
        assert stop(lab.process) == 0
        assert (f"{manifest['device_id']} was left as it is" in lab.stderr()) is left


# Bindings.


def without_what_differs(value: Any) -> Any:
    """An answer without what is another one in every process."""
    if isinstance(value, list):
        return [without_what_differs(each) for each in value]
    if not isinstance(value, dict):
        return value
    times = ("accepted_at", "started_at", "ended_at", "sampled_at", "closed_at", "expires_at", "time")
    ids = ("receipt_id", "operation_id", "session_id", "instance_id", "evidence", "receipts_head", "id")
    other = (*times, *ids, "features")
    return {name: without_what_differs(each) for name, each in value.items() if name not in other}


def test_both_bindings_answer_the_same_requests_with_the_same_documents(tmp_path: Path) -> None:
    """[TPT-001, TPT-003]"""
    command_id = ulid()
    seen: list[Any] = []
    with ExitStack() as stack:
        for binding in ("stdio", "http"):
            directory = tmp_path / binding
            directory.mkdir()
            lab = stack.enter_context(running(binding, directory, *UNHURRIED))
            session = {"session_id": lab.open(client_info={"name": "tests", "version": "1"}).id}
            wait = {"deadline_ms": 30_000}
            step = {"capability_id": "cap.world.step.v1", "command_id": command_id, **session, **wait}
            answers = [
                lab.wire.exchange(message)
                for message in (
                    request("mhs.hello", client={"name": "t", "version": "1"}, protocol_versions=["1.0"]),
                    request("mhs.devices.list", detail="full"),
                    request("mhs.devices.get", device_id=CONVEYOR),
                    request("mhs.schema.get", ref="receipt.schema.json"),
                    request("mhs.command", input={"ticks": 0}, **step),
                    request("mhs.command", input={"ticks": 3}, **step),
                    request("mhs.command", input={"ticks": 3}, **step),
                    request("mhs.resource.read", resource_id="world", **session, **wait),
                    request("mhs.resource.read", resource_id="nothing", **session, **wait),
                    request("mhs.operations.get", command_id=command_id, **session, **wait),
                    request("mhs.safety.status", **wait),
                    request("mhs.command", surprise=1),
                    request("mhs.registry.search", query={}),
                    request("mhs.session.close", **session),
                )
            ]
            seen.append(without_what_differs(answers))
    for on_stdio, over_http in zip(*seen, strict=True):
        assert on_stdio == over_http


def descriptor_of(lab: Lab) -> Any:
    assert isinstance(lab.wire, HttpWire)
    status, _, body = lab.wire.get("/.well-known/mhs.json")
    assert status == 200
    return json.loads(body)


def test_the_descriptor_says_how_to_authenticate_and_shows_no_devices_to_strangers(tmp_path: Path) -> None:
    """[TPT-002, TPT-014]"""
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("secret-of-ann\n")
    with running("http", tmp_path, "--token-file", str(tokens)) as lab:
        descriptor = descriptor_of(lab)
        assert descriptor["auth"] == ["bearer"]
        assert "devices" not in descriptor
        assert "secret-of-ann" not in json.dumps(descriptor)
        assert sha256(b"secret-of-ann").hexdigest() not in json.dumps(descriptor)


BINDINGS = ("stdio", "http", "sse", "ws", "mcp")


def test_descriptor_and_hello_name_the_same_bindings(shared: Callable[[str], Lab]) -> None:
    """[TPT-002]"""
    lab = shared("http")
    descriptor, hello = descriptor_of(lab), lab.hello()
    assert descriptor["features"] == hello["features"]
    assert list(descriptor["transports"]) == [name for name in hello["features"] if name in BINDINGS]
    for name in ("endpoint_id", "mhs_version", "protocol_versions", "server", "safety", "devices"):
        assert descriptor[name] == hello[name]
