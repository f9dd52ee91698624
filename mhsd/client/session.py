"""A session as a client holds it: commands, what became of them, and the heartbeats that keep it alive.

A command is sent once. When its answer is lost it is looked up by its command_id, and what cannot be found
out is said to be unknown [TPT-062].
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mhsd.client import requests
from mhsd.client.backoff import Backoff
from mhsd.client.client import Client
from mhsd.client.errors import AnswerLost, MHSError, OutcomeUnknown, TransportError, TransportOver
from mhsd.client.receipts import is_final, operation_of
from mhsd.client.requests import member

Receipt = dict[str, Any]

_POLL_S = 0.05
_POLL_MAX_S = 1.0
_BACKOFF_S = 0.2


class Session:
    """One session id; `close` ends the session, and leaving it open is the caller's choice."""

    attempts = 5
    """How often an operation is asked for while the connection fails [TPT-064]: seldom, as a person is waiting."""

    def __init__(self, client: Client, session_id: str, grant: Mapping[str, Any] | None = None) -> None:
        self.client = client
        self.session_id = session_id
        self.grant: dict[str, Any] = dict(grant or {})
        self._pulse_s: float | None = None

    @classmethod
    def open(
        cls,
        client: Client,
        *,
        principal: Mapping[str, Any],
        device_ids: Sequence[str],
        capabilities: Sequence[str],
        mode: str,
        ttl_s: int,
        approvals: Sequence[Mapping[str, Any]] = (),
    ) -> "Session":
        """Opens a session on these devices for these capability ids or patterns; `[]` grants reads only.

        `ttl_s` is cut to what the endpoint allows. `principal` is only a claim where the endpoint knows the
        caller; `approvals` name the person who answers for an R3 device [SESS-003].
        """
        params = requests.open_params(
            client.hello(),
            client_name=client.name,
            transport=client.transport.name,
            principal=principal,
            device_ids=device_ids,
            capabilities=capabilities,
            mode=mode,
            ttl_s=ttl_s,
            approvals=approvals,
        )
        grant = client.call("mhs.session.open", params)
        session = cls(client, member(grant, "session_id"), grant)
        session._pulse_s = params["ttl_s"] / 3
        return session

    def call(self, method: str, params: Mapping[str, Any], deadline_s: float | None = None) -> dict[str, Any]:
        """One method inside this session."""
        return self.client.call(method, {"session_id": self.session_id, **params}, deadline_s=deadline_s)

    def read(
        self, resource_id: str, device_id: str, fields: Sequence[str] = (), deadline_s: float | None = None
    ) -> dict[str, Any]:
        """`{revision, state, state_hash, sampled_at}` of one resource."""
        params: dict[str, Any] = {"resource_id": resource_id, "device_id": device_id}
        if fields:
            params["fields"] = list(fields)
        return self.call("mhs.resource.read", params, deadline_s)

    def mutate(self, method: str, params: Mapping[str, Any], deadline_s: float | None = None) -> Receipt:
        """Sends `mhs.command` or `mhs.resource.write` once and returns its receipt.

        `params` names command_id and device_id. A lost answer is looked up; OutcomeUnknown if that does not
        tell either, with both ids in its details.
        """
        try:
            return self.call(method, params, deadline_s)
        except AnswerLost as lost:
            return self._found(lost, params)

    def _found(self, lost: AnswerLost, params: Mapping[str, Any]) -> Receipt:
        try:
            found = self.look_up(params["command_id"], params["device_id"])
        except MHSError as problem:
            looked_up = problem.mhs_code
        else:
            if found is not None:
                return found
            looked_up = "MHS.OPERATION.UNKNOWN"
        raise requests.outcome_unknown(lost, params, self.session_id, looked_up) from lost

    def look_up(self, command_id: str, device_id: str) -> Receipt | None:
        """The receipt of a command as the endpoint has it now; None where it knows no such command."""
        return self._operation({"command_id": command_id, "device_id": device_id})

    def operation(self, operation_id: str) -> Receipt:
        """The current receipt of an operation [PROTO-030]."""
        receipt = self._operation({"operation_id": operation_id})
        if receipt is None:
            raise requests.operation_unknown(operation_id)
        return receipt

    def _operation(self, which: Mapping[str, str]) -> Receipt | None:
        """mhs.operations.get, repeated with growing pauses while only the connection fails."""
        backoff = Backoff(first_s=_BACKOFF_S, attempts=self.attempts - 1, spread=random.uniform)
        while True:
            try:
                return self.call("mhs.operations.get", which)
            except TransportOver:
                raise
            except (TransportError, OutcomeUnknown):
                pause_s = backoff.pause_s()
                if pause_s is None:
                    raise
                time.sleep(pause_s)
            except MHSError as refusal:
                if refusal.mhs_code == "MHS.OPERATION.UNKNOWN":
                    return None
                raise

    def cancel(self, operation_id: str, deadline_s: float | None = None) -> Receipt:
        """Asks the endpoint to stop an operation; the answer may still be `running` [PROTO-032]."""
        return self.call("mhs.operations.cancel", {"operation_id": operation_id}, deadline_s)

    def follow(self, receipt: Receipt, on_progress: Callable[[Receipt], None] | None = None) -> Receipt:
        """Polls until the operation has its final receipt; a final one is returned as it is.

        OutcomeUnknown, with its ids in the details, where no more can be found out of what had begun [TPT-062].
        """
        pause_s = _POLL_S
        while not is_final(receipt):
            operation_id = operation_of(receipt)
            if operation_id is None:
                return receipt
            if on_progress is not None:
                on_progress(receipt)
            time.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, pause_s * 1.5)
            try:
                receipt = self.operation(operation_id)
            except MHSError as problem:
                raise requests.fate_unknown(receipt, problem) from problem
        return receipt

    def settled(self, receipt: Receipt) -> bool:
        """Whether `receipt` is the last word, asking the endpoint where only it can tell."""
        operation_id = operation_of(receipt)
        if is_final(receipt) or operation_id is None:
            return True
        return is_final(self.operation(operation_id))

    def heartbeat(self) -> dict[str, Any]:
        """Sets `expires_at` to now + ttl; returns it with the safety context [SESS-005]."""
        return self.call("mhs.session.heartbeat", {})

    @contextlib.contextmanager
    def kept_alive(self, on_trouble: Callable[[MHSError], None] | None = None) -> Iterator[None]:
        """Sends heartbeats from a thread of its own while the block runs [MHSD-4-29].

        A heartbeat that is refused ends them, since the session is then over; one that only got lost is
        followed by the next.
        """
        done = threading.Event()
        thread = threading.Thread(target=self._beat, args=(done, on_trouble), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(0.2)

    def _beat(self, done: threading.Event, on_trouble: Callable[[MHSError], None] | None) -> None:
        try:
            # A session of unknown lifetime gets a heartbeat at once, which tells the lifetime.
            pause_s = self._pulse_s or 0.0
            while not done.wait(pause_s):
                try:
                    lifetime_s = self.lifetime_s(self.heartbeat())
                    pause_s = self._pulse_s = self._pulse_s or lifetime_s / 3
                except (TransportError, OutcomeUnknown):
                    pause_s = 1.0
        except MHSError as refusal:
            if on_trouble is not None and not done.is_set():
                on_trouble(refusal)

    def lifetime_s(self, answered: Mapping[str, Any]) -> float:
        """Seconds from now to `expires_at` by the endpoint's clock, at least 1."""
        return requests.lifetime_s(answered, self.client.endpoint_time_s())

    def close(self, reason: str | None = None) -> dict[str, Any]:
        """Ends the session; its operations are cancelled to the safe state [SESS-006]."""
        return self.call("mhs.session.close", {"reason": reason} if reason else {})
