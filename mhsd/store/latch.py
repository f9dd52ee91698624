"""The e-stop latch on disk: a small preallocated file with two slots, written by a thread of its own.

The newest valid slot counts, so a torn write loses nothing that was durable before. Where no slot is valid the file
says nothing about the latch, and then every device is taken as latched: only an operator's reset may clear that.
"""

import hashlib
import json
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from mhsd.base.errors import StartError

log = logging.getLogger("mhsd.store")

LATCH_FILE = "latch"
SLOT_BYTES = 1 << 16
UNREADABLE = "the latch file cannot be read, so the emergency stop counts as engaged"

_MAGIC = b"MHSLATCH"
_HEADER = struct.Struct(">8sQI32s")
_EVERY_DEVICE = "*"
_SHORT_REASON = 64


@attrs.frozen
class LatchRecord:
    """Why and since when a device is latched."""

    reason: str
    engaged_at: str


class EveryDeviceLatched(Mapping[str, LatchRecord]):
    """The latches where nothing is known of them: any device that is asked for is latched.

    Iteration names the devices that are known; a device that is not among them is latched all the same.
    """

    def __init__(self, record: LatchRecord, known: Iterable[str] = ()) -> None:
        self._record = record
        self._known = tuple(dict.fromkeys(known))

    def naming(self, known: Iterable[str]) -> "EveryDeviceLatched":
        return EveryDeviceLatched(self._record, known)

    def __getitem__(self, device_id: str) -> LatchRecord:
        return self._record

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class LatchFile:
    """The open file, and the latches that it had when it was opened. One writer at a time: see LatchWriter."""

    def __init__(self, fd: int, sequence: int, latched: Mapping[str, LatchRecord]) -> None:
        self._fd = fd
        self._sequence = sequence
        self.latched = latched

    def write(self, latches: Mapping[str, Any]) -> None:
        """Durable when it returns; OSError where it is not. Blocks."""
        sequence = self._sequence + 1
        block = _block(sequence, latches)
        if os.pwrite(self._fd, block, (sequence % 2) * SLOT_BYTES) != len(block):
            raise OSError("the latch file was written in part only")
        os.fdatasync(self._fd)
        if os.fstat(self._fd).st_nlink == 0:
            # What has no name is gone with the process: no restart would find this latch.
            raise OSError("the latch file was removed or replaced")
        self._sequence = sequence

    def close(self) -> None:
        os.close(self._fd)


def open_latch(path: Path, *, fresh: bool, now: str) -> LatchFile:
    """The latch file at `path`; StartError where it cannot be made.

    Only a `fresh` state directory may be without one, and that begins with no latch. Where no slot is valid, or the
    file is gone, every device is latched, and a new file says so until the latches are written again.
    """
    try:
        if not path.exists():
            return _create(path, {} if fresh else _every_device(now))
        newest = _newest(path)
        if newest is None:
            log.critical("%s: %s", path, UNREADABLE)
            path.replace(path.with_name(f"{path.name}.damaged"))
            return _create(path, _every_device(now))
        sequence, latches = newest
        return LatchFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), sequence, _latched(latches))
    except OSError as error:
        raise StartError(f"latch file {path} cannot be used: {error.strerror or error}", 2) from None


def _create(path: Path, latches: Mapping[str, Any]) -> LatchFile:
    """A new file under its name only once it is whole."""
    partial = path.with_name(f"{path.name}.partial")
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        # Written, not only reserved: a later write then changes no metadata and needs one flush.
        os.pwrite(fd, bytes(2 * SLOT_BYTES), 0)
        file = LatchFile(fd, 0, _latched(latches))
        file.write(latches)
        os.fsync(fd)
        partial.replace(path)
    except OSError:
        os.close(fd)
        raise
    return file


def _every_device(now: str) -> dict[str, Any]:
    return {_EVERY_DEVICE: {"reason": UNREADABLE, "engaged_at": now}}


def _latched(latches: Mapping[str, Any]) -> Mapping[str, LatchRecord]:
    records = {
        name: LatchRecord(reason=latch["reason"], engaged_at=latch["engaged_at"])
        for name, latch in latches.items()
    }
    return EveryDeviceLatched(records[_EVERY_DEVICE]) if _EVERY_DEVICE in records else records


def _block(sequence: int, latches: Mapping[str, Any]) -> bytes:
    payload = _payload(latches)
    return _HEADER.pack(_MAGIC, sequence, len(payload), _checksum(sequence, payload)) + payload


def _payload(latches: Mapping[str, Any]) -> bytes:
    """The latches as they fit a slot. Which devices are latched matters more than why; at worst, all of them are."""
    short = {name: {**latch, "reason": latch["reason"][:_SHORT_REASON]} for name, latch in latches.items()}
    forms = [latches, short]
    if latches:
        forms.append({_EVERY_DEVICE: next(iter(short.values()))})
    payloads = (json.dumps(form, separators=(",", ":")).encode() for form in forms)
    return next(payload for payload in payloads if _HEADER.size + len(payload) <= SLOT_BYTES)


def _checksum(sequence: int, payload: bytes) -> bytes:
    return hashlib.sha256(sequence.to_bytes(8, "big") + payload).digest()


def _newest(path: Path) -> tuple[int, dict[str, Any]] | None:
    """The valid slot with the highest sequence number."""
    data = path.read_bytes()
    slots = [_parse(data[start : start + SLOT_BYTES]) for start in (0, SLOT_BYTES)]
    return max((slot for slot in slots if slot is not None), key=lambda slot: slot[0], default=None)


def _parse(slot: bytes) -> tuple[int, dict[str, Any]] | None:
    if len(slot) < _HEADER.size:
        return None
    magic, sequence, length, checksum = _HEADER.unpack_from(slot)
    payload = slot[_HEADER.size : _HEADER.size + length]
    if magic != _MAGIC or len(payload) != length or checksum != _checksum(sequence, payload):
        return None
    latches: dict[str, Any] = json.loads(payload)
    return sequence, latches


class LatchWriter:
    """Writes the newest latches that it was given; a caller that stops waiting does not stop the write."""

    def __init__(self, file: LatchFile, *, inline: bool) -> None:
        self._file = file
        self._inline = inline
        self._limiter = trio.CapacityLimiter(1)
        self._wanted: Mapping[str, Any] = {}
        self._wanted_number = 0
        self._written_number = 0
        self._failed = False
        self._closing = False
        self._wake = trio.Event()
        self._progress = trio.Event()
        self._scope = trio.CancelScope(shield=True)

    async def write(self, latches: Mapping[str, Any]) -> bool:
        """True when these latches, or newer ones, are durable; False when the file cannot be written."""
        self._wanted = latches
        self._wanted_number += 1
        mine = self._wanted_number
        self._wake.set()
        while self._written_number < mine and not self._failed:
            await self._progress.wait()
        return self._written_number >= mine

    async def run(self) -> None:
        """The writing task; it ends after `close`, when everything that was asked for is written."""
        with self._scope:
            while not (self._closing and self._written_number == self._wanted_number) and not self._failed:
                if self._written_number == self._wanted_number:
                    await self._wake.wait()
                    self._wake = trio.Event()
                    continue
                await self._write_newest()
        # Whoever still waits, or comes later, is told that nothing more is written.
        self._failed = True
        self._progress.set()

    def close(self, cancel: bool = False) -> None:
        self._closing = True
        self._wake.set()
        if cancel:
            self._scope.cancel()

    async def _write_newest(self) -> None:
        number, latches = self._wanted_number, self._wanted
        try:
            await self._elsewhere(lambda: self._file.write(latches))
        except Exception as error:
            # After a failed flush the file's state is unknown: it is never written again.
            log.critical("the e-stop latch could not be written to disk: %s", error)
            self._failed = True
        else:
            self._written_number = number
        self._progress.set()
        self._progress = trio.Event()

    async def _elsewhere(self, work: Callable[[], None]) -> None:
        if self._inline:
            work()
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await trio.to_thread.run_sync(work, limiter=self._limiter, abandon_on_cancel=True)
