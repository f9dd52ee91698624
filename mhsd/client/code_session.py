"""A session of the code API: commands and what became of them, reads, subscriptions [TPT-054].

A command is sent once. A lost answer is looked up and never sent again [TPT-062]; what cannot be found out is raised
as OutcomeUnknown. Ctrl-C while a command runs cancels it on the device and waits for what the device confirms.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict

from mhsd.client.documents import Event, Receipt
from mhsd.client.errors import MHSError, OutcomeUnknown, SessionError
from mhsd.client.events import Feed, Subscription
from mhsd.client.ledger import noted
from mhsd.client.pulse import Pulse
from mhsd.client.requests import (
    DEFAULT_DEADLINE_MS,
    Stream,
    device_meant,
    device_of_session,
    given,
    operation_meant,
    operations_of,
    subscribe_params,
)
from mhsd.client.session import Session
from mhsd.client.stdio import ChildFailed
from mhsd.client.unwatched import Unwatched

if TYPE_CHECKING:
    from mhsd.client.code import CodeClient

OnProgress = Callable[[Receipt], None]


class CallOptions(TypedDict, total=False):
    """What may be said of a command beside its input, for methods that hand it on."""

    command_id: str
    expected_revision: int
    permit_id: str
    deadline_ms: int
    wait: bool
    on_progress: OnProgress


class CodeSession:
    """One open session; a context manager that closes it. Any number of threads may use it [TPT-057]."""

    waits = False
    """Whether `invoke`, `write` and `restore` follow an operation to its end unless told otherwise."""

    def __init__(self, client: "CodeClient", inner: Session, device_ids: Sequence[str]) -> None:
        self.client = client
        self.device_ids = list(device_ids)
        self._inner = inner
        self._closed = False
        self._feed = Feed(client.transport, inner.session_id)
        # Whoever calls is told by the call that is refused; who waits for events, by the heartbeat.
        every_s = inner.lifetime_s(inner.grant) / 3
        self._pulse = Pulse(
            inner.heartbeat, lambda: self._unwatched.look(inner.operation), self._feed.fail, every_s
        )
        self._unwatched = Unwatched(self._pulse.hold, self._pulse.release)
        client.holds(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except SessionError:
            return  # It has ended by itself, which whoever used it last was told.
        except (MHSError, ChildFailed) as trouble:
            if problem is None:
                raise
            problem.add_note(f"The session could not be closed: {trouble}")

    def __repr__(self) -> str:
        return f"<Session {self.session_id} on {', '.join(self.device_ids)}>"

    @property
    def session_id(self) -> str:
        """The endpoint's name for this session."""
        return self._inner.session_id

    @property
    def grant(self) -> dict[str, Any]:
        """What was granted: capabilities, mode, the time of expiry, the safety context."""
        return self._inner.grant

    @property
    def mode(self) -> str:
        """The mode that the session was opened in."""
        return str(self.grant.get("mode"))

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, *, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """One method of the protocol inside this session, as it is there."""
        with self._pulse.held():
            return self._inner.call(method, params or {}, deadline_s)

    # Commands.

    def invoke(
        self,
        capability_id: str,
        input: Mapping[str, Any],
        *,
        resource: str | None = None,
        device_id: str | None = None,
        command_id: str | None = None,
        expected_revision: int | None = None,
        permit_id: str | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        wait: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Receipt:
        """One command, and its receipt whatever its status [TPT-055].

        When `deadline_ms` has passed the endpoint answers what it knows, and the command keeps running; `wait=True`
        then follows it to its final receipt. The same `command_id` never runs twice.
        """
        params: dict[str, Any] = {"capability_id": capability_id, "input": input, "resource": resource}
        params |= {"expected_revision": expected_revision, "permit_id": permit_id}
        return self._mutation("mhs.command", params, device_id, command_id, deadline_ms, wait, on_progress)

    def write(
        self,
        resource_id: str,
        patch: Mapping[str, Any],
        *,
        device_id: str | None = None,
        command_id: str | None = None,
        expected_revision: int | None = None,
        permit_id: str | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        wait: bool | None = None,
        on_progress: OnProgress | None = None,
    ) -> Receipt:
        """Sets fields of a resource and returns the receipt."""
        params: dict[str, Any] = {"resource_id": resource_id, "patch": patch}
        params |= {"expected_revision": expected_revision, "permit_id": permit_id}
        return self._mutation(
            "mhs.resource.write", params, device_id, command_id, deadline_ms, wait, on_progress
        )

    def restore(
        self,
        snapshot: Mapping[str, Any],
        *,
        device_id: str | None = None,
        command_id: str | None = None,
        expected_revision: int | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
        wait: bool | None = None,
    ) -> Receipt:
        """Sets a simulated device to what `snapshot` returned."""
        params: dict[str, Any] = {"snapshot": snapshot, "expected_revision": expected_revision}
        return self._mutation("mhs.restore", params, device_id, command_id, deadline_ms, wait)

    def _mutation(
        self,
        method: str,
        params: Mapping[str, Any],
        device_id: str | None,
        command_id: str | None,
        deadline_ms: int,
        wait: bool | None,
        on_progress: OnProgress | None = None,
    ) -> Receipt:
        sent = given(**params) | {"deadline_ms": deadline_ms}
        sent["device_id"] = device_meant(self.device_ids, device_id, self.grant, sent)
        sent["command_id"] = self.client.ulid() if command_id is None else command_id
        with self._pulse.held(), self._stopped_by_ctrl_c(lambda: self._known(sent)):
            try:
                receipt = Receipt(self._inner.mutate(method, sent))
            except OutcomeUnknown as unknown:
                receipt = self._found_elsewhere(unknown, sent)
            if self.waits if wait is None else wait:
                receipt = self._followed(receipt, on_progress)
        return self._judged(receipt)

    def _found_elsewhere(self, unknown: OutcomeUnknown, sent: Mapping[str, Any]) -> Receipt:
        """A command whose session went with its answer, as when the endpoint was started again: another one asks."""
        if not str(unknown.details.get("looked_up")).startswith("MHS.SESSION."):
            raise unknown
        try:
            with self.client.session([sent["device_id"]], []) as reading:
                found = reading.look_up(sent["command_id"], sent["device_id"])
        except MHSError as problem:
            raise unknown from problem
        if found is None:
            raise unknown
        return found

    def _known(self, sent: Mapping[str, Any]) -> dict[str, Any] | None:
        return self._inner.look_up(sent["command_id"], sent["device_id"])

    def follow(self, receipt: Mapping[str, Any], on_progress: OnProgress | None = None) -> Receipt:
        """The final receipt of an operation, asked for in this session; SessionError when this session is over."""
        shown = None if on_progress is None else lambda document: on_progress(Receipt(document))
        with self._pulse.held():
            return Receipt(self._inner.follow(dict(receipt), shown))

    def _followed(self, receipt: Receipt, on_progress: OnProgress | None) -> Receipt:
        try:
            return self.follow(receipt, on_progress)
        except SessionError:
            # Its time is over, or its endpoint was started again. Another session can still ask.
            return self.client.found_out(receipt, on_progress)

    @contextlib.contextmanager
    def _stopped_by_ctrl_c(self, known: Callable[[], dict[str, Any] | None]) -> Iterator[None]:
        """A Ctrl-C in the block cancels the operation, waits for its receipt and goes on; a second one ends that."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            try:
                found = known()
                if found is not None:
                    cancelled = noted(self._cancelled(Receipt(found)))
                    interrupt.add_note(f"The operation was stopped: {cancelled!r}")
            except MHSError as problem:
                interrupt.add_note(f"The operation could not be stopped: {problem}")
            raise

    def _cancelled(self, receipt: Receipt) -> Receipt:
        if receipt.final or receipt.operation_id is None:
            return receipt
        return Receipt(self._inner.follow(self._inner.cancel(receipt.operation_id)))

    def _judged(self, receipt: Receipt) -> Receipt:
        """What every receipt passes on its way to the caller."""
        return self._checked(self._told(receipt))

    def _told(self, receipt: Receipt) -> Receipt:
        """The ledger is told, and the list of what is still open."""
        if receipt.operation_id is not None:
            self._unwatched.note(receipt.operation_id, receipt)
        return noted(receipt)

    def _checked(self, receipt: Receipt) -> Receipt:
        """Every receipt is an answer here; a code file wants to stop at some [CORE-140]."""
        return receipt

    # Operations.

    def wait(self, receipt: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Receipt:
        """The final receipt of the operation that `receipt` belongs to; a final one is returned as it is."""
        given = Receipt(receipt)
        if given.final:
            return self._checked(given)
        with self._pulse.held(), self._stopped_by_ctrl_c(lambda: given):
            final = self._followed(given, on_progress)
        return self._judged(final)

    def operation(self, operation_id: str) -> Receipt:
        """The receipt of an operation as it is now."""
        receipt = Receipt(self._inner.operation(operation_id))
        return self._told(receipt) if receipt.final else receipt

    def look_up(self, command_id: str, device_id: str | None = None) -> Receipt | None:
        """The receipt of a command as the endpoint has it now; None where it knows no such command."""
        found = self._inner.look_up(command_id, self.find(device_id))
        return None if found is None else Receipt(found)

    def operations(self, state: str | None = None, *, device_id: str | None = None) -> list[dict[str, Any]]:
        """The operations of this session, and those of the same caller that still run on its devices."""
        device_id = None if device_id is None else self.find(device_id)
        answered = self._inner.call("mhs.operations.list", given(state=state, device_id=device_id))
        return operations_of(answered)

    def cancel(self, operation: str | Mapping[str, Any], *, deadline_s: float | None = None) -> Receipt:
        """Stops an operation, given by its id or a receipt; the answer may still be `running`, for `wait`."""
        return self._told(Receipt(self._inner.cancel(operation_meant(operation), deadline_s)))

    # Looking.

    def read(
        self,
        resource_id: str,
        *,
        device_id: str | None = None,
        fields: Sequence[str] = (),
        revision: int | None = None,
        deadline_ms: int = DEFAULT_DEADLINE_MS,
    ) -> dict[str, Any]:
        """`{revision, state, state_hash, sampled_at}` of one resource; of a recorded `revision` on a replay device."""
        params = given(
            resource_id=resource_id,
            device_id=device_meant(self.device_ids, device_id, self.grant, {"resource_id": resource_id}),
            fields=list(fields) or None,
            filter=None if revision is None else {"revision": revision},
            deadline_ms=deadline_ms,
        )
        return self._inner.call("mhs.resource.read", params)

    def snapshot(
        self, *, device_id: str | None = None, deadline_ms: int = DEFAULT_DEADLINE_MS
    ) -> dict[str, Any]:
        """The whole state of a simulated device, for `restore`."""
        return self._inner.call(
            "mhs.snapshot", {"device_id": self.find(device_id), "deadline_ms": deadline_ms}
        )

    def subscribe(
        self,
        streams: str | Stream | Sequence[str | Stream],
        *,
        rate_hz: float | None = None,
        filter: Mapping[str, Any] | None = None,
    ) -> Subscription:
        """Opens a subscription, a context manager and an iterator of events.

        `streams` are names (state, telemetry, events, log, progress) or objects like `{"stream": "state",
        "resource_id": "belt"}`. `rate_hz` is the most that is wanted.
        """
        params = subscribe_params(streams, rate_hz=rate_hz, filter=filter)
        self._pulse.hold()
        try:
            granted = self._inner.call("mhs.subscribe", params)
            return self._feed.opened(
                granted, self._unsubscribe, lambda device_id, name: self.read(name, device_id=device_id)
            )
        except BaseException:
            self._pulse.release()
            raise

    def _unsubscribe(self, subscription_id: str) -> dict[str, Any]:
        self._pulse.release()
        return self._inner.call("mhs.unsubscribe", {"subscription_id": subscription_id})

    def events(
        self,
        streams: str | Stream | Sequence[str | Stream],
        *,
        rate_hz: float | None = None,
        filter: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Event]:
        """The events of a subscription of its own, until nothing has come for `timeout_s` or the loop is left."""
        with self.subscribe(streams, rate_hz=rate_hz, filter=filter) as subscription:
            yield from subscription.events(timeout_s)

    def heartbeat(self) -> dict[str, Any]:
        """Sets `expires_at` to now + ttl; done by itself while something is open."""
        return self._inner.heartbeat()

    def kept_alive(self) -> contextlib.AbstractContextManager[None]:
        """Heartbeats go out while the block runs, also while nothing is open in the session [MHSD-4-29]."""
        return self._pulse.held()

    def safety_status(self, device_id: str | None = None) -> dict[str, Any]:
        """Latch, interlocks, permits and safe state of a device of this session."""
        return self.client.safety_status(self.find(device_id))

    def estop(self, reason: str | None = None, *, device_id: str | None = None) -> Receipt:
        """Latches the e-stop of this session's only device, of the one that is named, or of all."""
        if device_id is None and len(self.device_ids) == 1:
            device_id = self.device_ids[0]
        return self._checked(self.client.estop(reason, device_id=device_id))

    def reset(self, device_id: str | None = None) -> Receipt:
        """Releases a latched e-stop, as an operator: look at the device before."""
        return self._judged(
            Receipt(self._inner.call("mhs.safety.reset", {"device_id": self.find(device_id)}))
        )

    def permit(
        self,
        capability_id: str,
        input: Mapping[str, Any],
        *,
        resource: str | None = None,
        device_id: str | None = None,
        ttl_s: int = 300,
        approved_by: Sequence[str] = (),
    ) -> dict[str, Any]:
        """As an operator: approves one command of this session with exactly this input, once."""
        which = given(capability_id=capability_id, resource=resource)
        return self.client.permit(
            self.session_id,
            capability_id,
            input,
            resource=resource,
            device_id=device_meant(self.device_ids, device_id, self.grant, which),
            ttl_s=ttl_s,
            approved_by=approved_by,
        )

    def export_evidence(self) -> dict[str, Any]:
        """The receipts of this session as a bundle."""
        return self.client.export_evidence(session_id=self.session_id)

    def close(self, reason: str | None = None) -> dict[str, Any]:
        """Ends the session: its operations are cancelled to the safe state. Returns the summary; {} when closed."""
        if self._closed:
            return {}
        self._closed = True
        self._pulse.end()
        self._feed.expect_end()
        try:
            return self._inner.close(reason)
        finally:
            self._feed.end()

    def forget(self) -> None:
        """The connection is gone: nothing more is sent for this session, which the endpoint ends in its time."""
        self._feed.expect_end()
        self._pulse.end()
        self._feed.end()

    def find(self, device_id: str | None = None) -> str:
        """The whole id of a device of this session: its only one, or the one that is named."""
        return device_of_session(self.device_ids, device_id)
