"""Sessions: opened, kept, expired by a timer, closed; their end brings what they drove to the safe state.

A session belongs to the endpoint, not to a connection: it survives a lost one [TPT-061]. It ends with the process.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import attrs
import trio

from mhsd.base.clock import Clock, rfc3339
from mhsd.base.errors import Fault
from mhsd.base.ids import Ids
from mhsd.config import Limits
from mhsd.core.operations import EndingKind
from mhsd.core.permits import PermitBook
from mhsd.core.sessions import Session, grants_for
from mhsd.services.carriage import Carriage
from mhsd.services.served_device import ServedDevice
from mhsd.services.subscriptions import Subscriptions
from mhsd.wire.elements import EventKind
from mhsd.wire.params import SessionOpenParams

log = logging.getLogger("mhsd.session")

CLOSE_WAIT_S = 5.0
"""How long a close waits for its operations before it reports them as pending [SESS-006]."""

REMEMBER_S = 3600.0
REMEMBERED_SESSIONS = 4096


class SessionHost:
    """The sessions of one endpoint. `nursery` is the endpoint's own and holds one timer a session."""

    def __init__(
        self,
        devices: Mapping[str, ServedDevice],
        *,
        nursery: trio.Nursery,
        permits: PermitBook,
        subscriptions: Subscriptions,
        limits: Limits,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._devices = devices
        self._nursery = nursery
        self._permits = permits
        self._subscriptions = subscriptions
        self._limits = limits
        self._clock = clock
        self._ids = ids
        self._live: dict[str, Session] = {}
        self._timers: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, OrderedDict[str, tuple[float, Session]]] = {}

    # Looking up.

    def find(self, session_id: str, principal_id: str) -> Session:
        """The live session of this principal; SESSION.UNKNOWN, EXPIRED or CLOSED otherwise [SESS-004].

        Another principal's session is unknown to the caller, and so is one that ended too long ago.
        """
        session = self._live.get(session_id)
        if session is None:
            ended_mono_s, session = self._ended.get(principal_id, OrderedDict()).get(session_id, (0.0, None))
            if trio.current_time() - ended_mono_s > REMEMBER_S:
                session = None
        if session is None or session.principal_id != principal_id:
            raise Fault("MHS.SESSION.UNKNOWN", f"this endpoint has no session {session_id} of yours")
        refusal = session.refusal(trio.current_time())
        if refusal is not None:
            raise refusal
        return session

    def any_live(self, session_id: str) -> Session | None:
        """A live session of whomever, for an operator's permit and for an e-stop."""
        session = self._live.get(session_id)
        if session is None or session.refusal(trio.current_time()) is not None:
            return None
        return session

    # Opening and keeping.

    def open(
        self,
        params: SessionOpenParams,
        principal: Mapping[str, str],
        role: str,
        token_devices: tuple[str, ...] | None,
        token_patterns: tuple[str, ...] | None,
    ) -> Session:
        """Open a session, all of it or none [SESS-001, SESS-002, SESS-003]. Synchronous."""
        if params.ttl_s > self._limits.session_max_ttl_s:
            raise Fault(
                "MHS.PROTOCOL.INVALID_PARAMS",
                f"ttl_s is {params.ttl_s} s; at most {self._limits.session_max_ttl_s} s are allowed",
                details={"field": "ttl_s", "limit": self._limits.session_max_ttl_s},
            )
        devices = [self._device(device_id, token_devices) for device_id in dict.fromkeys(params.device_ids)]
        for device in devices:
            self._check_device(device, params)
        self._check_count(principal["id"])
        grants = grants_for(
            params.capabilities,
            {device.device_id: device.host.manifest.bindings for device in devices},
            role=role,
            token_patterns=token_patterns,
        )
        if params.capabilities and not grants:
            raise Fault(
                "MHS.SESSION.CAPABILITY_NOT_GRANTED",
                "none of the requested capabilities can be granted on these devices",
                details={"capabilities": [_wire_capability(entry) for entry in params.capabilities]},
            )
        session = Session(
            session_id=self._ids.session_id(),
            principal_id=principal["id"],
            principal=dict(principal),
            role=role,
            mode=params.mode,
            ttl_s=params.ttl_s,
            device_ids=tuple(device.device_id for device in devices),
            grants=grants,
            expires_mono_s=trio.current_time() + params.ttl_s,
            expires_at=rfc3339(self._clock.now() + params.ttl_s),
            claimed_principal=attrs.asdict(params.principal) if params.principal is not None else None,
            approvals=tuple(attrs.asdict(approval) for approval in params.approvals),
        )
        self._live[session.session_id] = session
        self._tell(session, "session.opened", {"mode": session.mode})
        self._nursery.start_soon(self._timer, session)
        return session

    def _device(self, device_id: str, token_devices: tuple[str, ...] | None) -> ServedDevice:
        device = self._devices.get(device_id)
        if device is None or (token_devices is not None and device_id not in token_devices):
            raise Fault(
                "MHS.DEVICE.UNKNOWN",
                f"this endpoint serves no device {device_id}",
                details={"device_id": device_id},
            )
        return device

    def _check_device(self, device: ServedDevice, params: SessionOpenParams) -> None:
        host = device.host
        if params.mode != host.mode:
            raise Fault(
                "MHS.SESSION.MODE_MISMATCH",
                f"{host.device_id} is {host.mode}, not {params.mode}",
                details={"device_id": host.device_id, "mode": host.mode},
            )
        approved = any(approval.principal.kind == "human" for approval in params.approvals)
        if host.mode == "hardware" and host.manifest.risk_class == "R3" and not approved:
            raise Fault(
                "MHS.SAFETY.APPROVAL_REQUIRED",
                f"{host.device_id} is R3 hardware: approvals must name a responsible human principal",
                details={"device_id": host.device_id},
            )

    def _check_count(self, principal_id: str) -> None:
        held = sum(session.principal_id == principal_id for session in self._live.values())
        if held >= self._limits.max_sessions:
            raise Fault(
                "MHS.LIMIT.SESSION_LIMIT",
                f"{principal_id} holds {held} sessions, as many as are allowed",
                details={"max_sessions": self._limits.max_sessions},
            )

    def heartbeat(self, session: Session) -> None:
        """Extend the lease to now + ttl_s; grants and mode stay [SESS-005]."""
        session.expires_mono_s = trio.current_time() + session.ttl_s
        session.expires_at = rfc3339(self._clock.now() + session.ttl_s)

    async def _timer(self, session: Session) -> None:
        """Expire the session when its time has come, whatever else happens [SESS-004]."""
        with trio.CancelScope() as self._timers[session.session_id]:
            while session.state == "open" and trio.current_time() < session.expires_mono_s:  # noqa: ASYNC110
                # A heartbeat moves the time that is slept until; nobody has to wake this task for that.
                await trio.sleep_until(session.expires_mono_s)
        del self._timers[session.session_id]
        if session.state == "open":
            log.info("session %s expired", session.session_id)
            session.state = "expired"
            await self._wind_down(session, "session_expiry", "endpoint:session_expiry")

    # Ending.

    async def close(self, session: Session, *, kind: EndingKind = "session_close") -> list[str]:
        """End a session; answers the ids of operations that did not reach their end in time [SESS-006]."""
        session.state = "closed"
        timer = self._timers.get(session.session_id)
        if timer is not None:
            timer.cancel()
        requested_by = session.principal_id if kind == "session_close" else f"endpoint:{kind}"
        return await self._wind_down(session, kind, requested_by)

    async def _wind_down(self, session: Session, kind: EndingKind, requested_by: str) -> list[str]:
        self._live.pop(session.session_id, None)
        self._remember(session)
        self._permits.release_session(session.session_id)
        self._subscriptions.end_session(session, discard=kind == "session_close")
        self._tell(session, "session.ended", {"reason": session.state})
        ended: list[Carriage] = []
        gone = Fault(
            "MHS.SESSION.CLOSED" if session.state == "closed" else "MHS.SESSION.EXPIRED", "the session ended"
        )
        for device in self._devices.values():
            device.executions.refuse_queue(gone, session.session_id)
            for carriage in device.executions.live():
                if carriage.attempt.session is session and carriage.operation is not None:
                    device.executions.end(carriage.operation, kind, requested_by)
                    ended.append(carriage)
        left = trio.Event()
        self._nursery.start_soon(self._leave_all, session, ended, left)
        with trio.move_on_after(CLOSE_WAIT_S):
            await left.wait()
        return [
            carriage.operation.operation_id
            for carriage in ended
            if carriage.operation is not None and not carriage.answered.is_set()
        ]

    async def _leave_all(self, session: Session, ended: list[Carriage], left: trio.Event) -> None:
        """Runs in the endpoint's nursery: who closed the session may be gone before its devices are safe."""
        for carriage in ended:
            await carriage.answered.wait()
        for device in self._devices.values():
            await self._leave(device, session)
        left.set()

    async def _leave(self, device: ServedDevice, session: Session) -> None:
        """Bring a device that this session drove to its safe state, unless another session's operation runs.

        Nothing of another session begins meanwhile: what is about to is waited for, and what comes queues.
        """
        host = device.host
        with trio.move_on_after(host.stop_grace_s):
            while host.driven_by is session and (ahead := device.executions.ahead()) is not None:
                await ahead.decided.wait()
        others = any(c.attempt.session is not session and c.attempt.guarded for c in device.executions.live())
        if host.driven_by is not session or others:
            return
        host.driven_by = None
        held = host.slot.hold()
        try:
            if not await host.halt("session ended"):
                host.doubt("the safe state could not be confirmed at the end of a session")
        finally:
            if held:
                host.slot.let_go()

    def _tell(self, session: Session, kind: EventKind, payload: Mapping[str, Any]) -> None:
        """Tell whoever has subscribed to the events of its devices; its id is for its own principal alone."""
        for device_id in session.device_ids:
            feed = self._devices[device_id].host.feed
            feed.note(kind, {"principal": dict(session.principal), **payload})

    def _remember(self, session: Session) -> None:
        now_mono_s = trio.current_time()
        ended = self._ended.setdefault(session.principal_id, OrderedDict())
        ended[session.session_id] = (now_mono_s, session)
        while ended and (
            len(ended) > REMEMBERED_SESSIONS or next(iter(ended.values()))[0] < now_mono_s - REMEMBER_S
        ):
            ended.popitem(last=False)

    def live_sessions(self) -> list[Session]:
        return list(self._live.values())


def _wire_capability(entry: Any) -> Any:
    return (
        entry
        if isinstance(entry, str)
        else {"capability_id": entry.capability_id, "resource": entry.resource}
    )
