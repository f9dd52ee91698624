"""The client over HTTP against endpoints that answer as they please [TPT-012, TPT-013, TPT-062]."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator

import pytest

from mhsd.client.client import Client, connect
from mhsd.client.errors import AnswerLost, AuthError, MHSError, ProtocolError, TransportError
from tests.cli.tiny import HELLO, Answer, Endpoint, Request, Tiny, http, refusal, result

Serve = Callable[[Answer], Tiny]


@pytest.fixture
def serve() -> Iterator[Serve]:
    served: list[Tiny] = []

    def start(answer: Answer) -> Tiny:
        served.append(Tiny(answer))
        return served[-1]

    yield start
    for tiny in served:
        tiny.close()


def client_of(tiny: Tiny, timeout_s: float = 5.0, token: str | None = None) -> Client:
    return connect(tiny.url, timeout_s=timeout_s, token=token)


def test_a_call_is_one_post_with_the_token_in_its_header_alone(serve: Serve) -> None:
    tiny = serve(Endpoint())
    with client_of(tiny, token="s3cret") as client:
        assert client.hello() == HELLO
    request = tiny.requests[0]
    assert request.head.startswith("POST /mhs/v1/rpc HTTP/1.1\r\n")
    assert request.header("Content-Type") == "application/json"
    assert request.header("Authorization") == "Bearer s3cret"
    assert b"s3cret" not in request.body


def test_calls_one_after_another_share_a_connection(serve: Serve) -> None:
    tiny = serve(Endpoint(devices_list=lambda _: {"devices": []}))
    with client_of(tiny) as client:
        client.hello()
        client.call("mhs.devices.list")
        client.call("mhs.devices.list")
    assert [request.connection for request in tiny.requests] == [1, 1, 1]


def test_a_connection_that_the_endpoint_closed_is_not_used_again(serve: Serve) -> None:
    def answer(request: Request) -> bytes:
        return result(request, {}).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)

    tiny = serve(answer)
    with client_of(tiny) as client:
        client.call("mhs.command", {})
        client.call("mhs.command", {})
    assert [request.connection for request in tiny.requests] == [1, 2]


def test_concurrent_calls_have_connections_of_their_own(serve: Serve) -> None:
    together = threading.Barrier(4, timeout=10)

    def answer(request: Request) -> bytes:
        together.wait()
        return result(request, {"asked": request.params["n"]})

    tiny = serve(answer)
    answers: dict[int, object] = {}
    with client_of(tiny) as client:

        def ask(n: int) -> None:
            answers[n] = client.call("mhs.devices.get", {"n": n})

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert answers == {n: {"asked": n} for n in range(4)}


def test_a_deadline_stands_in_the_methods_that_have_one(serve: Serve) -> None:
    tiny = serve(lambda request: result(request, {}))
    with client_of(tiny, timeout_s=2.5) as client:
        client.call("mhs.safety.status")
        client.call("mhs.command", {"deadline_ms": 70})
        client.call("mhs.devices.list")
    deadlines = [request.params.get("deadline_ms") for request in tiny.requests]
    assert deadlines == [2500, 70, None]


def test_a_deadline_is_at_most_what_the_endpoint_allows(serve: Serve) -> None:
    tiny = serve(
        Endpoint(
            hello=lambda _: {**HELLO, "limits": {"max_command_deadline_ms": 1000}}, safety_status=lambda _: {}
        )
    )
    with client_of(tiny, timeout_s=7200) as client:
        client.call("mhs.safety.status")
        client.hello()
        client.call("mhs.safety.status")
    deadlines = [r.params["deadline_ms"] for r in tiny.requests if r.method == "mhs.safety.status"]
    assert deadlines == [600_000, 1000]


def test_nothing_listens_so_nothing_was_sent() -> None:
    tiny = Tiny(Endpoint())
    tiny.close()
    with connect(tiny.url, timeout_s=2.0) as client, pytest.raises(TransportError) as failed:
        client.call("mhs.command", {})
    assert failed.value.mhs_code == "MHS.TRANSPORT.UNAVAILABLE"
    assert failed.value.retryable is True


def cut(request: Request) -> None:
    """Closes the connection after the request was read."""


HALF = http(200, b'{"jsonrpc"').replace(b"Content-Length: 10", b"Content-Length: 100")


@pytest.mark.parametrize(
    "answer",
    [
        cut,
        lambda _: http(200, b"<html>hello</html>", Content_Type="text/html"),
        lambda _: http(200, b'{"jsonrpc": "2.0", "id": "another", "result": {}}'),
        lambda _: http(200, b"[]"),
        lambda _: http(200, b"[" * 100_000),
        lambda _: http(502, b"bad gateway"),
        lambda _: http(204),
        lambda _: b"SSH-2.0-OpenSSH\r\n",
        lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}" + b"x" * 10,
    ],
)
def test_an_answer_that_is_lost_leaves_the_outcome_of_a_command_unknown(
    serve: Serve, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhsd.client.calls.ANSWER_GRACE_S", 0.2)
    tiny = serve(answer)
    with client_of(tiny, timeout_s=0.1) as client, pytest.raises(AnswerLost) as lost:
        client.call("mhs.command", {})
    assert lost.value.mhs_code in ("MHS.OUTCOME.UNKNOWN", "MHS.OUTCOME.TIMEOUT")
    assert lost.value.retryable is False
    assert len(tiny.requests) == 1


def test_half_an_answer_is_none(serve: Serve) -> None:
    def answer(request: Request) -> bytes:
        return HALF if len(tiny.requests) == 1 else result(request, {})

    tiny = serve(answer)
    with client_of(tiny, timeout_s=0.2) as client:
        with pytest.raises(AnswerLost):
            client.call("mhs.devices.list")
        assert client.call("mhs.devices.list") == {}
    assert [request.connection for request in tiny.requests] == [1, 2]


def test_silence_is_a_timeout_and_says_that_a_read_changes_nothing(serve: Serve) -> None:
    tiny = serve(lambda _: b"")
    with client_of(tiny) as client, pytest.raises(AnswerLost) as lost:
        client.call("mhs.devices.list", deadline_s=0.1)
    assert lost.value.mhs_code == "MHS.OUTCOME.TIMEOUT"
    assert "changes nothing" in lost.value.message
    assert lost.value.retryable is False, "as in the table of errors"


def test_a_peer_that_trickles_cannot_hold_a_call_beyond_its_time(serve: Serve) -> None:
    given_up = threading.Event()

    def trickle(request: Request) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nX-Slow: "
        while not given_up.wait(0.02):
            yield b"x"

    tiny = serve(trickle)
    with client_of(tiny) as client, pytest.raises(AnswerLost) as lost:
        client.call("mhs.devices.list", deadline_s=0.2)
    given_up.set()
    assert lost.value.mhs_code == "MHS.OUTCOME.TIMEOUT"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_never_followed(serve: Serve, status: int) -> None:
    other = serve(Endpoint())
    tiny = serve(lambda _: http(status, b"", Location=f"{other.url}/mhs/v1/rpc"))
    with client_of(tiny, token="s3cret") as client, pytest.raises(TransportError) as failed:
        client.call("mhs.command", {})
    assert failed.value.details["http_status"] == status
    assert failed.value.http_status == status
    assert other.requests == []


@pytest.mark.parametrize(
    ("status", "mhs_code"),
    [
        (401, "MHS.AUTH.UNAUTHENTICATED"),
        (403, "MHS.AUTH.FORBIDDEN"),
        (404, "MHS.TRANSPORT.UNAVAILABLE"),
        (413, "MHS.LIMIT.PAYLOAD_TOO_LARGE"),
    ],
)
def test_an_http_refusal_without_a_json_body_still_has_a_code(
    serve: Serve, status: int, mhs_code: str
) -> None:
    tiny = serve(lambda _: http(status, b"no"))
    with client_of(tiny) as client, pytest.raises(MHSError) as refused:
        client.call("mhs.command", {})
    assert (refused.value.mhs_code, refused.value.http_status) == (mhs_code, status)


def test_the_json_body_of_a_refusal_wins(serve: Serve) -> None:
    tiny = serve(lambda _: refusal(None, "MHS.AUTH.UNAUTHENTICATED", 401, message="no token"))
    with client_of(tiny) as client, pytest.raises(AuthError, match="no token") as refused:
        client.hello()
    assert refused.value.http_status == 401


def test_what_the_rate_limit_refused_unread_is_sent_again_after_the_pause(serve: Serve) -> None:
    def answer(request: Request) -> bytes:
        if len(tiny.requests) < 3:
            return refusal(None, "MHS.LIMIT.RATE_EXCEEDED", 429, details={"retry_after_ms": 5})
        return result(request, {"status": "completed"})

    tiny = serve(answer)
    with client_of(tiny) as client:
        assert client.call("mhs.command", {}) == {"status": "completed"}
    assert len(tiny.requests) == 3


def test_a_pause_longer_than_the_time_left_is_an_error_at_once(serve: Serve) -> None:
    tiny = serve(lambda _: http(429, b"", Retry_After="3600"))
    with client_of(tiny) as client, pytest.raises(MHSError) as refused:
        client.call("mhs.devices.list")
    assert refused.value.mhs_code == "MHS.LIMIT.RATE_EXCEEDED"
    assert len(tiny.requests) == 1


def test_no_other_refusal_is_repeated(serve: Serve) -> None:
    tiny = serve(
        lambda request: refusal(request, "MHS.DEVICE.BUSY", retryable=True, details={"retry_after_ms": 1})
    )
    with client_of(tiny) as client, pytest.raises(MHSError):
        client.call("mhs.command", {})
    assert len(tiny.requests) == 1


def test_a_request_beyond_the_endpoints_limit_is_not_sent(serve: Serve) -> None:
    tiny = serve(Endpoint(hello=lambda _: {**HELLO, "limits": {"max_request_bytes": 2000}}))
    with client_of(tiny) as client:
        client.hello()
        with pytest.raises(MHSError) as refused:
            client.call("mhs.command", {"input": "x" * 3000})
    assert refused.value.mhs_code == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert tiny.methods() == ["mhs.hello"]


@pytest.mark.parametrize("version", ["2.0", None, 1])
def test_an_endpoint_of_another_major_version_is_refused(serve: Serve, version: object) -> None:
    tiny = serve(Endpoint(hello=lambda _: {**HELLO, "mhs_version": version}))
    with client_of(tiny) as client, pytest.raises(ProtocolError) as refused:
        client.hello()
    assert refused.value.mhs_code == "MHS.PROTOCOL.VERSION_UNSUPPORTED"


def test_a_result_that_is_no_object_is_a_protocol_error(serve: Serve) -> None:
    tiny = serve(lambda request: result(request, ["x"]))
    with client_of(tiny) as client, pytest.raises(ProtocolError):
        client.call("mhs.devices.list")


def test_plain_http_to_another_machine_never_connects() -> None:
    with pytest.raises(AuthError):
        connect("http://192.0.2.1:7400", token="s3cret")


def test_a_closed_client_sends_nothing(serve: Serve) -> None:
    tiny = serve(Endpoint())
    client = client_of(tiny)
    client.hello()
    client.close()
    with pytest.raises(TransportError):
        client.call("mhs.devices.list")
    assert tiny.methods() == ["mhs.hello"]


def test_chunked_answers_are_read(serve: Serve) -> None:
    def answer(request: Request) -> bytes:
        content = json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "result": {"ok": True}}).encode()
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (content[:9], content[9:]))
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"

    tiny = serve(answer)
    with client_of(tiny) as client:
        assert client.call("mhs.devices.list") == {"ok": True}
        assert client.call("mhs.devices.list") == {"ok": True}
    assert [request.connection for request in tiny.requests] == [1, 1]
