"""The Trio client and a daemon with limits, with tokens, and with an end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from mhsd.aclient import AsyncClient, open_client
from mhsd.client.client import connect
from mhsd.client.errors import AuthError, MHSError, SessionError, TransportError
from mhsd.client.transport import Answer
from tests.lab import MHSD, PATIENCE_S, running

SLOW = ("--rate-per-s", "40", "--rate-burst", "20", "--log-level", "warning")
CALLS = 50


class Watched:
    """Notes how an endpoint refused a client."""

    def __init__(self, client: AsyncClient) -> None:
        self.refused: list[str] = []
        self._exchange = client.transport.exchange
        client.transport.exchange = self.exchange  # type: ignore[method-assign]

    async def exchange(
        self, request_id: str, body: bytes, timeout_s: float, *, urgent: bool = False
    ) -> Answer:
        answer = await self._exchange(request_id, body, timeout_s, urgent=urgent)
        if "error" in answer.body:
            self.refused.append(answer.body["error"]["data"]["mhs_code"])
        return answer


@pytest.mark.parametrize("binding", ["http", "ws"])
async def test_a_program_that_sends_all_it_has_is_never_refused(tmp_path: Path, binding: str) -> None:
    """[MHSD-7-04] It waits for its turn, and its e-stop does not."""
    with running("http", tmp_path, *SLOW) as lab:
        url = lab.ready["url"] if binding == "http" else lab.ready["ws_url"]
        async with open_client(url) as client:
            watched = Watched(client)
            answered = []

            async def ask() -> None:
                await client.call("mhs.devices.list")
                answered.append("list")

            async def stop() -> None:
                await client.estop()
                answered.append("stop")

            with trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    for _ in range(CALLS):
                        nursery.start_soon(ask)
                    nursery.start_soon(stop)
        assert watched.refused == []
        assert sorted(answered) == [*["list"] * CALLS, "stop"]
        assert answered.index("stop") < CALLS


def test_a_script_that_sends_all_it_has_is_never_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[MHSD-7-04]"""
    refusals: list[MHSError] = []
    monkeypatch.setattr("mhsd.client.calls.pause_s", lambda refusal, _: refusals.append(refusal))
    with running("http", tmp_path, *SLOW) as lab, connect(lab.ready["url"]) as client:
        for _ in range(CALLS):
            client.call("mhs.devices.list")
    assert refusals == []


@pytest.mark.parametrize("binding", ["http", "ws"])
async def test_an_endpoint_that_was_restarted_is_used_again_and_its_sessions_are_over(
    tmp_path: Path, binding: str
) -> None:
    """[TPT-061, TPT-064]"""
    with ExitStack() as daemons:
        first = daemons.enter_context(running("http", tmp_path, "--log-level", "warning"))
        port = first.ready["url"].rsplit(":", 1)[1]
        async with open_client(f"{binding}://127.0.0.1:{port}") as client:
            session = await client.session()
            subscription = await session.subscribe("state")
            await session.invoke("cap.world.step.v1", {"ticks": 1})
            with trio.fail_after(PATIENCE_S):
                await anext(subscription)
            first.kill()
            with trio.fail_after(PATIENCE_S), pytest.raises(MHSError):
                await session.read("world")
            daemons.enter_context(running("http", tmp_path, "--log-level", "warning", "--port", port))
            with trio.fail_after(PATIENCE_S):
                assert len(await client.devices()) == 1
            with pytest.raises(SessionError):
                await session.read("world")
            with trio.fail_after(PATIENCE_S), pytest.raises(SessionError):
                await _to_its_end(subscription)
            session.forget()


async def _to_its_end(subscription: object) -> None:
    async for _ in subscription:  # type: ignore[attr-defined]
        continue


@pytest.mark.parametrize("binding", ["http", "ws"])
async def test_a_token_is_shown_or_nothing_is_served(tmp_path: Path, binding: str) -> None:
    """[TPT-014, TPT-023]"""
    file = tmp_path / "token"
    file.write_text("s3cret-of-the-lab\n")
    file.chmod(0o600)
    with running("http", tmp_path, "--token-file", str(file), "--log-level", "warning") as lab:
        url = lab.ready["url"] if binding == "http" else lab.ready["ws_url"]
        async with open_client(url, token_file=file) as client, client.session() as session:
            async with session.subscribe("state") as subscription:
                await session.invoke("cap.world.step.v1", {"ticks": 1})
                with trio.fail_after(PATIENCE_S):
                    await anext(subscription)
            assert (await client.estop()).status == "completed"
        for wrong in (None, "another-secret-of-the-lab"):
            async with open_client(url, token=wrong) as client:
                with pytest.raises(AuthError) as refused:
                    await client.devices()
                assert refused.value.mhs_code == "MHS.AUTH.UNAUTHENTICATED"
                assert refused.value.http_status == 401
                with pytest.raises(AuthError):
                    await client.estop()


async def test_a_child_ends_in_order_although_its_program_is_cancelled() -> None:
    """[TPT-008] Leaving the client waits for it; ChildFailed would tell of a bad end."""
    with trio.CancelScope() as scope:
        async with open_client([str(MHSD), "conveyor-workcell", "--stdio"]) as client:
            session = await client.session()
            await session.invoke(
                "cap.motion.convey.v1", {"distance_mm": 10_000, "speed_mm_s": 100}, deadline_ms=500
            )
            scope.cancel()
            await trio.sleep_forever()
    with pytest.raises(TransportError, match="the client is closed"):
        await session.read("world")
