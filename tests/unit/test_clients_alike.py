"""The two clients are one API: what `mhsd.connect` has, `mhsd.aconnect` has under the same name [TPT-054]."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import mhsd
from mhsd.aclient import AsyncClient, AsyncSession, AsyncSubscription, open_client
from mhsd.client.code import CodeClient, connect
from mhsd.client.code_session import CodeSession
from mhsd.client.events import Subscription

PAIRS: dict[str, tuple[type, type]] = {
    "client": (CodeClient, AsyncClient),
    "session": (CodeSession, AsyncSession),
    "subscription": (Subscription, AsyncSubscription),
}

ONLY_ONE = {
    "client.open": "how mhsd.lab opens a session of a class of its own",
    "client.backoff": "the pauses of the Trio client's parts, within its `attempts`",
    "session.waits": "a code file follows its commands unless told otherwise",
    "session.grant": "an attribute of the Trio client's",
    "session.session_id": "an attribute of the Trio client's",
    "session.mutate": "what sends a command whose parameters are made already",
    "session.send": "what the MCP projection sends, which looks a lost answer up by itself",
    "subscription.put": "events arrive",
    "subscription.finish": "no more arrive",
    "subscription.interrupt": "events were lost on a WebSocket, which mhsd.connect does not open",
    "subscription.last_event_id": "kept by the thread of the other client's stream",
}
"""What is in one of them alone, or is no part of the API, and why."""

OTHER_DEFAULTS = {
    "session.invoke.wait": "None means False there, and True in a code file",
    "session.write.wait": "the same",
    "session.restore.wait": "the same",
    "client.session.principal": "an MCP host opens sessions in the name of its client",
}


def public(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> dict[str, tuple[object, object]]:
    found = inspect.signature(function).parameters
    return {name: (each.kind, each.default) for name, each in found.items() if name != "self"}


@pytest.mark.parametrize("kind", PAIRS)
def test_both_have_the_same_members(kind: str) -> None:
    """[TPT-054, TPT-056]"""
    sync, trio = PAIRS[kind]
    differing = {f"{kind}.{name}" for name in public(sync).keys() ^ public(trio).keys()}
    assert differing - ONLY_ONE.keys() == set()


@pytest.mark.parametrize("kind", PAIRS)
def test_the_members_take_the_same_and_are_of_the_same_sort(kind: str) -> None:
    """[TPT-054]"""
    sync, trio = (public(each) for each in PAIRS[kind])
    for name in sorted(sync.keys() & trio.keys()):
        assert isinstance(sync[name], property) == isinstance(trio[name], property), name
        if callable(sync[name]) and f"{kind}.{name}" not in ONLY_ONE:
            differing = parameters(sync[name]).items() ^ parameters(trio[name]).items()
            named = {f"{kind}.{name}.{parameter}" for parameter, _ in differing}
            assert named - OTHER_DEFAULTS.keys() == set()


def test_both_are_opened_in_the_same_way() -> None:
    """[TPT-054] The Trio client can do more: a token that is in no file, a WebSocket, an endpoint of this process."""
    sync, trio = parameters(connect), parameters(open_client)
    assert {name: trio[name] for name in sync} == sync
    assert trio.keys() - sync.keys() == {"token", "tls", "peer", "attempts", "name"}


def test_the_classes_of_both_can_be_named() -> None:
    """[TPT-054] For annotations."""
    assert (mhsd.Client, mhsd.Session, mhsd.Subscription) == (CodeClient, CodeSession, Subscription)
    named = (mhsd.AsyncClient, mhsd.AsyncSession, mhsd.AsyncSubscription)
    assert named == (AsyncClient, AsyncSession, AsyncSubscription)
