"""The daemon: builds the parts, runs them, and takes them down in an order that leaves devices safe.

Imports little, because with `--stdio` the protocol's descriptors are claimed before anything that might print.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from mhsd.base.errors import StartError
from mhsd.config import Config

__all__ = ["main"]

_SWITCH_INTERVAL_S = 0.0005


def main(config: Config, environ: MutableMapping[str, str] = os.environ) -> int:
    """Serve until told to stop; returns the exit code.

    Raises StartError, one line and an exit code, where the daemon cannot serve what was asked for.
    """
    pipes = None
    if config.on_pipes:
        from mhsd.bindings.pipes import claim

        pipes = claim()
    # A thread that computes in Python would hold up the loop for ten times as long.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    from mhsd.daemon.logs import Log

    with Log(config.log_format, config.log_level):
        try:
            if config.endpoint is not None and pipes is not None:
                from mhsd.daemon.mcp import run_remote

                return run_remote(config, pipes)
            from mhsd.daemon.run import run

            return run(config, pipes, environ)
        except BaseExceptionGroup as group:
            raise _start_error(group) from None


def _start_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The refusal that ended the start, out of the groups that the nurseries made of it; else the group."""
    refusals = group.subgroup(StartError)
    leaf: BaseException = refusals or group
    while refusals and isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf
