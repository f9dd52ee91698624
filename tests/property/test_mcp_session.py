"""Whatever a client writes, the MCP peer answers each request once at most and never raises."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mhsd.mcp.session import Call, Cancellation, McpSession, Reply

IDS = st.one_of(
    st.integers(-3, 3), st.sampled_from(["", "0", "1", "a"]), st.none(), st.booleans(), st.floats()
)
METHODS = st.sampled_from(
    ["initialize", "ping", "tools/list", "tools/call", "notifications/cancelled", "server/discover", "x"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PARAMS = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"name": st.sampled_from(["mhs__estop", "x"]), "_meta": JSON}),
    st.fixed_dictionaries({"requestId": IDS}),
    JSON,
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {}, optional={"jsonrpc": st.just("2.0"), "id": IDS, "method": METHODS, "params": PARAMS}
    ),
    st.fixed_dictionaries({"jsonrpc": st.just("2.0"), "id": IDS, "method": METHODS, "params": PARAMS}),
    JSON,
)
LINES = st.one_of(MESSAGES.map(lambda message: json.dumps(message).encode()), st.binary(max_size=60))


@given(lines=st.lists(LINES, max_size=30), answered_every=st.integers(1, 5))
def test_every_request_has_one_response_and_nothing_else_has_any(
    lines: list[bytes], answered_every: int
) -> None:
    session = McpSession()
    open_calls: list[Call] = []
    for number, line in enumerate(lines):
        received = session.receive(line)
        message = _decoded(line)
        if isinstance(received, Reply) and received.data is None:
            assert b"mhs__estop" in line
        elif isinstance(received, Reply):
            assert received.data is not None
            answer: dict[str, Any] = json.loads(received.data)
            assert received.data.isascii()
            assert ("result" in answer) != ("error" in answer)
            is_notification = isinstance(message, dict) and "id" not in message and "method" in message
            assert not (is_notification and message.get("jsonrpc") == "2.0")
            # An id that is in use belongs to the call that has it; its response is still to come.
            assert answer["id"] is None or answer["id"] not in [call.id for call in open_calls]
        elif isinstance(received, Call):
            assert received.id not in [call.id for call in open_calls]
            open_calls.append(received)
        elif isinstance(received, Cancellation):
            assert received.call in open_calls
        if open_calls and number % answered_every == 0:
            call = open_calls.pop(0)
            assert session.result(call, {}) is not None
            assert session.result(call, {}) is None
            assert session.progress(call, 1) is None
    assert list(session.open_calls) == open_calls


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
