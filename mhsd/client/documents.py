"""Receipts, devices and events as a person at a prompt or in a notebook sees them: dicts that show themselves.

They are the endpoint's documents, whole and unchanged; the properties only name what is asked for most. What is
shown has passed a network, so nothing of it reaches a terminal or a page unescaped.
"""

import html
import json
from collections.abc import Iterable, Mapping
from typing import Any

from mhsd.client.continuity import is_gap
from mhsd.client.naming import capabilities_of, path_of
from mhsd.client.receipts import is_final

_LONGEST = 160
"""Characters of one value that are shown; the document has all of them."""

_SAFE_STATE = {True: "reached", False: "NOT confirmed"}

Row = tuple[str, str]


class Receipt(dict[str, Any]):
    """The receipt of one command, whatever came of it [TPT-055]."""

    @property
    def status(self) -> str:
        """completed, failed, rejected, cancelled, unknown, running or accepted."""
        return str(self.get("status"))

    @property
    def ok(self) -> bool:
        """Whether the effect was achieved."""
        return self.status == "completed"

    @property
    def final(self) -> bool:
        """Whether no later receipt can follow."""
        return is_final(self)

    @property
    def output(self) -> dict[str, Any]:
        """What the capability returned; empty without one."""
        return _object(self.get("output"))

    @property
    def error(self) -> dict[str, Any] | None:
        """Why it was refused, failed or is unknown; None otherwise."""
        error = self.get("error")
        return error if isinstance(error, dict) else None

    @property
    def mhs_code(self) -> str | None:
        """The code of the error; None without one."""
        code = _object(self.error).get("mhs_code")
        return code if isinstance(code, str) else None

    @property
    def operation_id(self) -> str | None:
        """The operation, which everything that was dispatched has."""
        return _text(self, "operation_id")

    @property
    def revision(self) -> int | None:
        """The device's revision after the command; None where the receipt does not say."""
        revision = self.get("state_revision_after")
        return revision if isinstance(revision, int) else None

    def __repr__(self) -> str:
        what = plain(f"{self.status} {self.get('capability_id')} on {path_of(str(self.get('device_id')))}")
        return f"<Receipt {what}: {self._outcome()}>"

    def __str__(self) -> str:
        return _lines(self._title(), self._rows())

    def _repr_html_(self) -> str:
        return _table(self._title(), self._rows())

    def _title(self) -> str:
        resources = ", ".join(map(str, _entries(self.get("resource_ids"))))
        where = f"{resources} of " if resources else ""
        return f"{self.status}: {self.get('capability_id')} on {where}{path_of(str(self.get('device_id')))}"

    def _outcome(self) -> str:
        if self.error is not None:
            return plain(f"{self.mhs_code} {self.error.get('message')}")
        return shown(self.output or _object(self.get("progress")))

    def _rows(self) -> list[Row]:
        before, after = self.get("state_revision_before"), self.get("state_revision_after")
        error, cancellation = _object(self.error), _object(self.get("cancellation"))
        effects = [_object(effect).get("summary") for effect in _entries(self.get("effects"))]
        rows: list[tuple[str, Any]] = [
            ("error", f"{self.mhs_code}: {error.get('message')}" if error else None),
            ("what to do", error.get("remediation")),
            ("cancelled by", cancellation.get("requested_by")),
            (
                "safe state",
                _SAFE_STATE[cancellation.get("safe_state_achieved") is True] if cancellation else None,
            ),
            *self.output.items(),
            ("progress", self.get("progress") if not self.final else None),
            ("effects", "; ".join(map(str, effects)) or None),
            ("revision", f"{before} → {after}" if before != after else after),
            ("ended at", self.get("ended_at")),
            ("receipt", self.get("receipt_id")),
        ]
        return [(name, shown(value)) for name, value in rows if value is not None]


class Device(dict[str, Any]):
    """One device's manifest, which says what it is, can do and may not do [TPT-056]."""

    @property
    def device_id(self) -> str:
        """The whole id: the endpoint's and the path."""
        return str(self.get("device_id"))

    @property
    def path(self) -> str:
        """The name below the endpoint's id, as in `/lab/conveyor-workcell`."""
        return path_of(self.device_id)

    @property
    def display_name(self) -> str:
        """What people call it."""
        return str(self.get("display_name"))

    @property
    def mode(self) -> str:
        """simulated, hardware, hybrid or replay."""
        return str(self.get("mode"))

    @property
    def risk_class(self) -> str:
        """R0 (no physical effect) to R3 (can injure or destroy)."""
        return str(self.get("risk_class"))

    @property
    def fidelity_gaps(self) -> list[str]:
        """What a simulated or hybrid device does not show of the real one."""
        return [str(gap) for gap in _entries(_object(self.get("fidelity")).get("gaps"))]

    @property
    def determinism(self) -> str:
        """Whether the same commands give the same results again: exact, statistical or none."""
        return str(_object(self.get("fidelity")).get("determinism"))

    @property
    def capabilities(self) -> list[str]:
        """The capability ids that are bound, each once."""
        return capabilities_of(self)

    @property
    def bindings(self) -> list[dict[str, Any]]:
        """Every binding: capability, resource, input schema, limits, interlocks."""
        return [entry for entry in _entries(self.get("bindings")) if isinstance(entry, dict)]

    @property
    def resources(self) -> list[str]:
        """The ids of what can be read."""
        return [str(_object(entry).get("resource_id")) for entry in _entries(self.get("resources"))]

    def __repr__(self) -> str:
        return (
            f"<Device {plain(f'{self.path} ({self.mode}, {self.risk_class})')}: {plain(self.display_name)}>"
        )

    def __str__(self) -> str:
        return _lines(self._title(), self._rows())

    def _repr_html_(self) -> str:
        return _table(self._title(), self._rows())

    def _title(self) -> str:
        return f"{self.display_name}: {self.path}"

    def _rows(self) -> list[Row]:
        rows: list[tuple[str, Any]] = [
            ("mode", self.mode),
            ("risk class", self.risk_class),
            ("determinism", self.determinism),
            *(("fidelity gap", gap) for gap in self.fidelity_gaps),
            ("resources", ", ".join(self.resources)),
            *((_binding_name(binding), _inputs(binding)) for binding in self.bindings),
        ]
        return [(plain(name), shown(value)) for name, value in rows if value is not None]


class Event(dict[str, Any]):
    """One event of a subscription."""

    @property
    def seq(self) -> int:
        """Its number; those of one subscription rise without a hole, gaps included."""
        return int(self["seq"])

    @property
    def stream(self) -> str:
        """state, telemetry, events, log, progress, or control for gaps and the safety events."""
        return str(self.get("stream"))

    @property
    def payload(self) -> dict[str, Any]:
        """What the stream's schema describes."""
        return _object(self.get("payload"))

    @property
    def is_gap(self) -> bool:
        """Whether events are missing here: state is unknown until it is read again [EVT-008]."""
        return is_gap(self)

    def __repr__(self) -> str:
        number, kind = self.get("seq"), self.get("type") or self.get("resource_id") or ""
        return f"<Event {plain(f'{number} {self.stream} {kind}')}: {shown(self.payload)}>"


def plain(text: str) -> str:
    """Text of another's for a terminal: what would move the cursor or hide itself is written out."""
    safe = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return safe if len(safe) <= _LONGEST else safe[: _LONGEST - 1] + "…"


def shown(value: Any) -> str:
    """A value of a document, short and on one line."""
    if isinstance(value, str):
        return plain(value)
    try:
        if isinstance(value, Mapping):
            return plain(", ".join(f"{name} {shown(content)}" for name, content in value.items()))
        return plain(json.dumps(value, ensure_ascii=False, default=repr))
    except RecursionError:
        return "…"  # Deeper than anything that an endpoint of this protocol says.


def _binding_name(binding: Mapping[str, Any]) -> str:
    return f"{binding.get('capability_id')} on {binding.get('resource')}"


def _inputs(binding: Mapping[str, Any]) -> str:
    """The inputs of a binding with their units and the limits that are enforced."""
    fields = fields_of(_object(binding.get("input_schema")), _object(binding.get("limits")))
    return "; ".join(f"{name} {text}".strip() for name, text in fields.items())


def fields_of(schema: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, str]:
    """The fields of an object's schema, each with its choices, its range and its unit; `limits` are narrower."""
    properties = _object(schema.get("properties"))
    return {name: _field(_object(sub), _object(limits.get(name))) for name, sub in properties.items()}


def _field(schema: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    least, most = limits.get("min", schema.get("minimum")), limits.get("max", schema.get("maximum"))
    choices = "|".join(map(str, _entries(schema.get("enum"))))
    span = (
        ""
        if (least, most) == (None, None)
        else f"{'' if least is None else least}..{'' if most is None else most}"
    )
    return " ".join(
        part for part in (choices, span, _unit(limits.get("unit", schema.get("x-mhs-unit")))) if part
    )


def _unit(unit: object) -> str:
    """A unit behind a number; what is only counted has none, or its noun in braces."""
    return "" if unit in (None, "1") else str(unit).strip("{}")


def _lines(title: str, rows: Iterable[Row]) -> str:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([plain(title), *(f"  {plain(name).ljust(width)}  {text}" for name, text in rows)])


def _table(title: str, rows: Iterable[Row]) -> str:
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(plain(name))}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table><caption style='text-align:left'>{html.escape(plain(title))}</caption>{cells}</table>"


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _entries(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) else None
