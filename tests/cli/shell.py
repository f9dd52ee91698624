"""`mhsctl` in this process, against an endpoint that answers as a test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from mhsd.cli.main import mhsctl
from tests.cli.tiny import Answer, Endpoint, Request, Tiny

ONE = "mhs://localhost:7400/lab/one"
TWO = "mhs://localhost:7400/lab/two"
MANIFEST: dict[str, Any] = {
    "device_id": ONE,
    "display_name": "One",
    "mode": "simulated",
    "risk_class": "R1",
    "resources": [
        {"resource_id": "belt", "state_schema": {"properties": {"speed": {"x-mhs-unit": "mm/s"}}}},
    ],
    "bindings": [
        {
            "capability_id": "cap.x.v1",
            "resource": "belt",
            "long_running": True,
            "constraints": {"max_duration_ms": 1000},
        },
        {"capability_id": "cap.device.configure.v1", "resource": "belt"},
        {"capability_id": "cap.twice.v1", "resource": "a"},
        {"capability_id": "cap.twice.v1", "resource": "b"},
    ],
}


def receipt(status: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "device_id": ONE, "capability_id": "cap.x.v1", "receipt_id": "R", **more}


@attrs.frozen
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs `mhsctl` in this process against one tiny endpoint."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.tiny: Tiny | None = None

    def serve(self, answer: Answer) -> Tiny:
        self.tiny = Tiny(answer)
        self._monkeypatch.setenv("MHS_ENDPOINT", self.tiny.url)
        return self.tiny

    def endpoint(self, **methods: Callable[[Request], Any]) -> Tiny:
        usual: dict[str, Callable[[Request], Any]] = {
            "devices_list": lambda _: {"devices": [MANIFEST]},
            "session_open": lambda _: {"session_id": "mhs_s_1", "granted": [], "mode": "simulated"},
            "session_close": lambda _: {"closed_at": "now", "summary": {"commands": 1}},
            "session_heartbeat": lambda _: {"expires_at": "2026-10-20T07:55:00.000Z"},
        }
        return self.serve(Endpoint(**{**usual, **methods}))

    def __call__(self, *words: str) -> Done:
        self._monkeypatch.setattr("sys.argv", ["mhsctl", *words])
        code = mhsctl()
        captured = self._capsys.readouterr()
        return Done(code, captured.out, captured.err)


def shells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """A shell without an endpoint and without long pauses; the body of a fixture."""
    monkeypatch.setattr("mhsd.client.session._BACKOFF_S", 0.001)
    monkeypatch.setattr("mhsd.client.session._POLL_S", 0.001)
    monkeypatch.delenv("MHS_ENDPOINT", raising=False)
    running = Shell(monkeypatch, capsys)
    yield running
    if running.tiny is not None:
        running.tiny.close()
