"""What a request costs on each binding, beside the bare stack of that binding, and how long events take.

A binding is one row of BINDINGS: how its daemon and its bare stack are started, and how a crowd talks to them.
"""

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import events
from crowd import Crowd, HttpClient, Pipe, Requests, Run, WsClient
from peers import Exchange, Lines, Posts, first_line, request, started

HERE = Path(__file__).resolve().parent
CLIENTS = 16
MANY_CLIENTS = 100
MANY_LIMIT_MS = 100.0
RATE_HZ = 10
STREAMS = (1, 100, 500)
LATENCY_LIMIT_MS = 50.0
ROOM = ["--max-connections", "1000", "--max-sse-streams", "1000"]
"""More connections and streams than the daemon has by itself; the rate is lifted by whoever starts it."""

Child = subprocess.Popen[bytes]
Report = Callable[..., None]


class Load(Protocol):
    """Keeps requests in flight."""

    def run(self, requests: Requests, seconds: float, check: bytes) -> Run:
        """For so long, with answers that all contain `check`."""

    def close(self) -> None:
        """Give its connections back."""


@attrs.frozen
class Binding:
    """How a binding is measured."""

    options: list[str]
    """What `mhsd` is started with for it."""
    bare: list[str]
    """The bare stack's program."""
    exchange: Callable[[Child], Exchange]
    """One request and its answer, on a daemon that has just been started."""
    load: Callable[[Child, int], Load]
    """A crowd of so many at the daemon or the bare stack; called once for each size."""
    read_wanted: float | None = None
    """How much of the bare stack's rate a read has to reach."""


_ports: dict[int, int] = {}


def _port(child: Child) -> int:
    """The port of a server that says it in its first line, bare or in a ready line."""
    if child.pid not in _ports:
        line = json.loads(first_line(child))
        _ports[child.pid] = line if isinstance(line, int) else int(line["url"].rpartition(":")[2])
    return _ports[child.pid]


def _http_load(child: Child, clients: int) -> Load:
    return Crowd([HttpClient(_port(child)) for _ in range(clients)], child.pid)


def _ws_client(child: Child) -> WsClient:
    hello = {"client": {"name": "bench", "version": "1"}, "protocol_versions": ["1.0"]}
    return WsClient(_port(child), request("hello", "mhs.hello", hello))


def _ws_load(child: Child, clients: int) -> Load:
    return Crowd([_ws_client(child) for _ in range(clients)], child.pid)


BINDINGS: Mapping[str, Binding] = {
    "http": Binding(
        ["--port", "0", *ROOM],
        [sys.executable, str(HERE / "front.py")],
        lambda child: Posts(_port(child)).exchange,
        _http_load,
        read_wanted=0.6,
    ),
    "ws": Binding(
        ["--port", "0", *ROOM],
        [sys.executable, str(HERE / "echo.py"), "ws"],
        lambda child: _ws_client(child).exchange,
        _ws_load,
    ),
    "stdio": Binding(
        ["--stdio"],
        [sys.executable, str(HERE / "echo.py"), "stdio"],
        lambda child: Lines(child).exchange,
        Pipe,
    ),
}


@attrs.frozen
class Work:
    """What is asked for: the requests of each kind, from running numbers and a session."""

    hellos: Callable[[Iterator[int]], Requests]
    reads: Callable[[Iterator[int], str], Requests]
    steps: Callable[[Iterator[int], str], Requests]
    reply: bytes
    completed: bytes
    open_session: Callable[[Exchange, Iterator[int]], str]


def compare(
    name: str,
    mhsd: list[str],
    options: dict[str, Any],
    work: Work,
    rounds: int,
    seconds: float,
    report: Report,
) -> None:
    """Hello, read and durable command over one binding: answers a second, CPU for each, and their latency."""
    binding, numbers = BINDINGS[name], itertools.count(1)
    with started([*mhsd, *binding.options], **options) as daemon, started(binding.bare) as bare:
        session_id = work.open_session(binding.exchange(daemon), numbers)
        kinds = {
            "hello": (work.hellos(numbers), work.reply),
            "read": (work.reads(numbers, session_id), work.reply),
            "durable_command": (work.steps(numbers, session_id), work.completed),
        }
        with (
            contextlib.closing(binding.load(daemon, CLIENTS)) as served,
            contextlib.closing(binding.load(bare, CLIENTS)) as echo,
        ):
            for kind, (requests, check) in kinds.items():
                pairs = [
                    (
                        served.run(requests, seconds, check),
                        echo.run(work.hellos(numbers), seconds, work.reply),
                    )
                    for _ in range(rounds)
                ]
                wanted = binding.read_wanted if kind == "read" else None
                report(f"{kind}_{name}_{CLIENTS}_in_flight", **_ratio(pairs, name, wanted))
        if name == "http":
            with contextlib.closing(binding.load(daemon, MANY_CLIENTS)) as many:
                run = many.run(kinds["read"][0], rounds * seconds, work.reply)
            report(
                f"read_{name}_{MANY_CLIENTS}_clients",
                value=round(run.part_within(MANY_LIMIT_MS), 5),
                unit=f"part of the answers within {MANY_LIMIT_MS:g} ms",
                per_s=round(run.per_s, 1),
                **_latency(run),
                wanted="== 1",
                met=run.part_within(MANY_LIMIT_MS) == 1,
            )


def _ratio(pairs: list[tuple[Run, Run]], name: str, wanted: float | None) -> dict[str, Any]:
    ratio = statistics.median(served.per_s / bare.per_s for served, bare in pairs)
    of_served = [served for served, _ in pairs]
    return {
        "value": round(statistics.median(run.per_s for run in of_served), 1),
        "unit": "1/s",
        "of": f"echo_{name}_{CLIENTS}_in_flight",
        "of_value": round(statistics.median(bare.per_s for _, bare in pairs), 1),
        "ratio": round(ratio, 3),
        "cpu_us": round(statistics.median(run.cpu_us for run in of_served), 1),
        "of_cpu_us": round(statistics.median(bare.cpu_us for _, bare in pairs), 1),
        **_latency(of_served[-1]),
        **({} if wanted is None else {"wanted": f">= {wanted}"}),
        "met": None if wanted is None else ratio >= wanted,
    }


def _latency(run: Run) -> dict[str, float]:
    return {f"p{part}_ms": run.percentile_ms(part / 100) for part in (50, 99, 100)}


def deliver(mhsd: list[str], options: dict[str, Any], work: Work, seconds: float, report: Report) -> None:
    """Events of ten commands a second, on every one of so many streams."""
    numbers = itertools.count(1)
    binding = BINDINGS["http"]
    with started([*mhsd, *binding.options], **options) as daemon:
        exchange = binding.exchange(daemon)
        for streams in STREAMS:
            session_id = work.open_session(exchange, numbers)
            subscribe = {
                "session_id": session_id,
                "streams": [{"stream": "state", "resource_id": "world"}],
                "deadline_ms": 5000,
            }
            exchange(request(next(numbers), "mhs.subscribe", subscribe))
            step = partial(next, work.steps(numbers, session_id))
            seen = events.measure(_port(daemon), daemon.pid, session_id, streams, RATE_HZ, seconds, step)
            run = Run(seen.per_s, seen.cpu_us, seen.latencies_ms)
            is_limited = streams == max(STREAMS)
            report(
                f"events_sse_{streams}_streams",
                value=run.percentile_ms(0.99),
                unit="ms (p99 from publication to client)",
                rate_hz=RATE_HZ,
                per_s=round(run.per_s, 1),
                cpu_us=round(run.cpu_us, 1),
                lost=seen.missing,
                **_latency(run),
                **({"wanted": f"<= {LATENCY_LIMIT_MS:g} ms and none lost"} if is_limited else {}),
                met=run.percentile_ms(0.99) <= LATENCY_LIMIT_MS and not seen.missing if is_limited else None,
            )
            exchange(request(next(numbers), "mhs.session.close", {"session_id": session_id}))
