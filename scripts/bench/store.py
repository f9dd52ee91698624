"""Measures the store by itself, beside what the disk does with the same bytes.

    python scripts/bench/store.py [DIR [SECONDS]] [--all]

DIR gets the state directory (default: a temporary one beside this project's files), SECONDS is the length of one
measurement. Prints one JSON line {"figure", "per_s" | "us", ...}: how often per second receipt n and intent n + 1 are
committed together, each waited for. With --all one line for each figure.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import trio

from mhsd.store import Intent, Receipt, Store, open_store

ROOT = Path(__file__).resolve().parents[2]
ENDPOINT_ID = "mhs://localhost:7400"
DEVICE_ID = f"{ENDPOINT_ID}/lab/conveyor-workcell"
IN_FLIGHT = 64
DIGEST = "sha256:" + 64 * "0"


def intent(number: int) -> Intent:
    return Intent(
        device_id=DEVICE_ID,
        command_id=f"01J8ZQ3V6Y7M2N4P6{number:09d}",
        input_digest=DIGEST,
        principal_id="local:bench",
        operation_id=f"op_01J8ZQ3V6Y7M2N4P6{number:09d}",
        session_id="mhs_s_01J8ZQ3V6Y7M2N4P6R8S0T2V4X5e1d",
        body={**_shared(number), "status": "accepted"},
    )


def receipt(number: int) -> Receipt:
    """A step's receipt, of the members and the size that the conveyor's have."""
    body = {
        **_shared(number),
        "status": "completed",
        "ended_at": "2026-10-20T07:46:59.221Z",
        "state_revision_before": number - 1,
        "state_revision_after": number,
        "state_hash_after": DIGEST,
        "output": {"tick": number, "state_hash": DIGEST},
        "effects": [
            {
                "kind": "simulation.advance",
                "summary": "simulated 1 ms",
                "reversible": False,
                "severity": "R0",
                "irreversible_reason": "simulated time cannot be spent again",
            }
        ],
        "progress": {"ticks": 1, "percent": 100},
    }
    return Receipt(
        kind="final",
        body=body,
        device_id=DEVICE_ID,
        command_id=body["command_id"],
        operation_id=body["operation_id"],
        principal_id="local:bench",
        revision=number,
    )


def _shared(number: int) -> dict[str, Any]:
    return {
        "receipt_id": f"01J8ZQ3W1B7M2N4P6{number:09d}",
        "command_id": f"01J8ZQ3V6Y7M2N4P6{number:09d}",
        "operation_id": f"op_01J8ZQ3V6Y7M2N4P6{number:09d}",
        "session_id": "mhs_s_01J8ZQ3V6Y7M2N4P6R8S0T2V4X5e1d",
        "endpoint_id": ENDPOINT_ID,
        "device_id": DEVICE_ID,
        "capability_id": "cap.world.step.v1",
        "resource_ids": ["world"],
        "input_digest": DIGEST,
        "mode": "simulated",
        "principal": {"id": "local:bench", "kind": "human"},
        "accepted_at": "2026-10-20T07:46:58.900Z",
        "started_at": "2026-10-20T07:46:58.902Z",
        "replayed": False,
    }


class Bench:
    """The figures; each takes about `seconds`. `numbers` counts the commands, so that every id is new."""

    def __init__(self, store: Store, directory: Path, seconds: float) -> None:
        self._store = store
        self._directory = directory
        self._seconds = seconds
        self._numbers = itertools.count(1)

    async def serial_pairs(self) -> None:
        """Receipt n with intent n + 1 in one commit, one after the other: what one device can do at most."""
        number = next(self._numbers)
        await self._store.put(intent(number)).wait()
        ended = number

        async def pair() -> None:
            nonlocal ended
            following = next(self._numbers)
            await self._store.put(receipt(ended), intent(following)).wait()
            ended = following

        await self._closed_loop("serial_pairs", pair)
        await self._store.put(receipt(ended)).wait()

    async def in_flight(self) -> None:
        """Independent commands, each with a durable intent and then a durable receipt."""
        done = 0
        until_s = time.perf_counter() + self._seconds

        async def client() -> None:
            nonlocal done
            while time.perf_counter() < until_s:
                number = next(self._numbers)
                await self._store.put(intent(number)).wait()
                await self._store.put(receipt(number)).wait()
                done += 1

        start_s = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(client)
        report("commands_64_in_flight", per_s=done / (time.perf_counter() - start_s))

    async def raw_syncs(self) -> None:
        """Appends of a pair's bytes with fdatasync, without a database: the disk by itself."""
        pair = [json.dumps(dict(entry.body)).encode() for entry in (receipt(1), intent(2))]
        record = b"".join(pair)
        with (self._directory / "raw.bin").open("wb", buffering=0) as file:

            async def append() -> None:
                file.write(record)
                os.fdatasync(file.fileno())

            await self._closed_loop("fdatasync_same_bytes", append, bytes=len(record))

    async def look_ups(self) -> None:
        """find_command of a command that is on the disk, and of one that never was."""
        last = next(self._numbers) - 1
        finished = self._per_call(intent(number).command_id for number in itertools.cycle(range(1, last, 7)))
        report("find_command_finished", us=finished)
        report("find_command_unknown", us=self._per_call(f"none-{number}" for number in itertools.count()))

    async def puts(self) -> None:
        """What `put` of a receipt costs the event loop; they are waited for outside the measurement."""
        count = 200
        entries = [receipt(next(self._numbers)) for _ in range(count)]
        start_s = time.perf_counter()
        tickets = [self._store.put(entry) for entry in entries]
        took_s = time.perf_counter() - start_s
        await tickets[-1].wait()
        report("put_receipt", us=took_s / count * 1e6)

    def _per_call(self, command_ids: Iterator[str]) -> float:
        count = 0
        start_s = time.perf_counter()
        while time.perf_counter() < start_s + self._seconds:
            self._store.find_command(DEVICE_ID, next(command_ids))
            count += 1
        return (time.perf_counter() - start_s) / count * 1e6

    async def _closed_loop(self, figure: str, step: Callable[[], Awaitable[None]], **more: int) -> None:
        latencies_s: list[float] = []
        start_s = last_s = time.perf_counter()
        while last_s < start_s + self._seconds:
            await step()
            now_s = time.perf_counter()
            latencies_s.append(now_s - last_s)
            last_s = now_s
        latencies_s.sort()
        p50, p99 = (latencies_s[int(len(latencies_s) * share)] * 1e6 for share in (0.5, 0.99))
        report(figure, per_s=len(latencies_s) / (last_s - start_s), p50_us=p50, p99_us=p99, **more)


def report(figure: str, **values: float) -> None:
    rounded = {name: round(value, 1) for name, value in values.items()}
    print(json.dumps({"figure": figure, **rounded}), flush=True)


async def measure(directory: Path, seconds: float, everything: bool) -> None:
    async with open_store(
        directory / "state", endpoint_id=ENDPOINT_ID, mhs_version="1.0", created_at="2026-10-20T07:45:00.000Z"
    ) as store:
        bench = Bench(store, directory, seconds)
        await bench.serial_pairs()
        if everything:
            for figure in (bench.raw_syncs, bench.in_flight, bench.look_ups, bench.puts):
                await figure()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Measures the store by itself.")
    parser.add_argument("directory", type=Path, nargs="?", help="an empty or new directory for the files")
    parser.add_argument("seconds", type=float, nargs="?", default=2.0, help="of one measurement (2)")
    parser.add_argument("--all", action="store_true", help="every figure, one line each")
    arguments = parser.parse_args(argv)
    if arguments.directory is not None:
        arguments.directory.mkdir(parents=True, exist_ok=True)
        trio.run(measure, arguments.directory, arguments.seconds, arguments.all)
        return
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as directory:
        trio.run(measure, Path(directory), arguments.seconds, arguments.all)


if __name__ == "__main__":
    main(sys.argv[1:])
