"""One flush for a receipt and for the intent that its device's next command puts right after it."""

import sqlite3
from pathlib import Path
from typing import Any

import trio

from tests.store.store_builders import final, intent, opened, put

COMMANDS = 20
TURNS_TO_THE_NEXT_INTENT = 2


async def test_a_receipt_and_the_intent_that_follows_it_share_a_commit(tmp_path: Path) -> None:
    commits = 0

    class Counting(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            nonlocal commits
            commits += sql == "COMMIT"
            return super().execute(sql, *parameters)

    def connect(path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Counting)

    async with opened(tmp_path / "state", connect=connect) as store:
        await put(store, intent(1))
        before = commits
        for number in range(1, COMMANDS + 1):
            receipt = store.put(final(number))
            for _ in range(TURNS_TO_THE_NEXT_INTENT):
                await trio.lowlevel.checkpoint()
            await store.put(intent(number + 1)).wait()
            await receipt.wait()
        assert commits - before == COMMANDS
