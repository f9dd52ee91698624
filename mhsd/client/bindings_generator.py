"""Writes a Python module of typed methods for one device, from its manifest and its capability classes [TPT-054].

Decides what capabilities, fields and units are called in Python. The module that comes out depends on `mhsd` alone
and passes a strict type checker; it validates nothing, which is for the endpoint. Pure.
"""

import keyword
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mhsd.client.documents import Device, fields_of
from mhsd.client.naming import name_of

CONFIGURE = "cap.device.configure.v1"
DESCRIBE = "cap.device.describe.v1"

_WIDTH = 110
_CONTROLS = frozenset(
    {
        "self",
        "input",
        "command_id",
        "expected_revision",
        "permit_id",
        "deadline_ms",
        "wait",
        "on_progress",
        "options",
    }
)
_TYPING = ("Any", "Literal", "NotRequired", "TypedDict", "Unpack", "cast")
_IMPORTED = frozenset({*_TYPING, "Mapping", "CallOptions", "Receipt", "Session"})
_SCALARS = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}
_BUILTINS = frozenset({*_SCALARS.values(), "list"})
"""What annotations in the class name, and so no method may be called."""


def python_module(manifest: Mapping[str, Any], classes: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of the module; `classes` are the class documents by capability id, as far as they are known."""
    return _Module(Device(manifest), classes).text()


class _Method(NamedTuple):
    """One capability on one resource."""

    name: str
    binding: Mapping[str, Any]
    document: Mapping[str, Any]


class _Module:
    """The module while it is being written: its types are found while its methods are."""

    def __init__(self, device: Device, classes: Mapping[str, Mapping[str, Any]]) -> None:
        self._device = device
        self._classes = classes
        self._types: dict[str, str] = {}
        self._taken = {*_IMPORTED, *keyword.kwlist}
        resources = device.get("resources")
        entries = resources if isinstance(resources, list) else []
        self._resources = [entry for entry in entries if isinstance(entry, dict)]

    def text(self) -> str:
        """Types first, since the methods name them."""
        taken = {"session", "device_id", *_BUILTINS}
        reads = [(_unused(f"read_{_identifier(_id(each))}", taken, "_"), each) for each in self._resources]
        methods = [
            *(self._read(name, resource) for name, resource in reads),
            *(self._command(method) for method in self._methods(taken)),
        ]
        body = "\n\n".join([*self._types.values(), self._class(methods)])
        return f"{self._head(body)}\n\n{body.rstrip()}\n"

    def _head(self, body: str) -> str:
        device = self._device
        about = _docstring(
            f"Typed bindings of {device.path}: {device.display_name}.",
            [
                f"Mode {device.mode}, risk class {device.risk_class}.",
                "Written by `mhsctl describe --python`; write it again when the manifest's digest is another.",
            ],
            0,
        )
        used = [name for name in _TYPING if re.search(rf"\b{name}\b", body)]
        mapping = "from collections.abc import Mapping\n" if re.search(r"\bMapping\b", body) else ""
        return "\n".join(
            [
                about,
                "",
                f"{mapping}from typing import {', '.join(used)}",
                "",
                "from mhsd import CallOptions, Receipt, Session",
                "",
                f"DEVICE_ID = {_literal(device.device_id)}",
                f"MANIFEST_DIGEST = {_literal(str(device.get('digest')))}",
                "",
            ]
        ).replace("\n\nfrom typing import \n", "\n")

    def _class(self, methods: Iterable[str]) -> str:
        about = _docstring(
            f"{self._device.display_name}, in a session that covers it.",
            [f"Gap: {gap}." for gap in self._device.fidelity_gaps],
            4,
        )
        start = (
            "    def __init__(self, session: Session, device_id: str = DEVICE_ID) -> None:\n"
            "        self.session = session\n"
            "        self.device_id = device_id\n"
        )
        name = _camel(name_of(self._device))
        name = _unused(f"{name}Device" if name in self._taken else name, self._taken)
        return "\n".join([f"class {name}:", f"    {about}", "", "\n".join([start, *methods])])

    def _methods(self, taken: set[str]) -> list[_Method]:
        """The bindings with a name each; one that two share is told apart by resource and version."""
        bindings = [binding for binding in self._device.bindings if binding.get("capability_id") != DESCRIBE]
        names = [_slug(binding) for binding in bindings]
        found = []
        for binding, name in zip(bindings, names, strict=True):
            capability_id = str(binding.get("capability_id"))
            longer = name
            if names.count(name) > 1 or name in taken:
                longer = _identifier(f"{name}_{binding.get('resource')}_{capability_id.rsplit('.', 1)[-1]}")
            document = self._classes.get(capability_id, {})
            found.append(_Method(_unused(longer, taken, "_"), binding, document))
        return found

    def _read(self, name: str, resource: Mapping[str, Any]) -> str:
        resource_id = _id(resource)
        state = self._type(resource.get("state_schema"), f"{_camel(resource_id)}State")
        about = _docstring(f"The state of {resource_id} now.", [], 8)
        return "\n".join(
            [
                f"    def {name}(self) -> {state}:",
                f"        {about}",
                f"        reading = self.session.read({_literal(resource_id)}, device_id=self.device_id)",
                f'        return cast({_literal(state)}, reading["state"])',
                "",
            ]
        )

    def _command(self, method: _Method) -> str:
        schema = method.binding.get("input_schema")
        schema = schema if isinstance(schema, dict) else {}
        parameters, value = self._input(method.name, schema)
        resource = _literal(str(method.binding.get("resource")))
        if method.binding.get("capability_id") == CONFIGURE:
            call, arguments = "write", [resource, *value, "device_id=self.device_id"]
        else:
            capability_id = _literal(str(method.binding.get("capability_id")))
            call = "invoke"
            arguments = [capability_id, *value, f"resource={resource}", "device_id=self.device_id"]
        about = _docstring(
            str(method.document.get("summary") or f"{method.binding.get('capability_id')} on {resource}."),
            _facts(method),
            8,
        )
        return "\n".join(
            [
                f"    def {method.name}(",
                *(f"        {parameter}," for parameter in ("self", *parameters)),
                "        **options: Unpack[CallOptions],",
                "    ) -> Receipt:",
                f"        {about}",
                f"        return self.session.{call}(",
                *(f"            {line}," for line in [*arguments, "**options"]),
                "        )",
                "",
            ]
        )

    def _input(self, name: str, schema: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The parameters of a method, and what it sends: a parameter a field where that is possible."""
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not _is_plain(schema):
            return [f"input: {self._type(schema, f'{_camel(name)}Input')}"], ["input"]
        required = [field for field in properties if field in _required(schema)]
        optional = [field for field in properties if field not in required]
        types = {
            field: self._type(sub, f"{_camel(name)}{_camel(field)}") for field, sub in properties.items()
        }
        parameters = [f"{field}: {types[field]}" for field in required]
        parameters += [f"{field}: {types[field]} | None = None" for field in optional]
        members = [f"{_literal(field)}: {field}" for field in required]
        members += [f"**({{}} if {field} is None else {{{_literal(field)}: {field}}})" for field in optional]
        sent = "{" + ", ".join(members) + "}"
        if optional or len(sent) > _WIDTH - 14:
            sent = "\n".join(["{", *(f"                {member}," for member in members), "            }"])
        return (["*", *parameters] if parameters else []), [sent]

    def _type(self, schema: Any, name: str) -> str:
        """The Python type of what `schema` allows; objects become classes of their own, called `name` if it is free."""
        if not isinstance(schema, dict):
            return "Any"
        if "enum" in schema or "const" in schema:
            choices = schema.get("enum", [schema.get("const")])
            return _choices(choices) if isinstance(choices, list) else "Any"
        for alternatives in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(alternatives, list):
                return _union(self._type(each, f"{name}{n}") for n, each in enumerate(alternatives, 1))
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _union(self._type({**schema, "type": kind}, name) for kind in kinds)
        if kinds == "array":
            items = schema.get("items")
            return f"list[{self._type(items, f'{name}Item') if isinstance(items, dict) else 'Any'}]"
        if kinds == "object":
            return self._object(schema, name)
        return _SCALARS.get(str(kinds), "Any")

    def _object(self, schema: Mapping[str, Any], name: str) -> str:
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            return "Mapping[str, Any]"
        name = _unused(name, self._taken)
        types = {field: self._type(sub, f"{name}{_camel(field)}") for field, sub in properties.items()}
        fields = {
            field: kind if field in _required(schema) else f"NotRequired[{kind}]"
            for field, kind in types.items()
        }
        about = _told(schema, {})
        if all(_is_identifier(field) for field in fields):
            text = _docstring("The fields, with their ranges and units.", about, 4)
            lines = [f"class {name}(TypedDict):", f"    {text}", ""]
            lines += [f"    {field}: {kind}" for field, kind in fields.items()]
        else:
            lines = [f"{name} = TypedDict("]
            lines += [f"    {_literal(name)},", "    {"]
            lines += [f"        {_literal(field)}: {kind}," for field, kind in fields.items()] + [
                "    },",
                ")",
            ]
        self._types[name] = "\n".join([*lines, ""])
        return name


def _facts(method: _Method) -> list[str]:
    """What a person must know of a command: units and limits, what it takes to be allowed, what it gives back."""
    binding = method.binding
    limits = binding.get("limits")
    schema, output = binding.get("input_schema"), method.document.get("output_schema")
    facts = _told(schema if isinstance(schema, dict) else {}, limits if isinstance(limits, dict) else {})
    facts += [f"output {fact}" for fact in _told(output if isinstance(output, dict) else {}, {})]
    if binding.get("interlocks"):
        facts.append(f"needs closed: {', '.join(map(str, binding['interlocks']))}")
    if binding.get("permit") == "required":
        facts.append("needs a permit_id")
    if binding.get("long_running"):
        facts.append("takes long: give wait=True, or follow the receipt with session.wait")
    return facts


def _told(schema: Mapping[str, Any], limits: Mapping[str, Any]) -> list[str]:
    """A line a field: its range, its unit and what it means."""
    lines = []
    for field, text in fields_of(schema, limits).items():
        sub = schema["properties"][field]
        meaning = sub.get("description") if isinstance(sub, dict) else None
        lines.append(f"{field}: " + ("; ".join(part for part in (text, meaning) if part) or "not described"))
    return lines


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether every field can be a parameter of its own: None must mean that it is left out."""
    return all(
        _is_identifier(field)
        and field not in _CONTROLS
        and (field in _required(schema) or not _allows_null(sub))
        for field, sub in schema["properties"].items()
    )


def _required(schema: Mapping[str, Any]) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _allows_null(schema: Any) -> bool:
    if not isinstance(schema, dict) or not {"type", "enum", "const"} & schema.keys():
        return True
    return (
        "null" in str(schema.get("type")) or None in schema.get("enum", ()) or schema.get("const", 0) is None
    )


def _choices(values: list[Any]) -> str:
    """Literal knows no fractions and no objects; what has some is only as narrow as its types."""
    if values and all(value is None or isinstance(value, str | int) for value in values):
        return f"Literal[{', '.join(_literal(value) if isinstance(value, str) else repr(value) for value in values)}]"
    return _union("float" if isinstance(value, float) else "Any" for value in values)


def _union(kinds: Iterable[str]) -> str:
    different = list(dict.fromkeys(kinds))
    return "Any" if "Any" in different or not different else " | ".join(different)


def _id(resource: Mapping[str, Any]) -> str:
    return str(resource.get("resource_id"))


def _unused(name: str, taken: set[str], separator: str = "") -> str:
    """`name`, with a number where another has it; from now on it is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}{separator}{number}", number + 1
    taken.add(found)
    return found


def _slug(binding: Mapping[str, Any]) -> str:
    if binding.get("capability_id") == CONFIGURE:
        return f"write_{_identifier(str(binding.get('resource')))}"
    words = re.sub(r"^(x-)?cap\.|\.v[0-9]+$", "", str(binding.get("capability_id")))
    return _identifier(words.replace(".", "_"))


def _identifier(text: str) -> str:
    """A name that Python takes, as like `text` as can be."""
    name = re.sub(r"[^0-9a-z_]+", "_", text.lower()).strip("_") or "unnamed"
    return f"{name}_" if keyword.iskeyword(name) else f"n{name}" if name[0].isdigit() else name


def _camel(text: str) -> str:
    name = (
        "".join(word[:1].upper() + word[1:] for word in re.split(r"[^0-9A-Za-z]+", text) if word) or "Unnamed"
    )
    return f"N{name}" if name[0].isdigit() else name


def _is_identifier(text: str) -> bool:
    """Whether Python takes `text` for a name in a class as it is: one that begins with two underscores gets changed."""
    return (
        text.isascii() and text.isidentifier() and not keyword.iskeyword(text) and not text.startswith("__")
    )


def _literal(text: str) -> str:
    """A string of another's as a literal that cannot end before it should."""
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


def _docstring(summary: str, facts: Iterable[str], indent: int) -> str:
    """A docstring, its first line where it is put and the others indented; text of another's cannot end it."""
    margin = " " * indent
    first, *more = _wrapped(summary, _WIDTH - indent - 6)
    lines = [first, *(margin + line for line in more)]
    told = [
        line for fact in facts for line in textwrap.wrap(_safe(fact), _WIDTH - indent, subsequent_indent="  ")
    ]
    if told:
        lines += ["", *(margin + line for line in told)]
    if len(lines) == 1:
        return f'"""{lines[0]}"""'
    return "\n".join([f'"""{lines[0]}', *lines[1:], f'{margin}"""'])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(_safe(text), width) or ["Not described."]


def _safe(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable.replace("\\", "/").replace('"', "'")
