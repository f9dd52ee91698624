"""Only patterns that read any text in one way are accepted, so none can be made slow."""

import re

import pytest

from mhsd.wire.patterns import pattern_problem


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "^$",
        "abc",
        "a.c",
        "[0-9]{4}",
        "^[a-z]+$",
        "^[a-z][a-z0-9_.-]{0,63}$",
        "^sha256:[0-9a-f]{64}$",
        "^[0-7][0-9A-HJKMNP-TV-Z]{25}$",
        "^(x-)?cap(\\.[a-z0-9_-]+)+\\.v[1-9][0-9]*$",
        "^mhs://(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._~!&'()*+,;=:@%-]+)*$",
        "^(https?|wss?)://",
        "^(ab)*ac$",
        "^([a-z][0-9])*$",
        "^(?:-[0-9]+;)*$",
        "^x{1,3}y$",
        "^x{2,}$",
        "^[^\\]]+\\]$",
        "^[^/]*/[^/]*$",
        "^\\$[^\\$]$",
        "^\u00e9+$",
        "^[\u00e9-\u00ff]+a$",
        "^[^\u00e9]+$",
        "^\\u0041\\x42$",
        "^a\\n\\t\\r$",
        "^\\\\$",
        "^a\\\\\\$",
        "^[-a]$",
        "^[a-]$",
        "^(a|b)(c|d)?$",
        "^((a|b)c|d)$",
    ],
)
def test_a_pattern_that_reads_a_text_in_one_way_is_accepted(pattern: str) -> None:
    assert pattern_problem(pattern) is None
    re.compile(pattern)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("^(a+)+$", "repeated group"),
        ("^(a*)*$", "repeated group"),
        ("^(a?)*$", "repeated group"),
        ("^(a{1,2})*$", "repeated group"),
        ("^(a{0})*$", "repeated group"),
        ("^(a|a)*$", "alternatives"),
        ("^(a|b)*$", "alternatives"),
        ("^((a))*$", "groups in it"),
        ("^(a(b)?)*$", "groups in it"),
        ("^()*$", "repeated group"),
        ("^(ab?c?)*$", "at most one quantifier"),
        ("^(/[a-z/]+)*$", "starts with"),
        ("^(a[b]*b)*$", "starts with"),
        ("^(\\.[a-z]+)*.*$", "follows"),
        ("^(\\.[a-z]+)*\\.[a-z.]*$", "followed by more"),
        ("^(ab)*(ab)*$", "followed by more"),
        ("^a*a*$", "follows"),
        ("^a*b?a*$", "follows"),
        ("^[a-z]+[a-z0-9]*$", "follows"),
        ("^.*x$", "follows"),
        ("^a?a?a$", "follows"),
        ("^[^a]*[^b]*$", "follows"),
        ("^[\u00e9]*[\u00ff]*$", "follows"),
        ("^(a|b+)b$", "follows"),
        ("a+", "start it with ^"),
        ("[0-9]*$", "start it with ^"),
        ("^a|b$", "put alternatives in a group"),
        ("^\\d+$", "\\d"),
        ("^\\w$", "\\w"),
        ("^[\\s]$", "\\s"),
        ("^\\bfoo", "\\b"),
        ("^(a)\\1$", "\\1"),
        ("^\\p{L}$", "\\p"),
        ("^\\cA$", "\\c"),
        ("^(?=a)", "look-around"),
        ("^(?<name>a)$", "look-around"),
        ("(?i)a", "look-around"),
        ("^a+?$", "greedy"),
        ("^a++$", "greedy"),
        ("^a**$", "greedy"),
        ("^*a$", "escape *"),
        ("^a{,3}$", "escape {"),
        ("^a}$", "escape }"),
        ("^a$b$", "two ends"),
        ("^(^a)$", "two ends"),
        ("^(a$)$", "two ends"),
        ("^[]$", "empty"),
        ("^[^]$", "empty"),
        ("^[a$]$", "escape $"),
        ("^[[a]$", "escape ["),
        ("^[--a]$", "escape -"),
        ("^[a&&b]$", "escape &"),
        ("^[a", "ends too early"),
        ("^(a", "ends too early"),
        ("^a\\", "ends too early"),
        ("^a)$", "does not open"),
        ("^[z-a]$", "backwards"),
        ("^[a--b]$", "backwards"),
        ("^a{3,2}$", "no regular expression"),
        ("^a{1001}$", "1000"),
        ("^a{9999999}$", "escape {"),
        ("^" + "(a|b)" * 7 + "$", "combinations"),
        ("^" + "(" * 5000 + ")" * 5000, "no regular expression"),
    ],
)
def test_any_other_pattern_is_refused_with_the_reason(pattern: str, says: str) -> None:
    problem = pattern_problem(pattern)
    assert problem is not None
    assert says in problem
