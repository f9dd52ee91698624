"""How many files and sockets the process may have open: enough for every connection that it would accept.

A connection that cannot be accepted for want of a descriptor could be the one that carries an e-stop, and the lane
that is kept for it would not help [TPT-020].
"""

from __future__ import annotations

import logging
import resource

from mhsd.bindings.limits import STOP_LANE
from mhsd.bindings.local import MOST_CONNECTIONS

log = logging.getLogger("mhsd.daemon")

_OWN = 64
"""Standard streams, event loop, store, logs, listeners and locks."""

_OF_A_DEVICE = 8
"""Links, pipes and their second ones for a stop."""


def needed_files(max_connections: int, devices: int) -> int:
    """How many descriptors an endpoint may need at a time, those of its local socket included."""
    return max_connections + MOST_CONNECTIONS + 2 * STOP_LANE + _OF_A_DEVICE * devices + _OWN


def allow_files(needed: int) -> None:
    """Raise the soft limit to what is needed; warn where the hard one does not allow that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < needed:
        log.warning(
            "this process may open %d files and could need %d: an e-stop may find no free connection;"
            " raise the limit (ulimit -n, or LimitNOFILE= of the service) or lower --max-connections",
            most,
            needed,
        )
