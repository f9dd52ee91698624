"""Which path leads where: the one table of the HTTP binding [TPT-010]."""

from __future__ import annotations

from collections.abc import Mapping

from mhsd.bindings.documents import serve_descriptor, serve_schema
from mhsd.bindings.rpc import serve_rpc
from mhsd.bindings.site import DESCRIPTOR, RPC, SCHEMAS, Route, anybody

ROUTES: Mapping[str, Route] = {
    RPC: Route("POST", serve_rpc, carries_stops=True),
    SCHEMAS: Route("GET", serve_schema),
    DESCRIPTOR: Route("GET", serve_descriptor, authenticate=anybody),
}
