"""The order inside a batch: elements that mutate one device run one after the other [PROTO-008, PROTO-009]."""

import attrs
import trio

from mhsd.services.session_host import SessionHost
from mhsd.wire.jsonrpc import Request

MUTATIONS = frozenset({"mhs.command", "mhs.resource.write", "mhs.restore", "mhs.safety.reset"})


@attrs.frozen(eq=False)
class Place:
    """One element's place: what it waits for, and what waits for it."""

    after: trio.Event | None
    answered: trio.Event
    id_spent: bool


class BatchOrder:
    """The places of one batch. Elements that mutate nothing wait for nothing."""

    def __init__(self, sessions: SessionHost) -> None:
        self._sessions = sessions
        self._last: dict[str, trio.Event] = {}
        self._spent: set[tuple[str, str]] = set()

    def place(self, request: Request) -> Place:
        """Give the next element its place; call it in the order of the batch."""
        answered = trio.Event()
        if request.method not in MUTATIONS:
            return Place(None, answered, id_spent=False)
        device_id = self._device_of(request)
        command_id = request.params.get("command_id")
        spent = isinstance(command_id, str) and (device_id, command_id) in self._spent
        if isinstance(command_id, str):
            self._spent.add((device_id, command_id))
        after = self._last.get(device_id)
        self._last[device_id] = answered
        return Place(after, answered, id_spent=spent)

    def _device_of(self, request: Request) -> str:
        """The device that an element names, or its session's only one; what names neither is a device of its own."""
        device_id = request.params.get("device_id")
        if isinstance(device_id, str):
            return device_id
        session_id = request.params.get("session_id")
        session = self._sessions.any_live(session_id) if isinstance(session_id, str) else None
        return session.device_ids[0] if session is not None and len(session.device_ids) == 1 else ""
