"""Whatever JSON arrives is a call or malformed, and only a call with all its parts is a call."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mhsd.wire.json_text import encode_error
from mhsd.wire.jsonrpc import Batch, Malformed, Notification, Request, classify, parse_message

BOUNDED = settings(max_examples=2 * settings().max_examples)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ENVELOPES = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | JSON,
        "id": st.text(max_size=3) | st.integers() | JSON,
        "method": st.just("mhs.hello") | JSON,
        "params": st.dictionaries(st.text(max_size=3), JSON, max_size=2) | JSON,
        "result": JSON,
        "error": JSON,
        "extra": JSON,
    },
)


def is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= {"jsonrpc", "id", "method", "params"}
        and value.get("jsonrpc") == "2.0"
        and isinstance(value.get("method"), str)
        and isinstance(value.get("params", {}), dict)
        and ("id" not in value or (isinstance(value["id"], str | int) and not isinstance(value["id"], bool)))
    )


@BOUNDED
@given(ENVELOPES | JSON)
def test_exactly_the_complete_envelopes_are_calls(value: Any) -> None:
    found = classify(value)
    assert is_call(value) is not isinstance(found, Malformed)
    if isinstance(found, Request):
        assert (found.id, found.method, found.params) == (
            value["id"],
            value["method"],
            value.get("params", {}),
        )
    elif isinstance(found, Notification):
        assert "id" not in value
    else:
        assert encode_error(found.id, found.fault.error())


@BOUNDED
@given(st.lists(ENVELOPES | JSON, max_size=6), st.integers(1, 4))
def test_a_batch_is_its_elements_or_refused_whole(value: list[Any], max_batch: int) -> None:
    found = parse_message(value, max_batch=max_batch)
    if 0 < len(value) <= max_batch:
        assert isinstance(found, Batch)
        assert [type(call) for call in found.calls] == [type(classify(element)) for element in value]
    else:
        assert isinstance(found, Malformed)
        assert found.id is None
