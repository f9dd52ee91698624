"""Streams of events of a real daemon: resumed, limited, ended [TPT-016 to TPT-019]."""

from __future__ import annotations

import hashlib
import signal
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.lab import HttpWire, Lab, Session, ask_until, running
from tests.sse import EventReader

STATE = [{"stream": "state", "resource_id": "world"}]
STEP = "cap.world.step.v1"
UNHURRIED = ("--rate-per-s", "100000", "--rate-burst", "100000", "--log-level", "warning")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running("http", tmp_path_factory.mktemp("sse"), *UNHURRIED) as lab:
        yield lab


@pytest.fixture
def session(lab: Lab) -> Iterator[Session]:
    session = lab.open()
    yield session
    lab.wire.exchange(_close(session))


def _close(session: Session) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "mhs.session.close", "params": {"session_id": session.id}}


def subscribe(session: Session, streams: list[dict[str, Any]] | None = None, **more: Any) -> Any:
    return session.call("mhs.subscribe", streams=streams or STATE, deadline_ms=5000, **more)


def step(session: Session, count: int = 1) -> None:
    for _ in range(count):
        session.completed(STEP, {"ticks": 1})


def seqs(events: list[dict[str, Any]]) -> list[int]:
    return [event["seq"] for event in events]


def test_what_changes_comes_to_the_stream_of_its_session_in_order(lab: Lab, session: Session) -> None:
    grant = subscribe(session)
    with EventReader(lab, session.id) as reader:
        assert reader.headers["content-type"] == "text/event-stream"
        step(session, 3)
        events = reader.take(3)
    assert seqs(events) == [grant["seq_start"] + number for number in range(3)]
    assert {event["subscription_id"] for event in events} == {grant["subscription_id"]}
    ticks = [event["payload"]["tick"] for event in events]
    assert ticks == [ticks[0], ticks[0] + 1, ticks[0] + 2]


def test_what_was_published_before_a_stream_is_kept_for_it(lab: Lab, session: Session) -> None:
    grant = subscribe(session)
    step(session, 3)
    with EventReader(lab, session.id) as reader:
        assert reader.next()["seq"] == grant["seq_start"]


def test_each_of_several_streams_gets_every_event_of_every_subscription(lab: Lab, session: Session) -> None:
    first = subscribe(session)["subscription_id"]
    with EventReader(lab, session.id) as one, EventReader(lab, session.id) as other:
        second = subscribe(session)["subscription_id"]
        step(session, 2)
        for reader in (one, other):
            events = reader.take(4)
            for subscription in (first, second):
                own = [event for event in events if event["subscription_id"] == subscription]
                assert len(own) == 2
                assert own[1]["seq"] == own[0]["seq"] + 1


def test_a_stream_of_one_subscription_has_no_others_and_ends_with_it(lab: Lab, session: Session) -> None:
    subscribe(session)
    wanted = subscribe(session)["subscription_id"]
    with EventReader(lab, session.id, subscription_id=wanted) as reader:
        step(session, 2)
        assert {event["subscription_id"] for event in reader.take(2)} == {wanted}
        session.call("mhs.unsubscribe", subscription_id=wanted)
        assert list(reader.until_end()) == []


# Resuming


def test_a_client_that_comes_back_goes_on_behind_its_last_event(lab: Lab, session: Session) -> None:
    """TPT-018, TPT-063: nothing twice, nothing lost, no gap."""
    subscribe(session)
    with EventReader(lab, session.id) as reader:
        step(session, 5)
        before = reader.take(2)
        last = reader.last_event_id
    step(session, 1)
    with EventReader(lab, session.id, last_event_id=last) as reader:
        after = reader.take(4)
    assert [later - earlier for earlier, later in pairwise(seqs(before + after))] == [1] * 5
    assert {event["stream"] for event in after} == {"state"}


def test_what_is_no_longer_kept_is_a_gap_that_is_named(tmp_path: Path) -> None:
    """TPT-018: the gap comes first, with the seq of the last event that is lost."""
    with running("http", tmp_path, *UNHURRIED, "--event-buffer", "4") as lab:
        session = lab.open()
        subscription = subscribe(session)["subscription_id"]
        with EventReader(lab, session.id) as reader:
            step(session, 2)
            reader.take(2)
            last = reader.last_event_id
        step(session, 20)
        with EventReader(lab, session.id, last_event_id=last) as reader:
            gap, *events = reader.take(4)
    assert (gap["stream"], gap["type"], gap["payload"]) == ("control", "gap", {})
    assert gap["from"] == 3
    assert gap["seq"] == gap["to"]
    assert gap["dropped"] == gap["to"] - gap["from"] + 1
    assert seqs(events) == [gap["to"] + 1, gap["to"] + 2, gap["to"] + 3]
    assert gap["subscription_id"] == subscription


def test_who_comes_back_often_pushes_out_nothing_that_is_kept(tmp_path: Path) -> None:
    """TPT-018: what is buffered is resumed at the next seq, however many streams have begun behind it."""
    with running("http", tmp_path, *UNHURRIED, "--event-buffer", "4") as lab:
        session = lab.open()
        subscription = subscribe(session)["subscription_id"]
        step(session, 10)
        for _ in range(3):
            with EventReader(lab, session.id) as reader:
                gap, *events = reader.take(5)
            assert (gap["type"], gap["from"], gap["to"]) == ("gap", 1, 6)
            assert seqs(events) == [7, 8, 9, 10]
        with EventReader(lab, session.id, last_event_id=f"{subscription}:7") as reader:
            assert seqs(reader.take(3)) == [8, 9, 10]


def test_a_subscription_that_the_last_event_id_does_not_name_comes_from_its_start(
    lab: Lab, session: Session
) -> None:
    first, second = subscribe(session), subscribe(session)
    step(session, 2)
    last = f"{first['subscription_id']}:{first['seq_start']}"
    with EventReader(lab, session.id, last_event_id=last) as reader:
        events = reader.take(3)
    found = sorted((event["subscription_id"], event["seq"]) for event in events)
    assert found == sorted(
        [
            (first["subscription_id"], first["seq_start"] + 1),
            (second["subscription_id"], second["seq_start"]),
            (second["subscription_id"], second["seq_start"] + 1),
        ]
    )


def test_a_last_event_id_of_a_subscription_that_is_gone_changes_nothing(lab: Lab, session: Session) -> None:
    gone = subscribe(session)["subscription_id"]
    session.call("mhs.unsubscribe", subscription_id=gone)
    grant = subscribe(session)
    step(session)
    with EventReader(lab, session.id, last_event_id=f"{gone}:5") as reader:
        assert reader.next()["seq"] == grant["seq_start"]


def test_a_last_event_id_ahead_of_all_events_hides_none_that_comes(lab: Lab, session: Session) -> None:
    grant = subscribe(session)
    last = f"{grant['subscription_id']}:{grant['seq_start'] + 1000}"
    with EventReader(lab, session.id, last_event_id=last) as reader:
        step(session)
        assert reader.next()["seq"] == grant["seq_start"]


# Refusals


def test_a_session_that_is_unknown_closed_or_expired_is_403(lab: Lab) -> None:
    """TPT-017"""
    closed, expired = lab.open(), lab.open(ttl_s=1)
    closed.close()
    for session_id, code in ((closed.id, "CLOSED"), ("mhs_s_nobody", "UNKNOWN")):
        refused = EventReader(lab, session_id)
        assert (refused.status, refused.code) == (403, f"MHS.SESSION.{code}")
    refused = ask_until(lambda: _refusal(lab, expired), lambda found: found is not None)
    assert (refused.status, refused.code) == (403, "MHS.SESSION.EXPIRED")


def _refusal(lab: Lab, session: Session) -> EventReader | None:
    with EventReader(lab, session.id) as reader:
        return reader if reader.status != 200 else None


def test_a_subscription_that_is_not_the_sessions_is_404(lab: Lab, session: Session) -> None:
    """TPT-017"""
    other = lab.open()
    theirs, gone = subscribe(other)["subscription_id"], subscribe(session)["subscription_id"]
    session.call("mhs.unsubscribe", subscription_id=gone)
    for subscription_id in (theirs, gone, "sub_nobody", ""):
        refused = EventReader(lab, session.id, subscription_id=subscription_id)
        assert (refused.status, refused.code) == (404, "MHS.RESOURCE.UNKNOWN")
        assert "subscription" in refused.error["message"]
    other.close()


@pytest.fixture
def two_principals(tmp_path: Path) -> Iterator[tuple[Lab, Lab]]:
    """One endpoint as two principals see it."""
    tokens = tmp_path / "tokens.toml"
    tokens.touch(0o600)
    lines = [
        f'[[token]]\nsha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\nprincipal = "agent:{name}"\n'
        for name in ("ann", "bob")
    ]
    tokens.write_text("".join(lines))
    with running("http", tmp_path, "--token-file", str(tokens), "--log-level", "debug") as lab:
        labs = [
            Lab(HttpWire(lab.ready["url"], name), lab.process, lab.ready, lab.stderr_file)
            for name in ("ann", "bob")
        ]
        yield labs[0], labs[1]


def test_another_principals_session_is_403_and_nobodys_401(two_principals: tuple[Lab, Lab]) -> None:
    """TPT-017: a session id is not enough."""
    ann, bob = two_principals
    session = ann.open()
    subscribe(session)
    refused = EventReader(bob, session.id)
    assert (refused.status, refused.code) == (403, "MHS.SESSION.UNKNOWN")
    refused = EventReader(ann, session.id, token="wrong")
    assert (refused.status, refused.code) == (401, "MHS.AUTH.UNAUTHENTICATED")
    with EventReader(ann, session.id) as reader:
        step(session)
        assert reader.next()["stream"] == "state"
    assert EventReader(ann, "s3cret-by-mistake").status == 403
    assert "401" in ann.stderr()
    assert "session_id=" not in ann.stderr()
    assert "s3cret-by-mistake" not in ann.stderr()


def test_the_fifth_stream_of_a_principal_is_429_until_another_has_ended(
    two_principals: tuple[Lab, Lab],
) -> None:
    """TPT-017: over all of its sessions, and no other principal is hindered."""
    ann, bob = two_principals
    sessions = [ann.open(), ann.open()]
    readers = [EventReader(ann, sessions[number % 2].id) for number in range(4)]
    refused = EventReader(ann, sessions[0].id)
    assert (refused.status, refused.code) == (429, "MHS.LIMIT.CONNECTION_LIMIT")
    assert int(refused.headers["retry-after"]) >= 1
    with EventReader(bob, bob.open().id) as others:
        assert others.status == 200
    readers.pop().close()
    ask_until(lambda: _status(ann, sessions[0]), lambda status: status == 200)
    sessions[1].close()
    readers = readers[:3:2] + [EventReader(ann, sessions[0].id) for _ in range(2)]
    assert [reader.status for reader in readers] == [200] * 4
    for reader in readers:
        reader.close()


def test_asking_for_a_stream_counts_as_a_request(tmp_path: Path) -> None:
    """TPT-020: who connects again and again is told to wait, as with any other request."""
    with running("http", tmp_path, "--rate-per-s", "1", "--rate-burst", "10") as lab:
        session = lab.open()
        refused = ask_until(lambda: _refusal(lab, session), lambda found: found is not None)
    assert (refused.status, refused.code) == (429, "MHS.LIMIT.RATE_EXCEEDED")
    assert int(refused.headers["retry-after"]) >= 1


def _status(lab: Lab, session: Session) -> int:
    with EventReader(lab, session.id) as reader:
        return reader.status


# How a stream ends


def test_a_stream_ends_when_its_session_is_closed(lab: Lab) -> None:
    """TPT-017: after what there was."""
    session = lab.open()
    subscribe(session)
    with EventReader(lab, session.id) as reader:
        step(session, 2)
        session.close()
        assert seqs(list(reader.until_end()))[:2] == [1, 2]


def test_a_stream_ends_when_its_session_expires(lab: Lab) -> None:
    session = lab.open(ttl_s=1)
    with EventReader(lab, session.id) as reader:
        assert list(reader.until_end()) == []


def test_a_stop_is_told_on_every_stream(lab: Lab) -> None:
    """CORE-184: safety events come on the control stream, whatever was subscribed to."""
    session = lab.open()
    subscribe(session)
    with EventReader(lab, session.id) as reader:
        lab.call("mhs.safety.estop", reason="test")
        events = iter(reader.next, None)
        told = next(event for event in events if event.get("type") == "safety")
        assert told["stream"] == "control"
        session.call(
            "mhs.safety.reset", device_id=session.lab.hello()["devices"][0]["device_id"], deadline_ms=30_000
        )
    session.close()


def test_the_end_of_the_endpoint_is_told_before_its_streams_end(tmp_path: Path) -> None:
    """The stop order: devices safe, then what there is to say, then the end, and nobody waits for the deaf."""
    with running("http", tmp_path, *UNHURRIED) as lab:
        session = lab.open()
        subscribe(session, [{"stream": "progress"}, {"stream": "telemetry", "resource_id": "belt"}])
        pending, running_receipt = session.started(
            "cap.motion.convey.v1", {"distance_mm": 100_000, "speed_mm_s": 100}
        )
        deaf = EventReader(lab, session.id)
        with EventReader(lab, session.id) as reader:
            reader.next()
            lab.process.send_signal(signal.SIGTERM)
            events = list(reader.until_end())
        assert lab.process.wait(20) == 0
        deaf.close()
    progress = [event["payload"] for event in events if event["stream"] == "progress"]
    assert progress[-1]["operation_id"] == running_receipt["operation_id"]
    assert progress[-1]["status"] == "cancelled"
    assert pending.answer()


# Other ways in


def test_the_local_socket_serves_streams_too(tmp_path: Path) -> None:
    with running("http", tmp_path, *UNHURRIED) as lab:
        session = lab.open()
        subscribe(session)
        step(session)
        (path,) = (tmp_path / "run").glob("*.sock")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(str(path))
            sock.sendall(
                f"GET /mhs/v1/events?session_id={session.id} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
            )
            received = b""
            while b"mhs.event" not in received:
                received += sock.recv(65536)
        assert received.startswith(b"HTTP/1.1 200 ")


def test_an_endpoint_on_stdio_names_no_stream(tmp_path: Path) -> None:
    """TPT-002"""
    with running("stdio", tmp_path) as lab:
        assert "sse" not in lab.hello()["features"]
