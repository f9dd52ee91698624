"""The code API for Trio programs, and what the MCP projection is built on.

Kept apart from `mhsd.client`, which is on the standard library alone so that an e-stop from a shell starts at once.
"""

from mhsd.aclient.client import AsyncClient
from mhsd.aclient.events import AsyncSubscription
from mhsd.aclient.opening import open_client
from mhsd.aclient.session import AsyncSession

__all__ = ["AsyncClient", "AsyncSession", "AsyncSubscription", "open_client"]
