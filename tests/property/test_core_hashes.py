"""Hash exclusions over any state: what they point at never moves the hash, and nothing else is lost."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mhsd.core.hashes import resource_hash, without_exclusions
from mhsd.wire.canonical import digest

NAMES = st.text("ab~/01é", max_size=3)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text("xy", max_size=2)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
STATES = st.dictionaries(NAMES, VALUES, max_size=5)
GONE = object()


def places(value: Any, at: str = "") -> list[str]:
    """The pointer to everything inside the value."""
    if isinstance(value, dict):
        named = {name.replace("~", "~0").replace("/", "~1"): part for name, part in value.items()}
    elif isinstance(value, list):
        named = {str(index): part for index, part in enumerate(value)}
    else:
        return []
    return [
        found for name, part in named.items() for found in (f"{at}/{name}", *places(part, f"{at}/{name}"))
    ]


def left(value: Any, excluded: set[str], at: str = "") -> Any:
    """What is left of the value, by comparing the pointer to each part of it with those excluded."""
    if at in excluded:
        return GONE
    if isinstance(value, dict):
        parts = {
            name: left(part, excluded, f"{at}/" + name.replace("~", "~0").replace("/", "~1"))
            for name, part in value.items()
        }
        return {name: part for name, part in parts.items() if part is not GONE}
    if isinstance(value, list):
        kept = [left(part, excluded, f"{at}/{index}") for index, part in enumerate(value)]
        return [part for part in kept if part is not GONE]
    return value


def changed(value: Any, excluded: set[str], at: str = "") -> Any:
    """The value with something else in every excluded place."""
    if at in excluded:
        return {"changed": value}
    if isinstance(value, dict):
        return {
            name: changed(part, excluded, f"{at}/" + name.replace("~", "~0").replace("/", "~1"))
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [changed(part, excluded, f"{at}/{index}") for index, part in enumerate(value)]
    return value


@st.composite
def states_with_exclusions(draw: st.DrawFn) -> tuple[dict[str, Any], list[str]]:
    state = draw(STATES)
    known = places(state)
    inside = st.lists(st.sampled_from(known), unique=True) if known else st.just([])
    return state, draw(inside)


@given(states_with_exclusions())
def test_what_is_left_is_everything_that_no_pointer_names(case: tuple[dict[str, Any], list[str]]) -> None:
    state, pointers = case
    assert without_exclusions(state, pointers) == left(state, set(pointers))


@given(states_with_exclusions(), st.randoms(use_true_random=False))
def test_the_order_of_the_pointers_does_not_matter(
    case: tuple[dict[str, Any], list[str]], random: Any
) -> None:
    state, pointers = case
    shuffled = [*pointers, *pointers]
    random.shuffle(shuffled)
    assert without_exclusions(state, shuffled) == without_exclusions(state, pointers)


@given(states_with_exclusions())
def test_a_change_of_what_is_excluded_never_moves_the_hash(case: tuple[dict[str, Any], list[str]]) -> None:
    state, pointers = case
    assert resource_hash(changed(state, set(pointers)), pointers) == resource_hash(state, pointers)


@given(states_with_exclusions(), STATES)
def test_the_hash_moves_exactly_when_what_is_left_differs(
    case: tuple[dict[str, Any], list[str]], other: dict[str, Any]
) -> None:
    state, pointers = case
    alike = digest(left(state, set(pointers))) == digest(left(other, set(pointers)))
    assert (resource_hash(state, pointers) == resource_hash(other, pointers)) == alike


@given(STATES, st.lists(st.text("ab~/01-é", max_size=6), max_size=4))
def test_no_pointer_makes_hashing_fail_or_changes_the_state(
    state: dict[str, Any], pointers: list[str]
) -> None:
    before = digest(state)
    resource_hash(state, pointers)
    assert digest(state) == before
