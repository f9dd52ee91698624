"""What a ledger costs as it grows: the same daemon on a short chain and on a long one, in one run.

    python scripts/bench/growth.py DIR COUNT

writes a state directory with COUNT receipts through the store's bulk path, as fast as the disk takes them. As a module
it has the measurements that run.py makes of two such directories.
"""

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trio
from peers import Exchange
from store import ENDPOINT_ID, receipt

from mhsd.core.chain import BundleCheck, receipt_errors
from mhsd.store import open_store

RECEIPTS_A_COMMIT = 1000
COMMANDS_A_ROUND = 100
SHORT = 1000


async def seed(directory: Path, count: int) -> None:
    """A state directory with `count` receipts of finished commands."""
    async with open_store(
        directory, endpoint_id=ENDPOINT_ID, mhs_version="1.0", created_at="2026-10-20T07:45:00.000Z"
    ) as store:
        for first in range(1, count + 1, RECEIPTS_A_COMMIT):
            last = min(first + RECEIPTS_A_COMMIT, count + 1)
            await store.put(*(receipt(number) for number in range(first, last))).wait()


class Served:
    """A daemon on one of the ledgers, and what its commands take. `check` is in every right answer."""

    def __init__(self, exchange: Exchange, requests: Iterator[bytes], check: bytes, pid: int) -> None:
        self._exchange = exchange
        self._requests = requests
        self._check = check
        self._pid = pid

    def command_s(self) -> float:
        """Seconds of a command: the median of some, so that a flush that took long does not count."""
        times_s = []
        for body in itertools.islice(self._requests, COMMANDS_A_ROUND):
            start = time.perf_counter()
            answer = self._exchange(body)
            times_s.append(time.perf_counter() - start)
            if self._check not in answer:
                raise SystemExit(f"a reply without {self._check!r}: {answer[:2000]!r}")
        return statistics.median(times_s)

    def resident_mib(self) -> float:
        """Memory that the daemon holds now."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def pages(self, request: Callable[[dict[str, Any]], bytes]) -> Iterator[dict[str, Any]]:
        """The whole evidence, page by page."""
        params: dict[str, Any] = {}
        while True:
            page: dict[str, Any] = json.loads(self._exchange(request(params)))["result"]
            yield page
            if page["truncation"] is None:
                return
            params = {"since_receipt": page["truncation"]["next_since_receipt"]}


def compare(
    short: Served,
    long: Served,
    rounds: int,
    report: Callable[..., None],
    export: Callable[[dict[str, Any]], bytes],
) -> None:
    """The three figures: a command, the check of the whole chain, and the memory after both."""
    for served in (short, long):
        served.command_s()
    pairs = []
    for number in range(rounds):
        # Each goes first as often as the other.
        order = (short, long) if number % 2 else (long, short)
        took_s = {served: served.command_s() for served in order}
        pairs.append((took_s[long], took_s[short]))
    long_s, short_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    verify_rate(short.pages(export))
    receipts, verified_per_s = verify_rate(long.pages(export))
    of = f"the same after {SHORT}"
    _report(
        report,
        "command_after_many_receipts",
        (long_s * 1e6, short_s * 1e6),
        statistics.median(a / b for a, b in pairs),
        most=1.1,
        unit="us",
        of=of,
        receipts=receipts,
    )
    # One client that waits for each: the fastest that one client can have commands written.
    commands_per_s = 1 / long_s
    _report(
        report,
        "verify",
        (verified_per_s, commands_per_s),
        verified_per_s / commands_per_s,
        least=3.0,
        unit="1/s",
        of="durable commands, one after the other",
        receipts=receipts,
    )
    memory_mib = (long.resident_mib(), short.resident_mib())
    _report(
        report,
        "memory_after_many_receipts",
        memory_mib,
        memory_mib[0] / memory_mib[1],
        most=1.1,
        unit="MiB",
        of=of,
        receipts=receipts,
    )


def _report(
    report: Callable[..., None],
    figure: str,
    values: tuple[float, float],
    ratio: float,
    *,
    least: float | None = None,
    most: float | None = None,
    **more: Any,
) -> None:
    report(
        figure,
        value=round(values[0], 1),
        of_value=round(values[1], 1),
        ratio=round(ratio, 3),
        **more,
        wanted=f"<= {most}" if least is None else f">= {least:g}",
        met=ratio <= most if most is not None else least is not None and ratio >= least,
    )


def verify_rate(pages: Iterator[dict[str, Any]]) -> tuple[int, float]:
    """(receipts, receipts per second) of the check that `mhsctl evidence --verify` makes, without the transport."""
    first = next(pages)
    check = BundleCheck(first, receipt_errors)
    took_s = 0.0
    for page in itertools.chain([first], pages):
        start = time.perf_counter()
        check.turn(page)
        for entry in page["receipts"]:
            check.add(entry)
        took_s += time.perf_counter() - start
    report = check.report()
    if not report["valid"]:
        raise SystemExit(f"the chain is not valid: {report['errors'][:3]}")
    return report["checked"], report["checked"] / took_s


if __name__ == "__main__":
    trio.run(seed, Path(sys.argv[1]), int(sys.argv[2]))
