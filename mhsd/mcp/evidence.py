"""What `mhs__evidence` says: the chain of receipts, checked here and never taken on trust [TPT-044, EVID-003].

The check goes on where it stopped, so that asking again costs only what came since.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import trio

from mhsd.aclient.client import AsyncClient
from mhsd.base.errors import Fault
from mhsd.client.errors import MHSError, error
from mhsd.client.requests import member
from mhsd.core.chain import BundleCheck, receipt_errors
from mhsd.mcp.artifacts import Artifacts, fit_twice
from mhsd.mcp.fixed import DEFAULT_LAST_N, MAX_LAST_N
from mhsd.mcp.results import json_line

MOST_CHARACTERS = 8 << 20
"""The newest receipts that are held for the bundle, as JSON."""

_SHOWN_CHARACTERS = 1 << 19
"""As many receipts are shown as a result can say twice."""

PATIENCE_S = 20.0
"""How long one call may go on reading; the next one goes on from there."""

_TURN = 16
"""Receipts that are checked before somebody else has a turn."""

Receipt = dict[str, Any]


class _Kept(NamedTuple):
    """A receipt as it is held: its JSON takes a tenth of the room."""

    command_id: str
    text: str

    def receipt(self) -> Receipt:
        receipt: Receipt = json.loads(self.text)
        return receipt


class EvidenceReader:
    """Follows one endpoint's chain."""

    def __init__(self, client: AsyncClient, artifacts: Artifacts) -> None:
        self._client = client
        self._artifacts = artifacts
        self._turn = trio.Lock()
        self._begin()

    def _begin(self) -> None:
        self._check: BundleCheck | None = None
        self._envelope: dict[str, Any] = {}
        self._newest: deque[_Kept] = deque()
        self._newest_characters = 0
        self._count = 0
        self._last_id: str | None = None

    async def document(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """`{count, head_digest, valid, verify, receipts, uri, bundle?}`; MHSError or Fault where there is none."""
        async with self._turn:
            with trio.move_on_after(PATIENCE_S) as patience:
                await self._catch_up()
                receipts = await self._chosen(arguments)
            if patience.cancelled_caught:
                raise Fault(
                    "MHS.OUTCOME.TIMEOUT",
                    f"{self._count} receipts were read in {PATIENCE_S:g} s and there are more",
                    details={"reason": "deadline_exceeded"},
                    retryable=True,
                    remediation="Ask again; the check goes on from there.",
                )
            return self._document(arguments, receipts)

    def _document(self, arguments: Mapping[str, Any], receipts: list[Receipt]) -> dict[str, Any]:
        report = None
        if arguments.get("verify", True) and self._check is not None:
            report = copy.deepcopy(self._check).report()
        shown = _fitting(receipts)
        text = self._bundle_text()
        document: dict[str, Any] = {
            "count": self._count,
            "head_digest": self._envelope.get("head_digest"),
            "valid": None if report is None else report["valid"],
            "verify": report,
            "receipts": shown,
            "uri": self._artifacts.keep(text),
        }
        left_out: dict[str, Any] = {}
        if len(shown) < len(receipts):
            left_out["shown"] = len(shown)
        if len(self._newest) < self._count:
            # The bundle holds the newest receipts, which a verifier can check from there on.
            document["bundle_from_seq"] = (
                self._newest[0].receipt()["evidence"].get("seq") if self._newest else None
            )
        if arguments.get("include_bundle"):
            if fit_twice((json_line(document), text)):
                document["bundle"] = json.loads(text)
            else:
                # What stands beside it is worth more than one artifact that has everything.
                left_out["bundle_characters"] = len(text)
        if left_out:
            document["truncation"] = {"reason": "frame_limit", **left_out}
        return document

    def _bundle_text(self) -> str:
        """The bundle as JSON, put together from what is JSON already."""
        receipts = ",".join(kept.text for kept in self._newest)
        return f'{json_line(self._envelope)[:-1]},"receipts":[{receipts}]}}'

    async def _chosen(self, arguments: Mapping[str, Any]) -> list[Receipt]:
        """The receipts that are asked for, oldest first."""
        command_id = arguments.get("command_id")
        most = arguments.get("last_n", DEFAULT_LAST_N if command_id is None else MAX_LAST_N)
        if command_id is None:
            return [kept.receipt() for kept in islice(self._newest, max(0, len(self._newest) - most), None)]
        found = [kept.receipt() for kept in self._newest if kept.command_id == command_id]
        if not found and len(self._newest) < self._count:
            found = [
                receipt
                async for page in self._pages(None)
                for receipt in page["receipts"]
                if receipt["command_id"] == command_id
            ]
        return found[-most:]

    async def _catch_up(self) -> None:
        try:
            await self._read_on()
        except MHSError as refusal:
            if self._last_id is None or refusal.mhs_code != "MHS.PROTOCOL.INVALID_PARAMS":
                raise
            # The endpoint knows the last receipt no more: it has been started with another chain.
            self._begin()
            await self._read_on()

    async def _read_on(self) -> None:
        async for page in self._pages(self._last_id):
            if self._check is None:
                self._check = BundleCheck({**page, "receipts": []}, receipt_errors)
            elif not page["receipts"]:
                # Without news it tells the head of an empty chain; the bundle and its uri are those that there were.
                continue
            self._envelope = {**page, "truncation": None}
            del self._envelope["receipts"]
            self._check.turn(page)
            for receipt in page["receipts"]:
                self._check.add(receipt)
                self._hold(receipt)
                if self._count % _TURN == 0:
                    await trio.lowlevel.checkpoint()

    async def _pages(self, since: str | None) -> AsyncIterator[dict[str, Any]]:
        """The pages after a receipt; each of them is taken whole or not at all."""
        while True:
            params = {} if since is None else {"since_receipt": since}
            page = _checked(await self._client.call("mhs.evidence.export", params))
            yield page
            truncation = page.get("truncation")
            if not isinstance(truncation, dict) or not page["receipts"]:
                return
            since = member(truncation, "next_since_receipt")

    def _hold(self, receipt: Receipt) -> None:
        self._count += 1
        self._last_id = receipt["receipt_id"]
        text = json_line(receipt)
        self._newest.append(_Kept(receipt["command_id"], text))
        self._newest_characters += len(text)
        while self._newest_characters > MOST_CHARACTERS:
            self._newest_characters -= len(self._newest.popleft().text)


def _checked(page: dict[str, Any]) -> dict[str, Any]:
    """The same page; MHSError where it has not what is relied on here. Everything else is for the check to judge."""
    receipts = page.get("receipts")
    if not isinstance(receipts, list) or not all(map(_is_receipt, receipts)):
        raise error(
            "MHS.PROTOCOL.INVALID_REQUEST", "what the endpoint exports as evidence has no list of receipts"
        )
    return page


def _is_receipt(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("evidence"), dict)
        and all(isinstance(value.get(name), str) for name in ("receipt_id", "command_id"))
    )


def _fitting(receipts: list[Receipt]) -> list[Receipt]:
    """The newest of them that fit in a result."""
    left = _SHOWN_CHARACTERS
    taken: list[Receipt] = []
    for receipt in reversed(receipts):
        left -= len(json_line(receipt))
        if left < 0:
            break
        taken.append(receipt)
    return taken[::-1]
