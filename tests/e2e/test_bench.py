"""`make bench` measures everything that it says it measures. What the numbers are is not a test's matter."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
    figures = {line["figure"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert set(figures) == {
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
    assert figures["verify"]["receipts"] > 2000
    for line in figures.values():
        assert line["value"] > 0
        assert line["of_value"] > 0
        assert line["ratio"] > 0
        assert ("wanted" in line) == ("met" in line)
    stop = figures["estop_under_load"]
    for name in ("reply", "latched", "stopped"):
        assert 0 <= stop[f"{name}_p50_ms"] <= stop[f"{name}_p99_ms"] <= stop[f"{name}_max_ms"]
    assert stop["commands_per_s"] > 0
