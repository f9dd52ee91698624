"""The MCP side of a connection: framing, handshake, ids, and one response a request at most."""

import json
from typing import Any

import pytest

from mhsd.mcp.session import MAX_FRAME_BYTES, Call, Cancellation, McpSession, Reply, notification


def _bytes(message: Any) -> bytes:
    return json.dumps(message).encode()


def _ask(session: McpSession, method: str, request_id: Any = 1, **params: Any) -> Any:
    return session.receive(_bytes({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}))


def _greeted(version: str = "2025-11-25", name: str = "tests") -> McpSession:
    session = McpSession()
    call = _ask(session, "initialize", "hello", protocolVersion=version, clientInfo={"name": name})
    assert session.result(call, {}) is not None
    return session


def _call(session: McpSession, request_id: Any = 1, **params: Any) -> Call:
    call = _ask(session, "tools/call", request_id, name="mhs__a__b", **params)
    assert isinstance(call, Call)
    return call


def _reply(received: Any) -> Any:
    assert isinstance(received, Reply)
    assert received.data.endswith(b"\n")
    assert received.data.count(b"\n") == 1
    return json.loads(received.data)


def _code(received: Any) -> tuple[Any, int]:
    message = _reply(received)
    return message["id"], message["error"]["code"]


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        (None, "2025-11-25"),
        (7, "2025-11-25"),
    ],
)
def test_a_known_revision_is_agreed_to_and_any_other_is_offered_the_latest(asked: Any, agreed: str) -> None:
    """TPT-045."""
    session = McpSession()
    call = _ask(session, "initialize", protocolVersion=asked, clientInfo={"name": "x"})
    assert isinstance(call, Call)
    assert session.version == agreed


def test_a_client_that_names_itself_badly_is_unknown() -> None:
    assert McpSession().client_name == "unknown"
    assert _greeted(name="\x00\n ").client_name == "unknown"
    assert _greeted(name="a\x00b").client_name == "ab"
    assert len(_greeted(name="n" * 1000).client_name) == 128


def test_before_initialize_only_ping_and_the_stop_are_served() -> None:
    """CORE-079."""
    session = McpSession()
    assert _reply(_ask(session, "ping", 1))["result"] == {}
    assert _code(_ask(session, "tools/list", 2)) == (2, -32600)
    assert _code(_ask(session, "tools/call", 3, name="mhs__devices")) == (3, -32600)
    stop = _ask(session, "tools/call", 4, name="mhs__estop")
    assert isinstance(stop, Call)
    assert stop.is_urgent


@pytest.mark.parametrize(
    "method", ["server/discover", "prompts/list", "completion/complete", "mhs.hello", "x"]
)
def test_a_method_that_is_not_served_is_refused_at_once_even_before_initialize(method: str) -> None:
    """TPT-045."""
    assert _code(_ask(McpSession(), method, "d1")) == ("d1", -32601)
    assert _code(_ask(_greeted(), method, "d1")) == ("d1", -32601)


@pytest.mark.parametrize("request_id", [0, "", "7", 7, -3, 2**53 + 1, "ü\u2028"])
def test_an_id_comes_back_as_it_was(request_id: Any) -> None:
    session = _greeted()
    call = _call(session, request_id)
    data = session.result(call, {})
    assert data is not None
    answered = json.loads(data)["id"]
    assert answered == request_id
    assert type(answered) is type(request_id)


def test_a_number_and_its_text_are_two_ids() -> None:
    session = _greeted()
    number, text = _call(session, 7), _call(session, "7")
    assert set(session.open_calls) == {number, text}


@pytest.mark.parametrize(
    ("line", "request_id", "code"),
    [
        (b"{", None, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":1,"x":2}}', 1, -32700),
        (b"\xff\xfe", None, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"\\ud800"}', 1, -32700),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":"\xff"}', "a", -32700),
        (b'{"jsonrpc":"2.0","id":"a","method":"ping","params":[NaN]}', "a", -32700),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"initialize"}', 1, -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"} {}', 1, -32700),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', None, -32700),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', None, -32700),
        (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', None, -32700),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping","params":NaN}', None, -32700),
        (b'{"jsonrpc":"2.0","id":1,"result":NaN}', None, -32700),
        (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', None, -32700),
        (b"[]", None, -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', None, -32600),
        (b"7", None, -32600),
        (b"null", None, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None, -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', None, -32600),
        (b'{"id":5,"method":"ping"}', 5, -32600),
        (b'{"jsonrpc":"1.0","id":5,"method":"ping"}', 5, -32600),
        (b'{"jsonrpc":"2.0","id":5}', 5, -32600),
        (b'{"jsonrpc":"2.0","id":5,"method":7}', 5, -32600),
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/list","params":[]}', 5, -32602),
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}', 5, -32602),
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":7}}', 5, -32602),
        (b'{"jsonrpc":"2.0","id":5,"method":"resources/read","params":{"uri":[]}}', 5, -32602),
        (b'{"jsonrpc":"2.0","id":5,"method":"logging/setLevel","params":{"level":"loud"}}', 5, -32602),
    ],
)
def test_a_malformed_line_is_answered_once_and_changes_nothing(
    line: bytes, request_id: Any, code: int
) -> None:
    session = _greeted("2025-03-26")
    assert _code(session.receive(line)) == (request_id, code)
    assert session.open_calls == ()
    assert _reply(_ask(session, "ping"))["result"] == {}


def test_bad_json_under_an_id_that_is_in_use_does_not_answer_the_call_that_has_it() -> None:
    session = _greeted()
    call = _call(session, 5)
    assert _code(session.receive(b'{"jsonrpc":"2.0","id":5,"method":"ping","params":NaN}')) == (None, -32700)
    assert session.open_calls == (call,)


def test_a_line_that_is_too_long_is_refused_with_the_limit() -> None:
    """TPT-047."""
    session = _greeted()
    refusal = _reply(session.receive(b'"' + b"x" * MAX_FRAME_BYTES + b'"'))
    assert refusal == _reply(session.too_long())
    assert refusal["error"]["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"
    assert refusal["id"] is None


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "x"}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed", "params": {}},
        {"jsonrpc": "2.0", "method": "notifications/unheard-of", "params": []},
        {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "mhs__devices"}},
        {"jsonrpc": "2.0", "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": [1]}},
    ],
)
def test_responses_and_notifications_are_never_answered(message: Any) -> None:
    session = _greeted()
    assert session.receive(_bytes(message)) is None
    assert session.open_calls == ()


def test_params_that_are_null_are_none() -> None:
    session = _greeted()
    call = session.receive(b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}')
    assert isinstance(call, Call)
    assert call.params == {}
    assert call.meta == {}


def test_one_call_has_one_response() -> None:
    session = _greeted()
    call = _call(session)
    assert session.result(call, {}) is not None
    assert session.result(call, {}) is None
    assert session.error(call, -32603, "late") is None
    # The same id may be used again afterwards, and belongs to the new call then.
    again = _call(session)
    assert not session.close(call)
    assert session.error(again, -32603, "now") is not None


def test_an_id_in_use_is_refused_without_answering_the_call_that_has_it() -> None:
    session = _greeted()
    call = _call(session, "a")
    for method in ("tools/list", "ping", "nothing"):
        assert _code(_ask(session, method, "a")) == (None, -32600)
    assert session.result(call, {}) is not None


def test_a_call_is_cancelled_once_and_initialize_never() -> None:
    session = McpSession()
    _ask(session, "initialize", "i", protocolVersion="2025-06-18")
    cancel = _bytes({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "i"}})
    assert session.receive(cancel) is None
    call = _call(session, 3)
    cancel = _bytes({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 3}})
    assert session.receive(cancel) == Cancellation(call)
    assert call.is_cancelled
    assert session.receive(cancel) is None
    assert session.result(call, {}) is not None
    assert session.receive(cancel) is None


def test_progress_rises_and_ends_with_the_response() -> None:
    """TPT-040."""
    session = _greeted()
    call = _call(session, _meta={"progressToken": "p"})
    sent = [session.progress(call, value, 100, "moving") for value in (1, 1, 0.5, 2)]
    assert [data is not None for data in sent] == [True, False, False, True]
    assert json.loads(sent[0] or b"")["params"] == {
        "progressToken": "p",
        "progress": 1,
        "total": 100,
        "message": "moving",
    }
    session.result(call, {})
    assert session.progress(call, 3) is None


@pytest.mark.parametrize("meta", [None, {}, {"progressToken": True}, {"progressToken": 1.5}, 7])
def test_nobody_who_did_not_ask_gets_progress(meta: Any) -> None:
    """TPT-040."""
    session = _greeted()
    assert session.progress(_call(session, _meta=meta), 1) is None


def test_a_progress_token_may_be_zero_and_the_first_revision_has_no_message() -> None:
    session = _greeted("2024-11-05")
    data = session.progress(_call(session, _meta={"progressToken": 0}), 0, None, "moving")
    assert json.loads(data or b"")["params"] == {"progressToken": 0, "progress": 0}


def test_a_result_over_the_frame_limit_is_an_error_that_says_so() -> None:
    """TPT-047."""
    session = _greeted()
    data = session.result(_call(session), {"text": "x" * MAX_FRAME_BYTES})
    assert data is not None
    assert len(data) < 1000
    assert json.loads(data)["error"]["data"]["mhs_code"] == "MHS.LIMIT.PAYLOAD_TOO_LARGE"


def test_what_is_sent_breaks_no_line() -> None:
    session = _greeted()
    data = session.result(_call(session), {"text": "a\n\u2028\u0085\ud800ü"})
    assert data is not None
    assert data.isascii()
    assert len(data.decode().splitlines()) == 1


def test_logs_are_sent_from_the_level_on_that_was_asked_for() -> None:
    assert McpSession().log("error", "x") is None
    session = _greeted()
    assert session.log("debug", "x") is None
    session.log_level = "emergency"
    assert session.log("alert", "x") is None
    data = session.log("emergency", "x")
    assert json.loads(data or b"")["params"] == {"level": "emergency", "logger": "mhsd", "data": "x"}


def test_a_notification_has_params_only_where_there_are_some() -> None:
    assert json.loads(notification("notifications/tools/list_changed")) == {
        "jsonrpc": "2.0",
        "method": "notifications/tools/list_changed",
    }


def test_a_second_initialize_agrees_again_and_changes_no_name() -> None:
    session = _greeted("2024-11-05", name="first")
    call = _ask(session, "initialize", 2, protocolVersion="2025-06-18", clientInfo={"name": "second"})
    assert isinstance(call, Call)
    assert (session.version, session.client_name) == ("2025-06-18", "first")


STOP = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "mhs__estop"}}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (_bytes([STOP]), -32600),
        (_bytes([{"x": 1}, STOP, 7]), -32600),
        (_bytes({**STOP, "jsonrpc": "1.0"}), -32600),
        (_bytes({**STOP, "id": None}), -32600),
        (_bytes({**STOP, "id": 1.5}), -32600),
        (_bytes(STOP)[:-1] + b',"x":1,"x":2}', -32700),
        (_bytes(STOP)[:-1] + b',"x":NaN}', -32700),
        (b"\xef\xbb\xbf" + _bytes(STOP), -32700),
        (_bytes({name: STOP[name] for name in STOP if name != "id"}), None),
    ],
)
def test_a_stop_is_carried_out_in_whatever_it_stands(line: bytes, code: int | None) -> None:
    """CORE-076."""
    session = _greeted("2025-03-26")
    received = session.receive(line)
    assert isinstance(received, Reply)
    (stop,) = received.stops
    assert stop.is_urgent
    assert (received.data is None) == (code is None)
    if received.data is not None:
        error = json.loads(received.data)["error"]
        assert error["code"] == code
        assert ("The e-stop in it is carried out." in error["message"]) == (code == -32700)
    # Nothing is said of it: whose answer would that be?
    assert session.result(stop, {}) is None
    assert session.open_calls == ()


def test_a_stop_under_an_id_that_is_in_use_is_carried_out() -> None:
    """CORE-076."""
    session = _greeted()
    call = _call(session, 1)
    received = session.receive(_bytes(STOP))
    assert isinstance(received, Reply)
    assert len(received.stops) == 1
    assert session.result(received.stops[0], {}) is None
    assert session.result(call, {}) is not None


@pytest.mark.parametrize(
    "message", [{"jsonrpc": "2.0", "id": 1, "result": "mhs__estop"}, {"about": "mhs__estop"}, "mhs__estop"]
)
def test_what_only_mentions_a_stop_is_none(message: Any) -> None:
    received = _greeted().receive(_bytes(message))
    assert isinstance(received, Reply)
    assert received.stops == ()
