"""Reading an instrument's answers: strictly, or not at all.

A reply is a number or a switch state as a whole, or it is not understood; no number is looked for inside a
text. The marks by which SCPI says "no value here" become a quality, never a value.
"""

import math
import re
from typing import Literal

import attrs

Quality = Literal["good", "overrange", "invalid"]

OVERRANGE_MARK = 9.9e37
"""SCPI's infinity; what is not smaller than this is no measurement."""

INVALID_MARK = 9.91e37
"""SCPI's not-a-number."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_WORDS: dict[str, Quality] = {
    "NAN": "invalid",
    "INF": "overrange",
    "+INF": "overrange",
    "-INF": "overrange",
    "NINF": "overrange",
    "INFINITY": "overrange",
    "NINFINITY": "overrange",
}
_ERROR = re.compile(r'([+-]?[0-9]{1,9})\s*,\s*"?([^"]*)"?')


class Garbled(ValueError):
    """A reply that is not what was asked for. The link is out of step and may not be used again."""


@attrs.frozen
class Measured:
    """A measured value, None unless its quality is good."""

    value: float | None
    quality: Quality


def measured(text: str) -> Measured:
    """The measurement in a reply; an overload or not-a-number mark is None with its quality."""
    text = text.strip()
    quality = _WORDS.get(text.upper())
    if quality is not None:
        return Measured(None, quality)
    if not _NUMBER.fullmatch(text):
        raise Garbled(f"{shown(text)} is no number")
    value = float(text)
    if math.isclose(abs(value), INVALID_MARK):
        return Measured(None, "invalid")
    if abs(value) >= OVERRANGE_MARK:
        return Measured(None, "overrange")
    return Measured(value + 0.0, "good")


def number(text: str) -> float:
    """The number in a reply that must have one, such as the read-back of a setpoint."""
    found = measured(text).value
    if found is None:
        raise Garbled(f"{shown(text)} stands for no value")
    return found


def integer(text: str) -> int:
    """The integer in a reply; instruments write 4000 as 4.0000E+03 too."""
    found = number(text)
    if not found.is_integer():
        raise Garbled(f"{shown(text)} is no integer")
    return int(found)


def switch(text: str) -> bool:
    """The state of a switch: 1 or ON, 0 or OFF."""
    states = {"1": True, "ON": True, "0": False, "OFF": False}
    try:
        return states[text.strip().upper()]
    except KeyError:
        raise Garbled(f"{shown(text)} is no switch state, which is 0, 1, ON or OFF") from None


def error_entry(text: str) -> tuple[int, str]:
    """Code and text of one entry of an instrument's error queue; code 0 says that the queue is empty."""
    match = _ERROR.fullmatch(text.strip())
    if match is None:
        raise Garbled(f"{shown(text)} is no entry of an error queue")
    return int(match[1]), match[2]


def text_of(line: bytes) -> str:
    """A reply's bytes as text, which is ASCII."""
    try:
        return line.decode("ascii")
    except UnicodeDecodeError:
        raise Garbled(f"the reply is not text: {line[:32].hex(' ')}") from None


def shown(text: str) -> str:
    """A reply as a message may quote it: short, and with nothing that a terminal acts on."""
    return ascii(text if len(text) <= 64 else text[:64] + "...")
