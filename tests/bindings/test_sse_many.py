"""A hundred streams at 50 Hz: every stream has every event of its subscriptions, or a gap that names it [TPT-063]."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import trio

from tests.bindings.fakes import Client
from tests.lab import Lab, Session, running

SESSIONS = 10
STREAMS_OF_ONE = 10
SLOW_SUBSCRIPTIONS = 20
TELEMETRY = [{"stream": "telemetry", "resource_id": "belt"}]
CONVEY = {"distance_mm": 240, "speed_mm_s": 100}
OPTIONS = ("--max-sse-streams", "200", "--rate-per-s", "100000", "--rate-burst", "100000")


class Account:
    """What one stream has told of each subscription; fails where it leaves out or repeats anything."""

    def __init__(self, grants: list[dict[str, Any]]) -> None:
        self.next_seq = {grant["subscription_id"]: grant["seq_start"] for grant in grants}
        self.events = 0
        self.gaps = 0

    def enter(self, params: dict[str, Any]) -> None:
        name = params["subscription_id"]
        expected = self.next_seq[name]
        if params.get("type") == "gap":
            assert params["from"] == expected
            assert params["to"] == params["seq"] >= expected
            assert params["dropped"] == params["to"] - expected + 1
            self.gaps += 1
        else:
            assert params["seq"] == expected
            self.events += 1
        self.next_seq[name] = params["seq"] + 1


async def read(client: Client, account: Account) -> None:
    """Take everything in until the stream ends."""
    async with client.stream:
        try:
            while True:
                for line in (await client.block()).split("\n"):
                    if line.startswith("data: "):
                        account.enter(json.loads(line.removeprefix("data: "))["params"])
        except EOFError:
            return


async def open_stream(lab: Lab, session: Session) -> Client:
    client = Client(await trio.open_tcp_stream("127.0.0.1", int(lab.wire.port)))  # type: ignore[attr-defined]
    assert (await client.events(f"?session_id={session.id}")).status == 200
    return client


def accounts_of(streams: int, session: Session, subscriptions: int) -> list[Account]:
    """Subscribe to the telemetry so often; an account for each stream that will tell of it."""
    grants = [
        session.call("mhs.subscribe", streams=TELEMETRY, deadline_ms=5000) for _ in range(subscriptions)
    ]
    return [Account(grants) for _ in range(streams)]


def convey(session: Session) -> None:
    """Let the belt run, which is what telemetry tells of, until it has come to its end."""
    receipt = session.completed("cap.motion.convey.v1", CONVEY)
    assert receipt["output"]


async def watch(lab: Lab) -> tuple[dict[Session, list[Account]], list[Account]]:
    """What all streams have told when the belt has run: those that are read at once, and two that are not."""
    sessions = [lab.open() for _ in range(SESSIONS)]
    slow_session = lab.open()
    prompt = {session: accounts_of(STREAMS_OF_ONE, session, 1) for session in sessions}
    slow = accounts_of(2, slow_session, SLOW_SUBSCRIPTIONS)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for session, accounts in prompt.items():
                for account in accounts:
                    nursery.start_soon(read, await open_stream(lab, session), account)
            clients = [await open_stream(lab, slow_session) for _ in slow]
            await trio.to_thread.run_sync(partial(convey, sessions[0]))
            for client, account in zip(clients, slow, strict=True):
                nursery.start_soon(read, client, account)
            for session in (*sessions, slow_session):
                await trio.to_thread.run_sync(session.close)
    return prompt, slow


def test_a_hundred_streams_at_50_hz_lose_nothing_without_saying_so(tmp_path: Path) -> None:
    """TPT-018, TPT-063, EVT-008"""
    with running("http", tmp_path, *OPTIONS, "--event-buffer", "32") as lab:
        prompt, slow = trio.run(watch, lab)
    for accounts in prompt.values():
        # How many came at once depends on the machine; how many were told of, one way or the other, does not.
        assert all(account.events for account in accounts)
        assert all(account.next_seq == accounts[0].next_seq for account in accounts)
    for account in slow:
        assert account.gaps
        assert account.next_seq == slow[0].next_seq
