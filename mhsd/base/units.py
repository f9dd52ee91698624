"""UCUM unit codes: which texts may stand in `x-mhs-unit`.

This decides well-formedness over a vocabulary of laboratory units, case-sensitively as UCUM writes them:
`mm/s`, `Cel/min`, `kg.m/s2`, `1`, `%`, `{count}`. It converts nothing; a limit and the field that it
bounds are compared as texts by the manifest.
"""

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PREFIXES = _words("Y Z E P T G M k h da d c m u n p f a z y Ki Mi Gi Ti")

_METRIC_ATOMS = _words("""
    m s g A K cd mol rad sr Hz N Pa J W C V F Ohm S Wb T H Cel lm lx Bq Gy Sv kat U L l t u eV bar ar
    By bit Bd B Np G Ci R m[H2O] m[Hg] B[V] B[W] B[SPL] [iU]
""")
"""Atoms that take a metric prefix."""

_PLAIN_ATOMS = _words("""
    min h d wk mo a % [ppth] [ppm] [ppb] deg ' '' gon circ atm [pi] 10* 10^ [degF] [pH] [psi]
    [in_i] [ft_i] [mi_i] [lb_av] [oz_av] [gal_us] [g]
""")
"""Atoms that take none."""

_COMPONENT = re.compile(
    r"(?P<atom>10\*|10\^|[A-Za-z%'\[][A-Za-z0-9%'_\[\]]*?)(?P<exponent>[+-]?[0-9]{1,2})?(?P<note>\{[!-z|~]*\})?"
)
_NUMBER_OR_NOTE = re.compile(r"[1-9][0-9]{0,8}(?:\{[!-z|~]*\})?|\{[!-z|~]*\}")


def _is_atom(text: str) -> bool:
    if text in _METRIC_ATOMS or text in _PLAIN_ATOMS:
        return True
    return any(text[:cut] in _PREFIXES and text[cut:] in _METRIC_ATOMS for cut in (1, 2))


def _is_component(text: str) -> bool:
    if _NUMBER_OR_NOTE.fullmatch(text):
        return True
    match = _COMPONENT.fullmatch(text)
    return match is not None and _is_atom(match["atom"])


def is_unit(text: str) -> bool:
    """Whether `text` is a UCUM code of the vocabulary: components joined by `.` and `/`, without spaces.

    A leading `/` is allowed (`/min`). Parentheses are not: every unit of an instrument can be written flat.
    """
    if not text or len(text) > 64:
        return False
    return all(_is_component(part) for part in re.split(r"[./](?![^{]*\})", text.removeprefix("/")))
