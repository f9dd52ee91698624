"""An accepted pattern compiles, and a backtracking matcher never needs more than a few steps a character."""

import re
from collections.abc import Callable
from typing import Any

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mhsd.wire.patterns import pattern_problem

BOUNDED = settings(max_examples=6 * settings().max_examples)

# A pattern as a tree: ("class", letters, low, high) or ("group", branches, low, high); high None is no end.
Tree = tuple[str, Any, int, int | None]

TIMES = st.sampled_from([(1, 1)] * 4 + [(0, None), (1, None), (0, 1), (2, 2), (1, 3)])
CLASSES = st.sampled_from(["a", "b", "/", "ab", "b/"])


def _classes() -> st.SearchStrategy[Tree]:
    return st.tuples(CLASSES, TIMES).map(lambda drawn: ("class", drawn[0], *drawn[1]))


def _groups(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    branches = st.lists(st.lists(inner, min_size=1, max_size=3), min_size=1, max_size=2)
    return st.tuples(branches, TIMES).map(lambda drawn: ("group", drawn[0], *drawn[1]))


PATTERNS = st.lists(st.recursive(_classes(), _groups, max_leaves=4), min_size=1, max_size=4)
TEXTS = st.lists(st.sampled_from(["a", "b", "/", "aaaa", "/a", "ab", "/ab/"]), min_size=1, max_size=4)


def written(nodes: list[Tree]) -> str:
    """The tree as a regular expression."""
    text = ""
    for kind, content, low, high in nodes:
        body = f"[{content}]" if kind == "class" else f"({'|'.join(map(written, content))})"
        text += body + ("" if (low, high) == (1, 1) else f"{{{low},{'' if high is None else high}}}")
    return text


class TooManySteps(Exception):
    """The matcher went over its allowance."""


def steps_to_fail(nodes: list[Tree], text: str, allowance: int) -> int:
    """The steps of a backtracking matcher that tries every way to match and succeeds in none."""
    steps = 0

    def match(left: list[Tree], at: int, then: Callable[[int], None]) -> None:
        nonlocal steps
        steps += 1
        if steps > allowance:
            raise TooManySteps
        if not left:
            then(at)
            return
        (kind, content, low, high), rest = left[0], left[1:]
        if high is None or high > 0:
            again: list[Tree] = [(kind, content, max(low - 1, 0), None if high is None else high - 1), *rest]
            if kind == "class":
                if at < len(text) and text[at] in content:
                    match(again, at + 1, then)
            else:
                for branch in content:
                    # A round that matches nothing is not repeated, as in every real matcher.
                    match(branch, at, lambda end: match(again if end > at else rest, end, then))
        if low == 0:
            match(rest, at, then)

    match(nodes, 0, lambda _: None)
    return steps


@BOUNDED
@given(PATTERNS, TEXTS)
@example([("group", [[("class", "/", 1, 1), ("class", "ab", 1, None)]], 0, None)], ["/ab"])
def test_an_accepted_pattern_is_linear(nodes: list[Tree], parts: list[str]) -> None:
    pattern = f"^{written(nodes)}$"
    assume(pattern_problem(pattern) is None)
    re.compile(pattern)
    for repeats in (8, 16):
        text = "".join(parts) * repeats
        # Ways through alternatives multiply by a constant; what must not appear is another factor of length.
        assert steps_to_fail(nodes, text, 10**5) <= 40 * (len(text) + 8)


def test_the_matcher_sees_what_a_refused_pattern_costs() -> None:
    nested: list[Tree] = [("group", [[("class", "a", 1, None)]], 1, None), ("class", "b", 1, 1)]
    double: list[Tree] = [("class", "a", 0, None), ("class", "a", 0, None)]
    assert pattern_problem(f"^{written(nested)}$") is not None
    assert pattern_problem(f"^{written(double)}$") is not None
    assert steps_to_fail(nested, "a" * 12, 10**6) > 2**12
    assert steps_to_fail(double, "a" * 200, 10**6) > 200**2 / 2
