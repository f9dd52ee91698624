"""No parameters make reading raise anything but a fault that can be sent."""

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from mhsd.base.errors import Fault
from mhsd.wire.json_text import encode_error
from mhsd.wire.params import PARAMS, SafetyEstopParams
from mhsd.wire.structure import structure

BOUNDED = settings(max_examples=3 * settings().max_examples)

DIGEST = "sha256:" + "0" * 64
NAMES = sorted(
    {name for shape in PARAMS.values() for name in attrs.fields_dict(shape)}
    | {"id", "kind", "name", "version", "principal", "capability_id", "revision", "mode", "bogus"}
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 10)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.sampled_from(["simulated", "full", DIGEST, "x" * 600]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)
WITH_DEADLINE = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), JSON, max_size=6).map(
    lambda params: {"deadline_ms": 5, **params}
)


def likely(method: str) -> st.SearchStrategy[dict[str, Any]]:
    """Members that the method has, mostly of a usable type."""
    usable = (
        st.text(max_size=3) | st.integers(1, 9) | st.lists(st.text(max_size=2), min_size=1, max_size=2) | JSON
    )
    return st.fixed_dictionaries({}, optional=dict.fromkeys(attrs.fields_dict(PARAMS[method]), usable))


CALLS = st.sampled_from(sorted(PARAMS)).flatmap(
    lambda method: st.tuples(st.just(method), WITH_DEADLINE | likely(method))
)


def read(method: str, params: dict[str, Any]) -> Any:
    """The parameters, or the fault."""
    try:
        return structure(method, params, max_deadline_ms=1000)
    except Fault as fault:
        return fault


@BOUNDED
@given(CALLS)
def test_parameters_are_read_or_refused_by_a_fault_that_names_a_field(
    call: tuple[str, dict[str, Any]],
) -> None:
    method, params = call
    found = read(method, params)
    if isinstance(found, Fault):
        assert found.mhs_code in {"MHS.PROTOCOL.INVALID_PARAMS", "MHS.PROTOCOL.DEADLINE_INVALID"}
        assert found.details is not None
        assert found.details["field"]
        assert encode_error("1", found.error())
    else:
        assert type(found) is PARAMS[method]
        if method != "mhs.safety.estop":
            assert params.keys() <= attrs.fields_dict(PARAMS[method]).keys()


@BOUNDED
@given(JSON)
def test_a_stop_is_always_read(params: Any) -> None:
    assert isinstance(structure("mhs.safety.estop", params, max_deadline_ms=1), SafetyEstopParams)
