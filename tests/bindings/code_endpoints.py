"""Where the code API is tried: the same daemon over HTTP and its local socket, and a child on stdio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.lab import MHSD, running

WAYS = ("http", "unix", "stdio")

Places = dict[str, str | Sequence[str]]


@contextmanager
def places(directory: Path, *targets: str) -> Iterator[Places]:
    """What `connect` takes for each of the ways to a daemon that serves `targets`."""
    with running("http", directory, "--rate-per-s", "10000", targets=targets) as lab:
        (socket,) = (directory / "run").glob("*.sock")
        child = [str(MHSD), *targets, "--stdio"]
        yield {"http": lab.ready["url"], "unix": f"unix:{socket}", "stdio": child}
