"""JSON that a person types: objects from the command line, a file or stdin, read strictly."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from mhsd.cli.boundary import UsageProblem


class NoDocument(UsageProblem):
    """A file that is there and holds no document of its kind: not valid, where that is the question."""


def json_object(text: str, option: str) -> dict[str, Any]:
    """The JSON object of `text`, `@FILE` or `@-`; UsageProblem for anything else [TPT-052]."""
    if text.startswith("@"):
        text = _content(text[1:], option)
    try:
        text.encode()
    except UnicodeEncodeError:  # Bytes that are no text, as the shell has handed them over.
        raise UsageProblem(f"{option} is no UTF-8 text") from None
    return _object(text, option, "as in '{\"ticks\": 10}'")


def json_file(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file, which is to be `what`; UsageProblem names the file otherwise."""
    text = read_file(path)
    try:
        return _object(text, str(path), f"and {what} is one")
    except UsageProblem as problem:
        raise NoDocument(str(problem)) from None


def _object(text: str, where: str, hint: str) -> dict[str, Any]:
    try:
        document = json_value(text)
    except (ValueError, RecursionError) as problem:
        raise UsageProblem(f"{where} is no JSON: {problem}") from None
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else "a single value"
        raise UsageProblem(f"{where} holds {kind}, no JSON object, {hint}")
    return document


def json_value(text: str) -> Any:
    """One JSON value, without duplicate keys, NaN or Infinity; ValueError or RecursionError otherwise."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def read_file(path: Path) -> str:
    """The text of a file; UsageProblem where it is missing or no text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise UsageProblem(f"{path} cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise NoDocument(f"{path} is no UTF-8 text") from None


def output_file(path: Path) -> Path:
    """Where a file is to be written, links followed; UsageProblem where writing would put it in the place of something
    else, such as /dev/stdout."""
    if path.exists() and not path.is_file():
        raise UsageProblem(f"{path} is no regular file and is not written over")
    return path.resolve()


def _content(name: str, option: str) -> str:
    if not name:
        raise UsageProblem(f"{option} @ needs the name of a file, or @- for stdin")
    if name != "-":
        return read_file(Path(name))
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise UsageProblem(f"{option} @-: stdin is no UTF-8 text") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands in it twice")
    return document


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is larger than any number that can be sent")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
