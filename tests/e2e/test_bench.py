"""`make bench` measures everything that it says it measures. What the numbers are is not a test's matter."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

COMPARED = {
    "hello_stdio",
    "hello_stdio_64_in_flight",
    "durable_command_stdio_64_in_flight",
    "durable_command_stdio_serial",
    "ready_line",
    "hello_http",
    "read_http",
    "estop_under_load",
    "command_after_many_receipts",
    "verify",
    "memory_after_many_receipts",
}
"""Each beside something else that was measured in the same run, and without a latency of its own."""

IN_FLIGHT = {
    f"{kind}_{binding}_16_in_flight"
    for kind in ("hello", "read", "durable_command")
    for binding in ("http", "ws", "stdio")
}
"""Each beside the bare stack of its binding."""

EVENTS = {f"events_sse_{streams}_streams" for streams in (1, 100, 500)}


def test_a_short_run_prints_every_figure() -> None:
    argv = [
        sys.executable,
        ROOT / "scripts" / "bench" / "run.py",
        "--rounds",
        "1",
        "--seconds",
        "0.05",
        "--receipts",
        "2000",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    figures = {line["figure"]: line for line in lines}
    assert len(figures) == len(lines)
    assert set(figures) == COMPARED | IN_FLIGHT | EVENTS | {"read_http_100_clients"}
    for name, line in figures.items():
        assert line["value"] > 0
        assert line["unit"]
        assert ("wanted" in line) == ("met" in line)
        if name in COMPARED | IN_FLIGHT:
            assert line["of"]
            assert line["of_value"] > 0
            assert line["ratio"] > 0
        if name not in COMPARED:
            assert "--rate-per-s" in line["options"]
            assert 0 < line["p50_ms"] <= line["p99_ms"] <= line["p100_ms"]
    assert figures["verify"]["receipts"] > 2000
    assert [figures[name]["lost"] for name in sorted(EVENTS)] == [0, 0, 0]
    stop = figures["estop_under_load"]
    for name in ("reply", "latched", "stopped"):
        assert 0 <= stop[f"{name}_p50_ms"] <= stop[f"{name}_p99_ms"] <= stop[f"{name}_max_ms"]
    assert stop["commands_per_s"] > 0
