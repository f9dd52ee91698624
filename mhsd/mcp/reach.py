"""What the endpoint offers, as far as it is known; and how that gets known when the endpoint is away.

An endpoint that is down at the start is waited for in the background: until then there are the fixed tools only,
and the client is told when there are more [TPT-044, MHSD-9a-85].
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from mhsd.aclient.client import AsyncClient
from mhsd.base.errors import Fault
from mhsd.client.errors import AuthError, MHSError, TransportError, error
from mhsd.client.requests import member, open_params
from mhsd.mcp.policy import Policy
from mhsd.mcp.projection import MAX_DEADLINE_MS, Projection, project, usable
from mhsd.mcp.session import VERSIONS
from mhsd.mcp.tools import ProjectionError

log = logging.getLogger("mhsd.mcp")

ANSWER_S = 3.0
"""How long anybody waits for an endpoint that does not answer, the start and initialize among them."""

LOAD_S = 30.0
"""How long an endpoint that answers may take for all that is asked of it."""

_PROBE_TTL_S = 60

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
_ATTEMPTS = 1000
"""Some two and a half hours; after that only a call asks again [TPT-064]."""


async def load(client: AsyncClient, policy: Policy, *, is_remote: bool) -> Projection:
    """Ask the endpoint for everything that the tools are made of. At a remote one a token may be for less than
    everything; only what it is for becomes a tool [TPT-046, TPT-060].

    MHSError, TooSlowError, or ProjectionError where two tools would have one name.
    """
    with trio.fail_after(ANSWER_S):
        hello = await client.hello()
        listed = (await client.call("mhs.devices.list"))["devices"]
    manifests: list[Mapping[str, Any]] = [
        usable(
            await client.call("mhs.devices.get", {"device_id": summary["device_id"], "include_state": False})
        )
        for summary in listed
        if policy.allows_device(summary["device_id"])
    ]
    if is_remote:
        manifests = [await _as_granted(client, manifest) for manifest in manifests]
    classes = {
        binding["capability_id"] for manifest in manifests for binding in manifest.get("bindings") or []
    }
    documents = {name: await _class_document(client, name) for name in sorted(classes)}
    limits = hello.get("limits") or {}
    return project(
        manifests,
        endpoint_id=str(hello["endpoint_id"]),
        policy=policy,
        classes={name: document for name, document in documents.items() if document is not None},
        max_deadline_ms=limits.get("max_command_deadline_ms", MAX_DEADLINE_MS),
    )


async def _as_granted(client: AsyncClient, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifest with the bindings that a session of this caller would have.

    Where the endpoint opens none without a person's approval all of them stay: it decides about every call.
    """
    params = open_params(
        await client.hello(),
        client_name=client.name,
        transport="mcp",
        principal={"kind": "agent", "id": client.name},
        device_ids=[manifest["device_id"]],
        capabilities=["*"],
        mode=str(manifest.get("mode")),
        ttl_s=_PROBE_TTL_S,
    )
    try:
        grant = await client.call("mhs.session.open", params)
        await client.call("mhs.session.close", {"session_id": member(grant, "session_id")})
    except TransportError:
        raise
    except MHSError as refusal:
        if refusal.mhs_code != "MHS.SESSION.CAPABILITY_NOT_GRANTED":
            return manifest
        grant = {}
    granted = {(each["capability_id"], each.get("resource")) for each in grant.get("granted", [])}
    bindings = [
        binding
        for binding in manifest.get("bindings") or []
        if {(binding["capability_id"], binding.get("resource")), (binding["capability_id"], None)} & granted
    ]
    return {**manifest, "bindings": bindings}


async def _class_document(client: AsyncClient, capability_id: str) -> Mapping[str, Any] | None:
    """The document of a class; an endpoint that does not serve it only makes its tools less well described."""
    try:
        document = (await client.call("mhs.schema.get", {"ref": capability_id})).get("schema")
    except TransportError:
        raise
    except MHSError:
        return None
    return document if isinstance(document, dict) else None


class Reach:
    """Knows the projection of the endpoint, or keeps asking for what it is made of."""

    def __init__(self, client: AsyncClient, policy: Policy, *, url: str | None = None) -> None:
        """`url` is where the endpoint is, None for one of this process."""
        self._client = client
        self._policy = policy
        self._url = url
        self._loading = trio.Lock()
        self._wanted = trio.Event()
        self._known: Projection | None = None

    @property
    def projection(self) -> Projection:
        """What is known, which may be from before the endpoint went away; no device where nothing is."""
        return self._known or Projection(str(self._url), self._policy)

    async def start(self) -> None:
        """Ask once; an endpoint that is away is no error, one that refuses this client is (AuthError, MHSError)."""
        try:
            await self.load()
        except TransportError as problem:
            log.warning(
                "%s; the fixed tools are served, and the others when it can be reached", problem.message
            )

    async def sure(self) -> Projection:
        """What is known, asked for now where nothing is; MHSError for an endpoint that cannot be reached, Fault for
        one whose devices cannot be projected."""
        if self._known is None:
            try:
                await self.load()
            except ProjectionError as problem:
                raise Fault("MHS.INTERNAL.ERROR", problem.message) from None
        return self.projection

    async def load(self) -> None:
        """Ask the endpoint; what was known stays known where it does not answer."""
        async with self._loading:
            try:
                with trio.fail_after(LOAD_S):
                    found = await load(self._client, self._policy, is_remote=self._url is not None)
            except (KeyError, TypeError, AttributeError) as problem:
                raise error(
                    "MHS.PROTOCOL.INVALID_REQUEST",
                    f"what the endpoint says of its devices is not MHS ({problem!r})",
                    "Check that the address is that of an MHS endpoint.",
                ) from problem
            except trio.TooSlowError:
                raise error(
                    "MHS.TRANSPORT.UNAVAILABLE",
                    "the endpoint does not answer in time",
                    "Check that mhsd runs at this address, then repeat the call.",
                ) from None
            self._known = found

    def lost(self) -> None:
        """A call has not reached the endpoint: when it is back, its devices may be other ones."""
        self._wanted.set()

    def seen(self, device_ids: Iterable[str]) -> None:
        """These devices were there just now; where they are not those that are known, everything is asked again."""
        if {each for each in device_ids if self._policy.allows_device(each)} != set(
            self.projection.manifests
        ):
            self._wanted.set()

    async def keep(self, changed: Callable[[], None]) -> None:
        """Go on asking whenever it is wanted; `changed` is called when there are other tools. Never ends."""
        told = self._tool_documents()
        if self._known is None:
            self._wanted.set()
        while True:
            await self._wanted.wait()
            await self._ask_again()
            self._wanted = trio.Event()
            # A call may have asked meanwhile; what counts is what the client was told last.
            if self._tool_documents() != told:
                told = self._tool_documents()
                changed()

    def _tool_documents(self) -> list[dict[str, Any]]:
        """What a client would notice a change of."""
        return [tool.shown(VERSIONS[-1]) for tool in self.projection.tools.values()]

    async def _ask_again(self) -> None:
        """Until the endpoint is back, or it makes no sense any more."""
        for attempt in range(_ATTEMPTS):
            await trio.sleep(
                min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(attempt, 16)) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
            )
            try:
                await self.load()
            except ProjectionError as problem:
                log.error("the endpoint is back, and its tools cannot be served: %s", problem.message)  # noqa: TRY400
            except AuthError as problem:
                log.error("the endpoint refuses this projection: %s", problem)  # noqa: TRY400
            except MHSError as problem:
                log.info("the endpoint is still away: %s", problem.message)
                continue
            return
        log.error("the endpoint did not come back; only a call asks again")
