"""The log stream: records of the endpoint and of the drivers, each to the subscribers of the device it is about.

A record is about a device when its logger is the device's own (`Driver.log`) or when the device's id, or its path as
a driver knows it, is one of its arguments. Only its text is sent: a traceback may hold anything [PROTO-042].
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import trio

from mhsd.core.events import LEVELS
from mhsd.driver.contract import logger_of
from mhsd.services.device_host import DeviceHost
from mhsd.wire.elements import LogLevel

ROOT = "mhsd"
"""The logger that all others of the program are children of."""


class DeviceRecords(logging.Handler):
    """Hands log records to the feeds of these devices."""

    def __init__(self, hosts: Mapping[str, DeviceHost]) -> None:
        super().__init__()
        # By the manifest's path: what a driver's class does with its attributes is its own matter.
        self._named = {**hosts, **{host.manifest.path: host for host in hosts.values()}}
        self._loggers = {logger_of(host.manifest.path).name: host for host in hosts.values()}
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Called in whatever thread logs; costs next to nothing where nobody has subscribed."""
        host = self._host_of(record)
        if host is None or not host.feed.wants("log"):
            return
        try:
            message = record.getMessage()
            if threading.get_ident() == self._thread:
                self._send(host, record, message)
            else:
                self._token.run_sync_soon(self._send, host, record, message)
        except trio.RunFinishedError:
            # A thread that has outlived the endpoint; nobody listens any more.
            return
        except Exception:
            # Named boundary, as logging wants it: a record that cannot be sent is no concern of whoever logs.
            self.handleError(record)

    def _host_of(self, record: logging.LogRecord) -> DeviceHost | None:
        if record.name in self._loggers:
            return self._loggers[record.name]
        arguments = record.args if isinstance(record.args, tuple) else ()
        return next(
            (self._named[each] for each in arguments if isinstance(each, str) and each in self._named), None
        )

    @staticmethod
    def _send(host: DeviceHost, record: logging.LogRecord, message: str) -> None:
        host.feed.record(level_of(record.levelno), record.levelno, record.name, message)


def level_of(number: int) -> LogLevel:
    """The level of the log stream that a level of Python's logging belongs to."""
    found: LogLevel = "debug"
    for name, least in LEVELS.items():
        if number >= least:
            found = name
    return found


@contextmanager
def sent_records(hosts: Mapping[str, DeviceHost]) -> Iterator[None]:
    """Hand log records to the feeds of these devices for as long as the block runs."""
    handler = DeviceRecords(hosts)
    logging.getLogger(ROOT).addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger(ROOT).removeHandler(handler)
