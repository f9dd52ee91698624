"""Which clients have gone, noticed at once and without reading: one epoll for all connections of a front.

A task for each connection would do the same for more: a request that waits for its answer would cost half as much
again. What a client has sent ahead stays where it is, in the socket, and hides nothing.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

_GONE = select.EPOLLHUP | select.EPOLLERR

OnDeparture = Callable[[bool], None]
"""Is told whether the whole connection is gone (True), or its client will send no more but may still listen."""


class Departures:
    """Tells each connection that its client has closed."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, OnDeparture] = {}

    @contextmanager
    def watched(self, descriptor: int, on_departure: OnDeparture) -> Iterator[None]:
        """Tell of this socket's client while the block lasts; the socket must be open at its end."""
        self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLET)
        self._watched[descriptor] = on_departure
        try:
            yield
        finally:
            del self._watched[descriptor]
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Tell of departures until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for descriptor, what in self._epoll.poll(0):
                if descriptor in self._watched:
                    self._watched[descriptor](bool(what & _GONE))

    def close(self) -> None:
        """Give the epoll back, once nothing is watched any more and `run` has ended."""
        self._epoll.close()
