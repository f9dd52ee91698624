"""Subscribe and unsubscribe [MHS-002 section 8; EVT-001 to EVT-004]. A reader may do both [MHSD-6-04]."""

from collections.abc import Awaitable
from functools import partial
from typing import Any

from mhsd.core.sessions import Session
from mhsd.protocol.context import Context
from mhsd.services.subscriptions import Subscription
from mhsd.wire.params import SubscribeParams, UnsubscribeParams

BASELINE_S = 1.0
"""How long a subscription waits for the states that changes count from; a hung device must not hold it up."""


def subscribe(context: Context, params: SubscribeParams) -> Awaitable[dict[str, Any]]:
    """Open a subscription; its events are kept from this moment on, and follow the reply [EVT-001, EVT-009]."""
    session = _named(context, params)
    subscriptions = context.endpoint.subscriptions
    subscription = subscriptions.open(session, params, context.peer.events)
    context.afterwards.append(partial(subscriptions.release, subscription))
    return _granted(context, subscription, params)


async def _granted(context: Context, subscription: Subscription, params: SubscribeParams) -> dict[str, Any]:
    """The grant, once the states are known that the first change is a change of, or cannot be read in time."""
    await context.endpoint.subscriptions.begin(subscription, min(params.deadline_ms / 1000, BASELINE_S))
    # The session may have ended meanwhile, and the subscription with it.
    context.session(params.session_id)
    return subscription.grant()


def unsubscribe(context: Context, params: UnsubscribeParams) -> dict[str, Any]:
    """End a subscription of the session; another session's is as unknown as one that never was [EVT-004, EVT-005]."""
    session = _named(context, params)
    return context.endpoint.subscriptions.close(session, params.subscription_id)


def _named(context: Context, params: SubscribeParams | UnsubscribeParams) -> Session:
    """The caller's session; a device that is named must be one of its own."""
    session = context.session(params.session_id)
    named = [params.device_id]
    if isinstance(params, SubscribeParams):
        named += [request.device_id for request in params.streams]
    for device_id in named:
        if device_id is not None:
            context.device_in(session, device_id)
    return session
