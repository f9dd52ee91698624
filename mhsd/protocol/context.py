"""What a handler works with: the endpoint, who asks, and when the request came in."""

from collections.abc import Callable

import attrs

from mhsd.base.clock import rfc3339
from mhsd.base.errors import Fault
from mhsd.core.sessions import Session
from mhsd.protocol.peer import Peer
from mhsd.services.endpoint import Endpoint, device_unknown
from mhsd.services.served_device import ServedDevice


@attrs.frozen(eq=False)
class Context:
    """One request's surroundings. `received_mono_s` is when its last byte was read: deadlines count from it."""

    endpoint: Endpoint
    peer: Peer
    received_mono_s: float
    id_spent: bool = False
    """Whether an earlier element of the same batch used this command_id on this device [PROTO-009]."""
    afterwards: list[Callable[[], None]] = attrs.Factory(list)
    """What is to happen when the reply goes out: no checkpoint stands between this and the hand-over to the binding."""

    def session(self, session_id: str) -> Session:
        """The caller's own live session, or the MHS.SESSION.* fault [SESS-004]."""
        session = self.endpoint.sessions.find(session_id, self.peer.principal.id)
        if self.peer.events is not None:
            self.endpoint.subscriptions.adopt(session, self.peer.events)
        return session

    def devices(self) -> dict[str, ServedDevice]:
        """The devices that the caller's token is for; every one where it names none."""
        allowed = self.peer.devices
        served = self.endpoint.devices
        return {name: device for name, device in served.items() if allowed is None or name in allowed}

    def device(self, device_id: str) -> ServedDevice:
        """One of the caller's devices. Another one is as unknown as one that is not served."""
        if self.peer.devices is not None and device_id not in self.peer.devices:
            raise device_unknown(device_id)
        return self.endpoint.device(device_id)

    def device_in(self, session: Session, device_id: str | None) -> ServedDevice:
        """The device of a call in a session: the one named, or the only one the session covers."""
        if device_id is None:
            if len(session.device_ids) == 1:
                return self.endpoint.device(session.device_ids[0])
            raise device_required(session.device_ids)
        device = self.device(device_id)
        if device_id not in session.device_ids:
            raise Fault(
                "MHS.SESSION.DEVICE_NOT_GRANTED",
                f"session {session.session_id} does not cover {device_id}",
                details={"device_id": device_id},
            )
        return device

    def deadline_mono_s(self, deadline_ms: int) -> float:
        return self.received_mono_s + deadline_ms / 1000

    def wall(self) -> str:
        return rfc3339(self.endpoint.clock.now())


def device_required(device_ids: tuple[str, ...]) -> Fault:
    return Fault(
        "MHS.PROTOCOL.INVALID_PARAMS",
        "device_id is needed, because more than one device is in question",
        details={"field": "device_id", "reason": "device_required", "device_ids": list(device_ids)},
    )


def timed_out(what: str, deadline_ms: int) -> Fault:
    """A read that could not be answered within its budget [PROTO-011, OP-012]."""
    return Fault(
        "MHS.OUTCOME.TIMEOUT",
        f"{what} could not be answered within {deadline_ms} ms",
        details={"reason": "deadline_exceeded", "deadline_ms": deadline_ms},
    )
