"""A stop in a message that is too large runs, and the message is refused [CORE-076, CORE-183, MHSD-9a]."""

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Start
from tests.behaviour.safety import (
    CONVEY,
    FAR,
    STOP,
    STOP_CLASS,
    evidence,
    latched,
    receipt_in,
    restored,
    status,
    text,
)
from tests.lab import CONVEYOR, PATIENCE_S, HttpWire, Lab, Session, ask_until, request, running, ulid

LONG = "x" * 1_100_000
"""One string of it is more than a message may hold."""

DECOY = request("mhs.command", capability_id="cap.world.step.v1", input=request(STOP, reason="not a stop"))
"""A call that quotes a stop, and is none."""


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    with restored(lab) as session:
        yield session


def refusal(answer: Any, code: str = "MHS.LIMIT.PAYLOAD_TOO_LARGE") -> Any:
    """The details of the refusal of a whole message."""
    assert answer["id"] is None
    assert answer["error"]["data"]["mhs_code"] == code
    return answer["error"]["data"]["details"]


def stop_text(**more: Any) -> bytes:
    return text(STOP, params={"reason": "smoke", **more})


# Over the bytes of a message.


@pytest.mark.parametrize("place", ["before", "after", "inside"])
def test_a_stop_in_a_message_of_too_many_bytes_runs_and_the_message_is_refused(
    lab: Lab, session: Session, place: str
) -> None:
    """[CORE-076]"""
    filler = json.dumps({"x": LONG}).encode()
    bodies = {
        "before": b"[" + stop_text() + b"," + filler + b"]",
        "after": b"[" + filler + b"," + json.dumps(DECOY).encode() + b"," + stop_text() + b"]",
        "inside": stop_text(x=LONG),
    }
    answer = lab.wire.exchange_bytes(bodies[place])
    assert refusal(answer)["limit"] == 1_048_576
    receipt = receipt_in(answer)
    assert (receipt["status"], receipt["output"]["latched"]) == ("completed", True)
    assert status(lab)["estop"]["reason"] == "smoke"
    assert evidence(lab)[-1] == receipt
    assert lab.hello()["mhs_version"] == "1.0", "what follows the message is read"


def test_it_ends_what_runs(lab: Lab, session: Session) -> None:
    """[SAFE-002]"""
    pending, running = session.started(CONVEY, FAR)
    answer = lab.wire.exchange_bytes(stop_text(x=LONG))
    assert receipt_in(answer)["output"]["cancelled_operations"] == [running["operation_id"]]
    assert pending.result()["status"] == "cancelled"


def test_a_command_of_the_stop_class_in_a_message_of_too_many_bytes_is_a_stop(
    lab: Lab, session: Session
) -> None:
    """[CORE-076]"""
    command = request("mhs.command", capability_id=STOP_CLASS, input={"reason": "fire", "x": LONG})
    assert receipt_in(lab.wire.exchange_bytes(json.dumps(command).encode()))["status"] == "completed"
    assert status(lab)["estop"]["reason"] == "fire"


def test_numbers_that_are_no_json_do_not_hold_it(lab: Lab, session: Session) -> None:
    """[CORE-183]"""
    body = b'{"method":"mhs.safety.estop","params":{"deadline_ms":NaN,"x":"' + LONG.encode() + b'"}}'
    assert receipt_in(lab.wire.exchange_bytes(body))["status"] == "completed"
    assert latched(lab)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"x": LONG}).encode(),
        json.dumps([DECOY, {"x": LONG}]).encode(),
        json.dumps(
            {**DECOY, "method": "mhs.evidence.verify", "params": {"x": [json.dumps(DECOY), LONG]}}
        ).encode(),
        json.dumps([{"method": STOP + "x", "x": LONG}, [request(STOP)], STOP, STOP_CLASS]).encode(),
    ],
    ids=["no word of it", "quoted", "in a string", "in the wrong place"],
)
def test_what_only_mentions_a_stop_is_refused_and_stops_nothing(
    lab: Lab, session: Session, body: bytes
) -> None:
    """[CORE-076, PROTO-043]"""
    assert refusal(lab.wire.exchange_bytes(body)) == {"reason": "bytes", "limit": 1_048_576}
    assert not latched(lab)


def test_a_stop_of_a_device_that_is_not_there_says_so(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    details = refusal(lab.wire.exchange_bytes(stop_text(device_id="mhs://localhost:7400/lab/none", x=LONG)))
    assert details["estop_served"] is False
    (error,) = details["estop_errors"]
    assert error["data"]["mhs_code"] == "MHS.DEVICE.UNKNOWN"
    assert not latched(lab)


def test_many_stops_of_one_message_run_once_for_each_target(lab: Lab, session: Session) -> None:
    """[CORE-076] So that no message can make work that outlasts it."""
    before = len(evidence(lab))
    stops = [stop_text(), stop_text(device_id=CONVEYOR)] * 5000
    details = refusal(lab.wire.exchange_bytes(b"[" + b",".join(stops) + b"]"))
    assert [receipt["status"] for receipt in details["receipts"]] == ["completed"] * 2
    assert len(evidence(lab)) == before + 2


def test_too_many_different_targets_stop_everything(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    stops = [
        stop_text(device_id=f"mhs://localhost:7400/lab/none-{number}", x="x" * 12_000)
        for number in range(100)
    ]
    details = refusal(lab.wire.exchange_bytes(b"[" + b",".join(stops) + b"]"))
    assert len(details["estop_errors"]) == 64
    assert details["receipt"]["status"] == "completed"
    assert latched(lab)


# Over the items and the levels of a message.


def test_a_stop_in_a_message_of_too_many_items_runs(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    answer = lab.wire.exchange_bytes(stop_text(x=[[]] * 30_000))
    assert refusal(answer)["reason"] == "items"
    assert receipt_in(answer)["status"] == "completed"
    assert latched(lab)


def test_a_stop_in_a_message_of_too_many_levels_runs(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    body = b"[" + b"[" * 100 + b"]" * 100 + b"," + stop_text() + b"]"
    answer = lab.wire.exchange_bytes(body)
    assert refusal(answer, "MHS.PROTOCOL.PARSE_ERROR")["reason"] == "depth"
    assert receipt_in(answer)["status"] == "completed"
    assert latched(lab)


def test_items_and_levels_that_only_quote_a_stop_stop_nothing(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    many = {**DECOY, "x": [[]] * 30_000}
    assert refusal(lab.wire.exchange_bytes(json.dumps(many).encode()))["reason"] == "items"
    deep = b'{"x":' * 100 + json.dumps(DECOY).encode() + b"}" * 100
    assert refusal(lab.wire.exchange_bytes(deep), "MHS.PROTOCOL.PARSE_ERROR")["reason"] == "depth"
    assert not latched(lab)


def test_configured_limits_hold_for_the_search_too(fresh: Start) -> None:
    """[CORE-076]"""
    lab = fresh("--max-json-items", "100", "--max-request-bytes", "2048")
    answer = lab.wire.exchange_bytes(stop_text(x=[1] * 200))
    assert refusal(answer) == {
        "reason": "items",
        "limit": 100,
        "estop_served": True,
        "receipt": receipt_in(answer),
    }
    answer = lab.wire.exchange_bytes(stop_text(x="x" * 2048))
    assert refusal(answer)["reason"] == "bytes"
    assert receipt_in(answer)["status"] == "completed"


# Batches and rates.


def test_a_batch_of_too_many_elements_does_not_hold_its_stop(lab: Lab, session: Session) -> None:
    """[CORE-076]"""
    asked = request(STOP, reason="smoke")
    answers = lab.wire.exchange([request("mhs.hello") for _ in range(100)] + [asked])
    by_id = {answer["id"]: answer for answer in answers}
    assert receipt_in(by_id[asked["id"]])["status"] == "completed"
    assert by_id[None]["error"]["data"]["mhs_code"] == "MHS.PROTOCOL.BATCH_TOO_LARGE"
    assert latched(lab)


def test_a_used_up_rate_does_not_hold_a_stop_in_a_message_that_is_too_large(fresh: Start) -> None:
    """[CORE-076]"""
    lab = fresh("--rate-per-s", "1", "--rate-burst", "1")
    for _ in range(3):
        lab.wire.exchange_bytes(text("mhs.hello", params={}))
    assert receipt_in(lab.wire.exchange_bytes(stop_text(x=LONG)))["status"] == "completed"


# As it comes.


def test_a_stop_runs_before_the_end_of_its_message_has_come(tmp_path: Path) -> None:
    """[CORE-076] On stdio too, where nobody else could see it: tests/bindings/test_long_messages.py."""
    with running("http", tmp_path) as lab:
        assert isinstance(lab.wire, HttpWire)
        connection = HTTPConnection(lab.wire.host, int(lab.wire.port), timeout=PATIENCE_S)
        connection.putrequest("POST", "/mhs/v1/rpc")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "1048577")
        connection.endheaders(b"[" + stop_text() + b",")
        assert ask_until(lambda: latched(lab), bool)
        assert receipt_in(json.loads(connection.getresponse().read()))["status"] == "completed"
        connection.close()


def test_ids_that_were_used_do_not_hold_it(lab: Lab, session: Session) -> None:
    """[CORE-076, PROTO-004]"""
    used = ulid()
    lab.wire.exchange({**request("mhs.hello"), "id": used})
    assert (
        receipt_in(lab.wire.exchange_bytes(text(STOP, id=used, params={"x": LONG})))["status"] == "completed"
    )
