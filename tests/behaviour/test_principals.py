"""Several principals on one endpoint: what each may do, and what it learns of the others.

HTTP only: over stdio there is one principal.
"""

from collections.abc import Iterator
from hashlib import sha256

import pytest

from tests.behaviour.conftest import UNHURRIED
from tests.documents import input_digest
from tests.lab import CONVEYOR, HttpWire, Lab, Session, running, ulid

STEP = "cap.world.step.v1"
CONVEY = "cap.motion.convey.v1"
PURGE = "cap.actuation.purge.v1"
DESCRIBE = "cap.device.describe.v1"
FAR = {"distance_mm": 10_000, "speed_mm_s": 100}
WAIT = {"deadline_ms": 30_000}

CLIENTS = """
[[token]]
sha256 = "{ann}"
principal = "human:ann"
kind = "human"
role = "client"

[[token]]
sha256 = "{bot}"
principal = "agent:bot"
kind = "agent"
role = "client"
capabilities = ["cap.world.*", "cap.device.describe.v1"]

[[token]]
sha256 = "{far}"
principal = "agent:far"
kind = "agent"
role = "client"
devices = ["mhs://localhost:7400/lab/elsewhere"]

[[token]]
sha256 = "{eye}"
principal = "service:eye"
kind = "service"
role = "reader"
"""
OPERATORS = """
[[token]]
sha256 = "{boss}"
principal = "human:boss"
kind = "human"
role = "operator"
"""
SECRETS = ("ann", "bot", "far", "eye", "boss")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A daemon with tokens; its secrets are the names of their holders."""
    directory = tmp_path_factory.mktemp("guarded")
    digests = {name: sha256(name.encode()).hexdigest() for name in SECRETS}
    options = []
    for option, text in (("--token-file", CLIENTS), ("--operator-token-file", OPERATORS)):
        file = directory / f"{option.strip('-')}.toml"
        file.touch(0o600)
        file.write_text(text.format(**digests))
        options += [option, str(file)]
    with running("http", directory, *UNHURRIED, *options) as lab:
        yield lab


def as_(lab: Lab, name: str) -> Lab:
    """The same daemon as somebody with a token sees it."""
    assert isinstance(lab.wire, HttpWire)
    wire = HttpWire(f"http://{lab.wire.host}:{lab.wire.port}", token=name)
    return Lab(wire, lab.process, lab.ready, lab.stderr_file)


@pytest.fixture
def ann(guarded: Lab) -> Iterator[Session]:
    session = as_(guarded, "ann").open()
    yield session
    session.close()


@pytest.fixture
def boss(guarded: Lab) -> Iterator[Session]:
    session = as_(guarded, "boss").open()
    yield session
    session.close()


def test_receipts_name_the_authenticated_principal(ann: Session) -> None:
    """[SESS-001, TPT-058]"""
    receipt = ann.completed(STEP, {"ticks": 1})
    assert receipt["principal"] == {"id": "human:ann", "kind": "human"}


def test_another_principals_session_is_unknown(ann: Session, boss: Session) -> None:
    """[SESS-004, PROTO-028]"""
    for method, params in (
        ("mhs.session.heartbeat", {}),
        ("mhs.session.close", {}),
        ("mhs.resource.read", {"resource_id": "world", **WAIT}),
        ("mhs.command", {"capability_id": DESCRIBE, "input": {}, "command_id": ulid(), **WAIT}),
        ("mhs.operations.get", {"command_id": ulid(), **WAIT}),
    ):
        refused = boss.lab.refused(method, session_id=ann.id, **params)
        assert refused.code == "MHS.SESSION.UNKNOWN", "an operator is no exception"
    assert ann.read("world")["state"]


def test_another_principals_operation_is_unknown(ann: Session, boss: Session) -> None:
    """[PROTO-030, PROTO-031]"""
    done = ann.completed(STEP, {"ticks": 1})
    refused = ann.command(STEP, {"ticks": 0})
    _, moving = ann.started(CONVEY, FAR)
    for look in ({"operation_id": moving["operation_id"]}, {"operation_id": done["operation_id"]}):
        assert boss.refused("mhs.operations.cancel", **look, **WAIT).code == "MHS.OPERATION.UNKNOWN"
        assert boss.refused("mhs.operations.get", **look, **WAIT).code == "MHS.OPERATION.UNKNOWN"
    for receipt in (done, refused, moving):
        look = {"command_id": receipt["command_id"], **WAIT}
        assert boss.refused("mhs.operations.get", **look).code == "MHS.OPERATION.UNKNOWN"
    assert ann.get(moving["operation_id"])["status"] == "running"
    ann.cancel(moving["operation_id"])


def test_another_principals_command_id_is_taken_and_tells_nothing(ann: Session, boss: Session) -> None:
    """[OP-003, OP-004]"""
    command_id = ulid()
    ann.completed(STEP, {"ticks": 1}, command_id=command_id)
    receipt = boss.command(STEP, {"ticks": 1}, command_id=command_id)
    assert (receipt["status"], receipt["replayed"]) == ("rejected", False)
    assert receipt["error"]["mhs_code"] == "MHS.CONFLICT.COMMAND_ID_REUSE"
    assert "ann" not in str(receipt)
    assert "output" not in receipt


def test_a_token_limits_what_can_be_granted(guarded: Lab) -> None:
    """[SESS-001]"""
    session = as_(guarded, "bot").open()
    granted = {grant["capability_id"] for grant in session.grant["granted"]}
    assert granted == {STEP, DESCRIBE}
    receipt = session.command("cap.actuation.valve.v1", {"open": True})
    assert receipt["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    session.close()


def test_a_token_limits_the_devices(guarded: Lab) -> None:
    """[SESS-001]"""
    refused = as_(guarded, "far").refused(
        "mhs.session.open", device_ids=[CONVEYOR], capabilities=["*"], mode="simulated", ttl_s=60
    )
    assert refused.code == "MHS.DEVICE.UNKNOWN"


def test_a_reader_reads_and_does_nothing(guarded: Lab) -> None:
    """[SESS-001, EVID-002]"""
    lab = as_(guarded, "eye")
    session = lab.open()
    granted = {grant["capability_id"] for grant in session.grant["granted"]}
    assert granted == {DESCRIBE, "x-cap.sim.fault.v1"}, "what has no effects"
    assert session.read("world")["state"]
    assert session.completed(DESCRIBE, {})["principal"]["id"] == "service:eye"
    refused = session.command(STEP, {"ticks": 1})
    assert refused["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    written = session.write("belt", {"speed_mm_s": 1})
    assert written["error"]["mhs_code"] == "MHS.SESSION.CAPABILITY_NOT_GRANTED"
    permit = {"capability_id": PURGE, "input_digest": "sha256:" + "0" * 64, "ttl_s": 9, "approvals": []}
    assert session.refused("mhs.safety.permit", **permit).code == "MHS.AUTH.FORBIDDEN"
    assert lab.call("mhs.evidence.export")["receipts"]
    assert lab.call("mhs.safety.status", **WAIT)["risk_class"] == "R1"
    session.close()


def test_a_reader_asked_for_what_moves_something_is_granted_nothing(guarded: Lab) -> None:
    """[SESS-001]"""
    refused = as_(guarded, "eye").refused(
        "mhs.session.open", device_ids=[CONVEYOR], capabilities=[STEP], mode="simulated", ttl_s=60
    )
    assert refused.code == "MHS.SESSION.CAPABILITY_NOT_GRANTED"


def test_an_operator_permits_what_a_client_then_does(ann: Session, boss: Session) -> None:
    """[PROTO-029, SAFE-004]"""
    value = {"duration_ms": 1}
    digest = input_digest(PURGE, "valve", value)
    params = {
        "capability_id": PURGE,
        "resource": "valve",
        "input_digest": digest,
        "ttl_s": 60,
        "approvals": [],
    }
    assert ann.refused("mhs.safety.permit", **params).code == "MHS.AUTH.FORBIDDEN"
    permit = boss.lab.call("mhs.safety.permit", session_id=ann.id, **params)
    assert permit["scope"]["principal"] == "human:ann"
    receipt = ann.completed(PURGE, value, permit_id=permit["permit_id"])
    assert [approval["principal"]["id"] for approval in receipt["approvals"]] == ["human:boss"]


def test_a_token_for_other_devices_sees_nothing_of_this_one_and_still_stops_it(guarded: Lab) -> None:
    """[TPT-014, TPT-059, MHSD-6-01]"""
    far = as_(guarded, "far")
    assert far.hello()["devices"] == []
    assert far.call("mhs.devices.list")["devices"] == []
    for method, params in (
        ("mhs.devices.get", {"device_id": CONVEYOR}),
        ("mhs.safety.status", {"device_id": CONVEYOR, **WAIT}),
        ("mhs.evidence.export", {"device_id": CONVEYOR}),
    ):
        assert far.refused(method, **params).code == "MHS.DEVICE.UNKNOWN"
    assert far.refused("mhs.evidence.export").code == "MHS.AUTH.FORBIDDEN"
    assert as_(guarded, "ann").hello()["devices"] != []
    try:
        assert far.call("mhs.safety.estop", device_id=CONVEYOR)["status"] == "completed"
    finally:
        boss = as_(guarded, "boss")
        session = boss.open()
        assert session.call("mhs.safety.reset", device_id=CONVEYOR, **WAIT)["status"] == "completed"
