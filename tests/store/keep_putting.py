"""Puts commands into the store of argv[1] for ever, printing the number of each whose receipt is durable.

The test of the crash runs it as a process of its own and kills it.
"""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import trio

from mhsd.store import Store
from tests.store.store_builders import final, intent, opened

CLIENTS = 8


async def client(store: Store, numbers: Iterator[int]) -> None:
    while True:
        number = next(numbers)
        await store.put(intent(number)).wait()
        print("intent", number, flush=True)
        await store.put(final(number, revision=number)).wait()
        print("receipt", number, flush=True)


async def main(state_dir: Path, first: int) -> None:
    numbers = itertools.count(first)
    async with opened(state_dir) as store, trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(client, store, numbers)


if __name__ == "__main__":
    trio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
