"""Code files: a session that stops the script at the first refusal [CORE-140].

`mhsctl run` runs such a file and writes its ledger; run by `python` alone it does the same without a ledger.
"""

import atexit
import os
from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

from mhsd.client.calls import DEFAULT_TIMEOUT_S
from mhsd.client.code import CodeClient, client_of, connect
from mhsd.client.code_session import CodeSession
from mhsd.client.documents import Receipt
from mhsd.client.endpoint import DEFAULT_ENDPOINT, Endpoint
from mhsd.client.errors import MHSError, MHSRejected
from mhsd.client.requests import DEFAULT_TTL_S
from mhsd.client.stdio import ChildFailed
from mhsd.client.token_file import read_token

_GOOD = ("completed", "running")


class Default(NamedTuple):
    """What `mhsctl run` was told of the endpoint, for a `lab()` that names none."""

    place: Endpoint | None = None
    token: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S


default = Default()
"""Set by `mhsctl run` before it runs the code file."""


class Lab(CodeSession):
    """A session of a code file, with a client of its own; a context manager that closes both."""

    waits = True
    check = True
    """Whether a receipt that is neither completed nor running raises MHSRejected."""

    def _checked(self, receipt: Receipt) -> Receipt:
        if self.check and receipt.status not in _GOOD:
            raise MHSRejected(receipt)
        return receipt

    def close(self, reason: str | None = None) -> dict[str, object]:
        """Ends the session and the connection; a child that ended badly is reported by ChildFailed."""
        _open.pop(id(self), None)
        try:
            return super().close(reason)
        finally:
            self.client.close()


_open: dict[int, Lab] = {}


def close_all() -> list[str]:
    """Closes what a code file has left open, so that its devices go to their safe state now and not when the session
    expires. Returns what went wrong."""
    troubles = []
    while _open:
        try:
            _open.popitem()[1].close("the code file has ended")
        except (MHSError, ChildFailed) as problem:
            troubles.append(str(problem))
    return troubles


# A code file that `python` runs may leave its session open as well.
atexit.register(close_all)
# What a child that it forks leaves open is its parent's, which goes on.
os.register_at_fork(after_in_child=_open.clear)


def lab(
    endpoint: str | Sequence[str] | None = None,
    *,
    check: bool = True,
    device_ids: str | Sequence[str] | None = None,
    capabilities: Sequence[str] | None = None,
    ttl_s: int = DEFAULT_TTL_S,
    token_file: str | PathLike[str] | None = None,
) -> Lab:
    """Opens a session for a code file on `endpoint`, else on MHS_ENDPOINT, else on port 7400 of this machine.

    Commands are followed to their final receipt, and one that is neither completed nor running raises MHSRejected,
    which has the receipt; with `check=False` every receipt is returned [CORE-140, MHSD-9a-86].
    """
    client = _client(endpoint, token_file)
    try:
        opened = Lab(client, *client.open(device_ids, capabilities, None, ttl_s))
    except BaseException:
        client.close()
        raise
    opened.check = check
    _open[id(opened)] = opened
    return opened


def _client(endpoint: str | Sequence[str] | None, token_file: str | PathLike[str] | None) -> CodeClient:
    if not endpoint and default.place is not None:
        # The token of the command line is for its endpoint and for no other.
        token = default.token if token_file is None else read_token(token_file)
        return client_of(default.place, token, default.timeout_s)
    place = endpoint or os.environ.get("MHS_ENDPOINT") or DEFAULT_ENDPOINT
    return connect(place, token_file=token_file, timeout_s=default.timeout_s)
