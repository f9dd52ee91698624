"""Which path leads where: the one table of the HTTP binding [TPT-010]."""

from __future__ import annotations

from collections.abc import Mapping

from mhsd.bindings.documents import serve_descriptor, serve_schema
from mhsd.bindings.rpc import serve_rpc
from mhsd.bindings.site import DESCRIPTOR, EVENTS, RPC, SCHEMAS, Route, anybody, lasting
from mhsd.bindings.sse import serve_events

ROUTES: Mapping[str, Route] = {
    RPC: Route("POST", serve_rpc, carries_stops=True),
    EVENTS: Route("GET", serve_events, authenticate=lasting),
    SCHEMAS: Route("GET", serve_schema),
    DESCRIPTOR: Route("GET", serve_descriptor, authenticate=anybody),
}
