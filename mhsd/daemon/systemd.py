"""What the daemon tells the service manager: ready, stopping, alive (sd_notify).

Outside of systemd, without NOTIFY_SOCKET, nothing is told and nothing waits.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger("mhsd.systemd")


class Notifier:
    """Sends datagrams to the service manager's socket; a lost one is logged and never waited for."""

    def __init__(self, address: str | None, watchdog_interval_s: float | None) -> None:
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self.watchdog_interval_s = watchdog_interval_s if address else None
        """How often `alive` is to be called: twice in the time that the manager allows. None: never."""

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Notifier:
        """From the variables that systemd sets, which are taken away so that no child speaks for the daemon."""
        address = environ.pop("NOTIFY_SOCKET", None)
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        if address is not None and not address.startswith(("/", "@")):
            log.warning("NOTIFY_SOCKET names no Unix socket and is ignored")
            address = None
        wanted = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 2e6 if wanted else None)

    def ready(self, status: str) -> None:
        """Everything is up."""
        self._tell(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}")

    def stopping(self) -> None:
        """The stop has begun."""
        self._tell("STOPPING=1\nSTATUS=bringing the devices to their safe state")

    def alive(self) -> None:
        """The main loop still turns."""
        self._tell("WATCHDOG=1")

    def _tell(self, message: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto(message.encode(), self._address)
        except OSError as error:
            log.warning(
                "the service manager could not be told %s: %s", message.split("\n")[0], error.strerror
            )
