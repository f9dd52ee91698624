"""`make bench`: the speed of mhsd as ratios to bare programs, in one run, one JSON line for each figure.

Each round measures mhsd and what it is compared with right after each other, and the ratio is the median of
the rounds' ratios, so a machine that changes its speed between rounds moves both. `wanted` is the project's
own bar, `met` whether this run reached it. The exit code is 1 with --strict when a bar was missed, else 0.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import bindings
import growth
from peers import Exchange, Lines, Posts, closed_loop, first_line, request, started, ulids

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MHSD = [str(Path(sys.executable).with_name("mhsd")), "conveyor-workcell"]
ECHO = [sys.executable, str(HERE / "echo.py")]
LOAD = [sys.executable, str(HERE / "load.py")]
IMPORTS = [sys.executable, "-c", "import trio, typer, h11"]
# The rate limit would be measured instead of the program.
UNLIMITED = ["--rate-per-s", "1000000", "--rate-burst", "1000000"]
IN_FLIGHT = 64
# Receipts of the long chain: in every run, and in a full one.
SOME, MANY = 20_000, 1_000_000
RECORD_BYTES = 2048
REPLY = b'"result"'
COMPLETED = b'"status":"completed"'

BUSY_CLIENTS = 64
LEAST_STOPS = 5
STOPS_PER_S = 50
PAUSE_S = 0.02

HELLO = {"client": {"name": "bench", "version": "1"}, "protocol_versions": ["1.0"], "features": ["batch"]}
Measure = Callable[[], float]


def hellos(numbers: Iterator[int]) -> Iterator[bytes]:
    """mhs.hello requests; an id may be used once on a connection."""
    return (request(number, "mhs.hello", HELLO) for number in numbers)


def reads(numbers: Iterator[int], session_id: str) -> Iterator[bytes]:
    """mhs.resource.read requests of the fixture's world."""
    params = {"session_id": session_id, "resource_id": "world", "deadline_ms": 5000}
    return (request(number, "mhs.resource.read", params) for number in numbers)


def steps(numbers: Iterator[int], session_id: str) -> Iterator[bytes]:
    """mhs.command requests: one tick of the fixture's world each, every one a new command."""
    fixed = {
        "session_id": session_id,
        "capability_id": "cap.world.step.v1",
        "input": {"ticks": 1},
        "deadline_ms": 60000,
    }
    return (
        request(number, "mhs.command", fixed | {"command_id": command_id})
        for number, command_id in zip(numbers, ulids(), strict=False)
    )


def open_session(exchange: Exchange, numbers: Iterator[int]) -> str:
    """Say hello and open a session on the only device; its id."""
    hello = json.loads(exchange(next(hellos(numbers))))["result"]
    device = hello["devices"][0]
    params = {
        "principal": {"id": "service:bench", "kind": "service"},
        "device_ids": [device["device_id"]],
        "capabilities": ["*"],
        "mode": device["mode"],
        "ttl_s": 3600,
        "client_info": {"name": "bench", "version": "1", "transport": "stdio"},
    }
    answer = json.loads(exchange(request(next(numbers), "mhs.session.open", params)))
    if "result" not in answer:
        raise SystemExit(f"session.open: {answer}")
    return str(answer["result"]["session_id"])


WORK = bindings.Work(hellos, reads, steps, REPLY, COMPLETED, open_session)


def daemon_options(state_dir: Path) -> dict[str, Any]:
    """Options of the daemon's process: its log goes to a file that is shown when it does not start."""
    return {"cwd": state_dir.parent, "stderr": (state_dir.parent / "mhsd.log").open("ab")}


class Bench:
    """The rounds of one run and the figures that they give."""

    def __init__(self, rounds: int, seconds: float, receipts: int, directory: Path) -> None:
        self.rounds, self.seconds, self.receipts, self.directory = rounds, seconds, receipts, directory
        self.missed: list[str] = []

    def compare(self, figure: str, of: str, measure: Measure, bare: Measure, wanted: float | None) -> None:
        """A rate and its ratio to a bare program's; at least `wanted`."""
        pairs = [(measure(), bare()) for _ in range(self.rounds)]
        self.report(
            figure,
            value=round(statistics.median(a for a, _ in pairs), 1),
            unit="1/s",
            of=of,
            of_value=round(statistics.median(b for _, b in pairs), 1),
            ratio=round(statistics.median(a / b for a, b in pairs), 3),
            **({} if wanted is None else {"wanted": f">= {wanted}"}),
            met=None if wanted is None else statistics.median(a / b for a, b in pairs) >= wanted,
        )

    def report(self, figure: str, *, met: bool | None = None, **members: Any) -> None:
        """Print one figure."""
        line = {"figure": figure, **members} | ({} if met is None else {"met": met})
        print(json.dumps(line), flush=True)
        if met is False:
            self.missed.append(figure)

    def state_dir(self, name: str) -> Path:
        """A state dir that does not exist yet, on the disk of the checkout."""
        return Path(tempfile.mkdtemp(dir=self.directory)) / name

    def hello_stdio(self) -> None:
        """mhs.hello against the echo: one at a time, and with 64 in flight."""
        numbers = itertools.count(1)
        options = daemon_options(self.state_dir("state"))
        with started([*MHSD, "--stdio"], **options) as daemon, started([*ECHO, "stdio"]) as echo:
            served, bare = Lines(daemon), Lines(echo)
            served.exchange(next(hellos(numbers)))
            self.compare(
                "hello_stdio",
                "echo_stdio",
                partial(closed_loop, served.exchange, hellos(numbers), self.seconds, REPLY),
                partial(closed_loop, bare.exchange, hellos(numbers), self.seconds, REPLY),
                wanted=0.5,
            )
            self.compare(
                "hello_stdio_64_in_flight",
                "echo_stdio_64_in_flight",
                partial(served.pipeline, hellos(numbers), IN_FLIGHT, self.seconds, REPLY),
                partial(bare.pipeline, hellos(numbers), IN_FLIGHT, self.seconds, REPLY),
                wanted=None,
            )

    def durable_command(self) -> None:
        """mhs.command on disk with 64 in flight against the same store committing pair after pair."""
        numbers = itertools.count(1)
        state = self.state_dir("state")
        with started([*MHSD, "--stdio", "--state-dir", str(state)], **daemon_options(state)) as daemon:
            lines = Lines(daemon)
            session_id = open_session(lines.exchange, numbers)
            requests = steps(numbers, session_id)
            self.compare(
                "durable_command_stdio_64_in_flight",
                "store_serial_pairs",
                partial(lines.pipeline, requests, IN_FLIGHT, 2 * self.seconds, COMPLETED),
                self.serial_pairs,
                wanted=0.4,
            )
            self.compare(
                "durable_command_stdio_serial",
                "fdatasync_2k",
                partial(closed_loop, lines.exchange, requests, self.seconds, COMPLETED),
                self.syncs,
                wanted=None,
            )

    def serial_pairs(self) -> float:
        """Commits per second of the store on its own: receipt n with intent n + 1, each waited for."""
        argv = [sys.executable, str(HERE / "store.py"), str(self.state_dir("store")), str(2 * self.seconds)]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        return float(json.loads(done.stdout)["per_s"])

    def syncs(self) -> float:
        """Appends of 2 KiB with fdatasync per second: what the disk allows without grouping."""
        path = self.state_dir("sync").with_suffix(".bin")
        record = bytes(RECORD_BYTES)
        count = 0
        with path.open("ab", buffering=0) as file:
            start = time.perf_counter()
            while time.perf_counter() < start + self.seconds:
                file.write(record)
                os.fdatasync(file.fileno())
                count += 1
            return count / (time.perf_counter() - start)

    def ready_line(self) -> None:
        """Seconds to the ready line against the time that its three largest imports take."""
        pairs = [(self.ready_s(), self.imports_s()) for _ in range(self.rounds)]
        ready_s, imports_s = (statistics.median(column) for column in zip(*pairs, strict=True))
        limit_s = 1.5 * imports_s + 0.5
        self.report(
            "ready_line",
            value=round(ready_s, 3),
            unit="s",
            of="import trio, typer, h11",
            of_value=round(imports_s, 3),
            ratio=round(ready_s / imports_s, 3),
            wanted=f"<= {limit_s:.3f} s (1.5 * of_value + 0.5 s)",
            met=ready_s <= limit_s,
        )

    def ready_s(self) -> float:
        """Seconds from the start of the daemon, on a new state dir, to its ready line."""
        state = self.state_dir("state")
        start = time.perf_counter()
        with started([*MHSD, "--port", "0", "--state-dir", str(state)], **daemon_options(state)) as daemon:
            first_line(daemon)
            return time.perf_counter() - start

    @staticmethod
    def imports_s() -> float:
        """Seconds of a Python that imports and ends."""
        start = time.perf_counter()
        subprocess.run(IMPORTS, check=True)
        return time.perf_counter() - start

    def http(self) -> None:
        """mhs.hello and mhs.resource.read over one HTTP connection against the h11 echo."""
        numbers = itertools.count(1)
        state = self.state_dir("state")
        daemon_argv = [*MHSD, "--port", "0", *UNLIMITED]
        with (
            started(daemon_argv, **daemon_options(state)) as daemon,
            started([*ECHO, "http"]) as echo,
            contextlib.closing(
                Posts(int(json.loads(first_line(daemon))["url"].rpartition(":")[2].strip("/")))
            ) as served,
            contextlib.closing(Posts(int(first_line(echo)))) as bare,
        ):
            session_id = open_session(served.exchange, numbers)
            for figure, requests in (
                ("hello_http", hellos(numbers)),
                ("read_http", reads(numbers, session_id)),
            ):
                self.compare(
                    figure,
                    "echo_http_h11",
                    partial(closed_loop, served.exchange, requests, self.seconds, REPLY),
                    partial(closed_loop, bare.exchange, hellos(numbers), self.seconds, REPLY),
                    wanted=None,
                )

    def bindings(self) -> None:
        """Hello, read and durable command on each binding beside its bare stack, with 16 requests in flight."""
        for name in bindings.BINDINGS:
            state = self.state_dir("state")
            mhsd = [*MHSD, "--state-dir", str(state), *UNLIMITED]
            report = self.reporting(name)
            bindings.compare(name, mhsd, daemon_options(state), WORK, self.rounds, self.seconds, report)

    def events(self) -> None:
        """How long events take to one client, to a hundred and to five hundred."""
        seconds = max(0.3, 2 * self.rounds * self.seconds / 3)
        options = daemon_options(self.state_dir("state"))
        bindings.deliver([*MHSD, *UNLIMITED], options, WORK, seconds, self.reporting("http"))

    def reporting(self, binding: str) -> Callable[..., None]:
        """Print a figure of a binding with the options that its daemon was started with."""
        return partial(self.report, options=" ".join([*UNLIMITED, *bindings.BINDINGS[binding].options]))

    def ledger(self) -> None:
        """What a long chain costs: the same commands after 1000 receipts and after many, and its check."""
        states = [self.state_dir("state") for _ in range(2)]
        for state, count in zip(states, (growth.SHORT, self.receipts), strict=True):
            argv = [sys.executable, str(HERE / "growth.py"), str(state), str(count)]
            subprocess.run(argv, check=True)
        with contextlib.ExitStack() as stack:
            numbers = itertools.count(1)
            daemons = []
            for state in states:
                argv = [*MHSD, "--stdio", "--state-dir", str(state)]
                daemon = stack.enter_context(started(argv, **daemon_options(state)))
                lines = Lines(daemon)
                session_id = open_session(lines.exchange, numbers)
                requests = steps(numbers, session_id)
                daemons.append(growth.Served(lines.exchange, requests, COMPLETED, daemon.pid))
            short, long = daemons
            growth.compare(
                short,
                long,
                4 * self.rounds,
                self.report,
                lambda params: request(next(numbers), "mhs.evidence.export", params),
            )

    def estop(self) -> None:
        """Stops by one client while 64 others keep the endpoint busy, with receipts on disk, against stops at rest."""
        numbers = itertools.count(1)
        state = self.state_dir("state")
        daemon_argv = [*MHSD, "--port", "0", "--state-dir", str(state), *UNLIMITED]
        stops = max(LEAST_STOPS, round(self.rounds * self.seconds * STOPS_PER_S))
        with started(daemon_argv, **daemon_options(state)) as daemon:
            port = int(json.loads(first_line(daemon))["url"].rpartition(":")[2])
            with contextlib.closing(Posts(port)) as client:
                session_id = open_session(client.exchange, numbers)
                idle = Stops(client.exchange, numbers, session_id, stops)
                with started([*LOAD, str(port), session_id, str(BUSY_CLIENTS)]) as load:
                    first_line(load)
                    busy = Stops(client.exchange, numbers, session_id, stops)
                    assert load.stdin is not None
                    load.stdin.close()
                    commands_per_s = float(first_line(load))
        self.report(
            "estop_under_load",
            value=busy.reply_ms(0.99),
            unit="ms (p99 of the reply)",
            of="estop_idle",
            of_value=idle.reply_ms(0.99),
            ratio=round(busy.reply_ms(0.99) / idle.reply_ms(0.99), 3),
            stops=stops,
            clients=BUSY_CLIENTS,
            commands_per_s=round(commands_per_s, 1),
            **busy.percentiles(),
            wanted=f"stopped_max_ms <= {busy.declared_ms} (what the fixture declares)",
            met=busy.stopped_ms(1) <= busy.declared_ms,
        )


class Stops:
    """Stops, each followed by its reset: the times of the replies and those that the receipts state."""

    def __init__(self, exchange: Exchange, numbers: Iterator[int], session_id: str, count: int) -> None:
        self._replies_ms: list[float] = []
        self._receipts: list[Any] = []
        device = json.loads(exchange(next(hellos(numbers))))["result"]["devices"][0]["device_id"]
        asked = {"device_id": device, "deadline_ms": 60000}
        status = json.loads(exchange(request(next(numbers), "mhs.safety.status", asked)))["result"]
        self.declared_ms = status["estop"]["latency_ms"]
        for _ in range(count):
            stop = request(next(numbers), "mhs.safety.estop", {"reason": "bench"})
            start = time.perf_counter()
            answer = exchange(stop)
            self._replies_ms.append((time.perf_counter() - start) * 1000)
            self._receipts.append(_completed(answer)["output"])
            _completed(
                exchange(request(next(numbers), "mhs.safety.reset", {**asked, "session_id": session_id}))
            )
            time.sleep(PAUSE_S)

    def reply_ms(self, part: float) -> float:
        """Milliseconds from the request to the reply, which comes when the receipt is on disk."""
        return percentile(self._replies_ms, part)

    def latched_ms(self, part: float) -> float:
        """Milliseconds until the latch was set, by the receipts."""
        return percentile([output["latch_latency_ms"] for output in self._receipts], part)

    def stopped_ms(self, part: float) -> float:
        """Milliseconds until the driver had confirmed its safe state, by the receipts."""
        return percentile([output["latency_ms"] for output in self._receipts], part)

    def percentiles(self) -> dict[str, float]:
        """Median, 99th percentile and maximum of each."""
        of = {"reply": self.reply_ms, "latched": self.latched_ms, "stopped": self.stopped_ms}
        parts = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        return {f"{name}_{part}_ms": ms(at) for name, ms in of.items() for part, at in parts.items()}


def percentile(values: Sequence[float], part: float) -> float:
    """The value that this part of the values does not exceed."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(part * len(ordered)) - 1)], 3)


def _completed(answer: bytes) -> Any:
    receipt = json.loads(answer).get("result", {})
    if receipt.get("status") != "completed":
        raise SystemExit(f"not completed: {answer[:2000]!r}")
    return receipt


def main(argv: Sequence[str] | None = None) -> int:
    """Run all figures, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    figures = (
        "hello_stdio",
        "durable_command",
        "ready_line",
        "http",
        "bindings",
        "events",
        "estop",
        "ledger",
    )
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"some of: {', '.join(figures)} (default: all)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each comparison (5)")
    parser.add_argument("--seconds", type=float, default=0.6, help="length of one measurement (0.6)")
    parser.add_argument(
        "--receipts",
        type=int,
        default=MANY if os.environ.get("MHSD_BENCH_FULL") == "1" else SOME,
        help=f"length of the long chain ({SOME}, or {MANY} with MHSD_BENCH_FULL=1, which takes some minutes)",
    )
    parser.add_argument("--strict", action="store_true", help="exit 1 when a wanted ratio is missed")
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.figures) - set(figures):
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as directory:
        bench = Bench(arguments.rounds, arguments.seconds, arguments.receipts, Path(directory))
        for name in arguments.figures or figures:
            getattr(bench, name)()
    return 1 if arguments.strict and bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
