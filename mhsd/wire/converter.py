"""THE cattrs converter: decoded JSON to attrs classes, strictly.

Decides how types are read: nothing is coerced, true is no integer, 5.0 neither, null is not "absent", and a
member that the class does not have is an error. Which classes there are is for `params`.
"""

import types
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs
import cattrs
from cattrs.errors import ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn

Hook = Callable[[Any, Any], Any]


class Misfit(ValueError):
    """One value does not fit its type. `field` is the path to it, `expected` what fits, never what was sent.

    `reason` is `missing`, `unknown_member` (then `allowed` lists the members that exist) or `invalid`.
    """

    def __init__(
        self, expected: str, *, field: str = "", reason: str = "invalid", allowed: tuple[str, ...] = ()
    ) -> None:
        super().__init__(expected)
        self.expected = expected
        self.field = field
        self.reason = reason
        self.allowed = allowed

    def under(self, parent: str) -> "Misfit":
        """The same, seen from the object that has `parent` as a member."""
        joint = "" if not self.field or self.field.startswith("[") else "."
        path = f"{parent}{joint}{self.field}"
        return Misfit(self.expected, field=path, reason=self.reason, allowed=self.allowed)


@attrs.frozen
class Rule:
    """Narrows an annotated type: `Annotated[int, Rule("an integer of at least 1", lambda n: n >= 1)]`."""

    expected: str
    holds: Callable[[Any], bool]


def hook_for(shape: Any) -> Hook:
    """The function that reads decoded JSON as `shape`; it raises Misfit and nothing else."""
    return _converter.get_structure_hook(shape)


def _exactly(kind: type, expected: str) -> Hook:
    def read(value: Any, _: Any) -> Any:
        if type(value) is not kind:
            raise Misfit(expected)
        return value

    return read


def _number(value: Any, _: Any) -> float:
    if type(value) in (int, float):
        with suppress(OverflowError):
            return float(value)
    raise Misfit("a number")


def _literal_hook(shape: Any) -> Hook:
    allowed = get_args(shape)
    expected = "one of " + ", ".join(repr(choice) for choice in allowed)

    def read(value: Any, _: Any) -> Any:
        if type(value) is not str or value not in allowed:
            raise Misfit(expected)
        return value

    return read


def _ruled_hook(shape: Any) -> Hook:
    plain, *rules = get_args(shape)
    read_plain = hook_for(plain)

    def read(value: Any, _: Any) -> Any:
        try:
            found = read_plain(value, plain)
        except Misfit as misfit:
            # A defect further down is told as such; a wrong type is told with all that the rule asks for.
            raise misfit if misfit.field else Misfit(rules[0].expected) from None
        for rule in rules:
            if not rule.holds(found):
                raise Misfit(rule.expected)
        return found

    return read


def _optional_hook(shape: Any) -> Hook:
    """An optional member may be absent, for which the class has its default; null is of no type here."""
    (present,) = [part for part in get_args(shape) if part is not types.NoneType]
    return hook_for(present)


def _string_or_object_hook(shape: Any) -> Hook:
    (class_,) = [part for part in get_args(shape) if attrs.has(part)]
    (text,) = [part for part in get_args(shape) if part is not class_]
    read_text, read_object = hook_for(text), hook_for(class_)

    def read(value: Any, _: Any) -> Any:
        if type(value) is dict:
            return read_object(value, class_)
        if type(value) is not str:
            raise Misfit("a string or an object")
        return read_text(value, text)

    return read


def _array_hook(shape: Any) -> Hook:
    item = get_args(shape)[0]
    read_item = hook_for(item)

    def read(value: Any, _: Any) -> Any:
        if type(value) is not list:
            raise Misfit("an array")
        found = []
        for index, element in enumerate(value):
            try:
                found.append(read_item(element, item))
            except Misfit as misfit:
                raise misfit.under(f"[{index}]") from None
        return tuple(found)

    return read


def _class_hook(class_: Any) -> Hook:
    structure = make_dict_structure_fn(
        class_, _converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=False
    )

    def read(value: Any, _: Any) -> Any:
        if type(value) is not dict:
            raise Misfit("an object")
        try:
            return structure(value, class_)
        except (KeyError, ForbiddenExtraKeysError, Misfit) as error:
            raise _defect_of(class_, value, error) from None

    return read


def _defect_of(class_: Any, value: dict[Any, Any], error: Exception) -> Exception:
    """The first defect of `value`, with its place, which the generated code does not tell."""
    fields = attrs.fields_dict(class_)
    for name in value:
        if name not in fields:
            return Misfit("no such member", field=str(name), reason="unknown_member", allowed=tuple(fields))
    for name, field in fields.items():
        read = hook_for(field.type)
        if name in value:
            try:
                read(value[name], field.type)
            except Misfit as misfit:
                return misfit.under(name)
        elif field.default is attrs.NOTHING:
            return Misfit(_expected_by(read), field=name, reason="missing")
    # Every member fits by itself, so the class refused them together and has said why.
    return error


def _expected_by(read: Hook) -> str:
    try:
        read(_ABSENT, None)
    except Misfit as misfit:
        return misfit.expected
    return "any JSON value"


_ABSENT = object()


def _is_ruled(shape: Any) -> bool:
    return get_origin(shape) is Annotated and any(isinstance(rule, Rule) for rule in get_args(shape))


def _is_union(shape: Any) -> bool:
    return get_origin(shape) in (Union, types.UnionType)


def _is_optional(shape: Any) -> bool:
    return _is_union(shape) and types.NoneType in get_args(shape)


def _build() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
    converter.register_structure_hook(str, _exactly(str, "a string"))
    converter.register_structure_hook(int, _exactly(int, "an integer"))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    # cattrs asks the predicate that was registered last first.
    factories: list[tuple[Callable[[Any], bool], Callable[[Any], Hook]]] = [
        (attrs.has, _class_hook),
        (lambda shape: get_origin(shape) is dict, lambda _: _exactly(dict, "an object")),
        (lambda shape: get_origin(shape) is tuple, _array_hook),
        (lambda shape: get_origin(shape) is Literal, _literal_hook),
        (_is_union, _string_or_object_hook),
        (_is_optional, _optional_hook),
        (_is_ruled, _ruled_hook),
    ]
    for predicate, factory in factories:
        converter.register_structure_hook_factory(predicate, factory)
    return converter


_converter = _build()
