"""Patterns against regular expressions, and grants as an intersection that only ever shrinks [SESS-001]."""

import re
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from mhsd.core.sessions import grants_for, pattern_matches
from mhsd.wire.elements import CapabilityRequest

PATTERNS = st.text("ab.*", max_size=7)


@given(PATTERNS, st.text("ab.", max_size=7))
def test_a_pattern_matches_as_the_regular_expression_would(pattern: str, capability_id: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert pattern_matches(pattern, capability_id) == bool(re.fullmatch(expression, capability_id))


@attrs.frozen
class Offered:
    capability_id: str
    resource: str
    actuating: bool


IDS = st.sampled_from(["cap.a.v1", "cap.b.v1", "cap.a.b.v1", "x-cap.a.v1", "cap.internal.a.v1"])
ASKED = (
    st.sampled_from(["*", "cap.*", "cap.a.*", "*.v1", "x-cap.*", "cap.internal.*", "*b*", "nothing"]) | IDS
)
WANTED = st.lists(
    ASKED
    | st.builds(
        CapabilityRequest, capability_id=ASKED, resource=st.none() | st.sampled_from(["belt", "valve"])
    ),
    max_size=4,
)
BINDINGS = st.dictionaries(
    st.sampled_from(["mhs://a", "mhs://b"]),
    st.lists(st.builds(Offered, IDS, st.sampled_from(["belt", "valve"]), st.booleans()), max_size=6),
)
ROLES = st.sampled_from(["reader", "client", "operator"])
TOKENS = st.none() | st.lists(ASKED, max_size=3)


@given(WANTED, BINDINGS, ROLES, TOKENS)
def test_every_grant_is_offered_asked_for_and_allowed(
    wanted: Any, bindings: dict[str, list[Offered]], role: str, token: Any
) -> None:
    grants = grants_for(wanted, bindings, role=role, token_patterns=token)
    for grant in grants:
        offered = [
            each
            for each in bindings[grant.device_id]
            if (each.capability_id, each.resource) == (grant.capability_id, grant.resource)
        ]
        assert offered
        assert not grant.capability_id.startswith("cap.internal.")
        assert role != "reader" or not all(each.actuating for each in offered)
        assert token is None or any(pattern_matches(pattern, grant.capability_id) for pattern in token)
        assert any(
            pattern_matches(asked, grant.capability_id)
            if isinstance(asked, str)
            else pattern_matches(asked.capability_id, grant.capability_id)
            and asked.resource in (None, grant.resource)
            for asked in wanted
        )


@given(WANTED, WANTED, BINDINGS, ROLES, TOKENS)
def test_asking_for_both_grants_what_asking_for_each_grants(
    one: Any, other: Any, bindings: Any, role: str, token: Any
) -> None:
    def granted(wanted: Any) -> frozenset[Any]:
        return grants_for(wanted, bindings, role=role, token_patterns=token)

    assert granted(one + other) == granted(one) | granted(other)


@given(WANTED, BINDINGS, ROLES, st.lists(ASKED, max_size=3))
def test_no_token_and_no_lesser_role_ever_widens_a_grant(
    wanted: Any, bindings: Any, role: str, token: Any
) -> None:
    widest = grants_for(wanted, bindings, role="operator", token_patterns=None)
    assert grants_for(wanted, bindings, role=role, token_patterns=token) <= widest
    assert grants_for(wanted, bindings, role="reader", token_patterns=token) <= grants_for(
        wanted, bindings, role="client", token_patterns=token
    )
