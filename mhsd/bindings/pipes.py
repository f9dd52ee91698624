"""Takes stdin and stdout away from everybody else, so that only protocol messages travel on them [TPT-005].

Imports next to nothing: it is called before anything that might print.
"""

from __future__ import annotations

import os
import sys

import attrs

from mhsd.base.errors import StartError


@attrs.frozen
class Pipes:
    """The protocol's own descriptors; no child inherits them."""

    read_fd: int
    write_fd: int


def claim() -> Pipes:
    """Move the protocol to descriptors of its own; what is printed from now on goes to stderr.

    Descriptor 0 reads as empty and 1 is stderr from here on, so that neither a `print`, nor C code that
    writes to descriptor 1, nor a child that reads stdin can touch the protocol. Raises StartError where one
    of them is closed.
    """
    if sys.stdin is None or sys.stdout is None:
        raise StartError("--stdio and --mcp need stdin and stdout, and one of them is closed", exit_code=2)
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:  # Before anything else is opened: a closed 2 is the next number to be given away.
        os.dup2(null, 2)
    pipes = Pipes(os.dup(0), os.dup(1))
    os.dup2(null, 0)
    os.dup2(2, 1)
    if null > 2:
        os.close(null)
    if sys.stderr is not None:
        sys.stdout = sys.stderr
    return pipes
