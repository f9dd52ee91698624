"""Patterns that a hostile string cannot make slow, and that mean the same in every JSON Schema program.

Python's `re` backtracks: `^(a+)+$` takes seconds on thirty characters and holds the interpreter meanwhile.
This decides which regular expressions may stand in a schema. It accepts a part of ECMA 262: literals,
classes, groups, alternatives in groups, greedy quantifiers, `^` and `$` at the two ends; in it, only what
leaves at most one way to read any text, so that matching is linear in the text.
"""

import re
from collections.abc import Iterator

import attrs

Characters = frozenset[int]
"""Code points below 128; 128 stands for all others."""

_BEYOND_ASCII = 128
_EVERY = frozenset(range(_BEYOND_ASCII + 1))
_MOST_PATHS = 64
_MOST_REPEATS = 1000
_COUNT = re.compile(r"\{([0-9]{1,4})(,([0-9]{1,4})?)?\}")
_HEX_ESCAPE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})")
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}


@attrs.frozen
class _Atom:
    """One of `characters`, `low` to `high` times; None is without end."""

    characters: Characters
    low: int = 1
    high: int | None = 1

    @property
    def varies(self) -> bool:
        return self.low != self.high


@attrs.frozen
class _Group:
    branches: tuple[tuple["_Node", ...], ...]
    low: int = 1
    high: int | None = 1


@attrs.frozen
class _Loop:
    """A repeated group whose every round starts with one of `delimiter` and may end in a run of `run`."""

    delimiter: Characters
    run: Characters
    low: int


_Node = _Atom | _Group
_Step = _Atom | _Loop


class _Refused(Exception):
    """Why the pattern is not accepted."""


def pattern_problem(pattern: str) -> str | None:
    """What a schema's author has to change about `pattern`, in one sentence; None where it is safe."""
    try:
        anchored = pattern.startswith("^")
        nodes = _Reader(_without_ends(pattern)).read_all()
        re.compile(pattern)
        for path in _paths(nodes):
            _check_path(path, anchored)
    except _Refused as refusal:
        return str(refusal)
    except (re.error, OverflowError, RecursionError):
        return "it is no regular expression"
    return None


def _without_ends(pattern: str) -> str:
    body = pattern.removeprefix("^")
    backslashes = len(body) - 1 - len(body.removesuffix("$").rstrip("\\"))
    return body[:-1] if body.endswith("$") and backslashes % 2 == 0 else body


class _Reader:
    """Reads the accepted part of the language; whatever else it meets is refused by name."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read_all(self) -> tuple[_Node, ...]:
        nodes = self._sequence()
        if self._peek() == "|":
            raise _Refused("put alternatives in a group, as in ^(a|b)$")
        if self._at < len(self._text):
            raise _Refused("it closes a group that it does not open")
        return nodes

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        character = self._peek()
        if not character:
            raise _Refused("it ends too early")
        self._at += 1
        return character

    def _sequence(self) -> tuple[_Node, ...]:
        nodes: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            node = self._group() if self._peek() == "(" else _Atom(self._characters())
            low, high = self._quantifier()
            nodes.append(attrs.evolve(node, low=low, high=high))
        return tuple(nodes)

    def _group(self) -> _Group:
        self._next()
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise _Refused("look-around, flags and named groups are not allowed")
        branches = [self._sequence()]
        while self._peek() == "|":
            self._next()
            branches.append(self._sequence())
        if self._next() != ")":
            raise _Refused("it opens a group that it does not close")
        return _Group(tuple(branches))

    def _characters(self) -> Characters:
        character = self._next()
        if character == "[":
            return self._class()
        if character == ".":
            return _EVERY - {ord("\n")}
        if character == "\\":
            return _set_of(self._escape())
        if character in "^$":
            raise _Refused("^ and $ are allowed only at the two ends")
        if character in "*+?{}":
            raise _Refused(f"escape {character} where it stands for itself")
        return _set_of(character)

    def _escape(self) -> str:
        found = _HEX_ESCAPE.match(self._text, self._at)
        if found:
            self._at = found.end()
            return chr(int(found[1] or found[2], 16))
        character = self._next()
        if character in _CONTROL:
            return _CONTROL[character]
        if character.isalnum() or not character.isascii():
            raise _Refused(
                f"write \\{character} out as a class, like [0-9]: programs differ in what it means"
            )
        return character

    def _class(self) -> Characters:
        negated = self._peek() == "^"
        if negated:
            self._next()
        found: set[int] = set()
        while self._peek() != "]":
            first = self._class_member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._next()
                found |= _range_of(first, self._class_member())
            else:
                found |= _set_of(first)
        self._next()
        if not found:
            raise _Refused("a class is empty")
        if not negated:
            return frozenset(found)
        # A class that names characters beyond ASCII leaves others of them.
        return (_EVERY - found) | {_BEYOND_ASCII}

    def _class_member(self) -> str:
        character = self._next()
        if character == "\\":
            return self._escape()
        if character in "[$":
            raise _Refused(f"escape {character} in a class")
        if character in "-&~|" and self._peek() == character:
            raise _Refused(f"escape {character} in a class where it stands twice")
        return character

    def _quantifier(self) -> tuple[int, int | None]:
        bounds = self._bounds()
        if bounds is None:
            return 1, 1
        if self._peek() in ("?", "+", "*"):
            raise _Refused("only plain greedy quantifiers are allowed")
        return bounds

    def _bounds(self) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            return simple[self._next()]
        counted = _COUNT.match(self._text, self._at)
        if counted is None:
            return None
        self._at = counted.end()
        low = int(counted[1])
        high = low if counted[2] is None else int(counted[3]) if counted[3] else None
        if max(low, high or 0) > _MOST_REPEATS:
            raise _Refused(f"a count above {_MOST_REPEATS} is not allowed")
        return low, high


def _set_of(character: str) -> Characters:
    return frozenset({min(ord(character), _BEYOND_ASCII)})


def _range_of(first: str, last: str) -> Characters:
    if first > last:
        raise _Refused("a range in a class runs backwards")
    return frozenset(range(min(ord(first), _BEYOND_ASCII), min(ord(last), _BEYOND_ASCII) + 1))


def _paths(nodes: tuple[_Node, ...]) -> Iterator[tuple[_Step, ...]]:
    """Every way through the groups that are not repeated."""
    paths: list[tuple[_Step, ...]] = [()]
    for node in nodes:
        paths = [path + way for path in paths for way in _ways(node)]
        if len(paths) > _MOST_PATHS:
            raise _Refused(f"it has more than {_MOST_PATHS} combinations of alternatives")
    return iter(paths)


def _ways(node: _Node) -> list[tuple[_Step, ...]]:
    if isinstance(node, _Atom):
        return [(node,)]
    if node.high != 1:
        return [(_loop(node),)]
    ways = [path for branch in node.branches for path in _paths(branch)]
    return [*ways, ()] if node.low == 0 else ways


def _loop(group: _Group) -> _Loop:
    """A repeated group that can be cut into its rounds in one way only."""
    if len(group.branches) != 1 or any(isinstance(node, _Group) for node in group.branches[0]):
        raise _Refused("a repeated group must not have alternatives or groups in it")
    body = [node for node in group.branches[0] if isinstance(node, _Atom)]
    varying = [place for place, atom in enumerate(body) if atom.varies]
    if not body or body[0].varies or body[0].low == 0 or len(varying) > 1:
        raise _Refused("a repeated group must start with a fixed character and have at most one quantifier")
    if not varying:
        return _Loop(body[0].characters, frozenset(), group.low)
    run = body[varying[0]].characters
    after = body[varying[0] + 1].characters if varying[0] + 1 < len(body) else body[0].characters
    if run & (after | body[0].characters):
        raise _Refused("what a repeated group starts with must not also match what is repeated inside it")
    return _Loop(body[0].characters, run if varying[0] == len(body) - 1 else frozenset(), group.low)


def _check_path(path: tuple[_Step, ...], anchored: bool) -> None:
    for place, step in enumerate(path):
        following = path[place + 1 :]
        if isinstance(step, _Atom) and not step.varies:
            continue
        if not anchored:
            raise _Refused("start it with ^, because it has a quantifier")
        run = step.characters if isinstance(step, _Atom) else step.run
        if run & _first(following):
            raise _Refused("what is repeated must not also match what follows it")
        if isinstance(step, _Loop) and step.delimiter & _first(following):
            for later in following:
                if step.delimiter & _repeatable(later):
                    raise _Refused("a repeated group must not be followed by more of what it starts with")


def _first(steps: tuple[_Step, ...]) -> Characters:
    """The characters that the text of `steps` can start with."""
    found: Characters = frozenset()
    for step in steps:
        found |= step.characters if isinstance(step, _Atom) else step.delimiter
        if step.low > 0:
            break
    return found


def _repeatable(step: _Step) -> Characters:
    if isinstance(step, _Atom):
        return step.characters if step.varies else frozenset()
    return step.delimiter | step.run
