"""The code API: one endpoint for a script, a notebook or a thread [TPT-054].

Decides how the methods of the protocol look in Python. A refusal of a command is a receipt that is returned; what is
raised are failures of the transport, the protocol, authentication and sessions [TPT-055]. Every call has a finite
deadline [TPT-056], and any number of threads may use one client: each call has a connection of its own while it
lasts, or on stdio an id by which its answer is told from the others [TPT-057].
"""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from mhsd.client.backoff import ATTEMPTS
from mhsd.client.calls import DEFAULT_TIMEOUT_S, check_timeout
from mhsd.client.client import Client, open_transport
from mhsd.client.code_session import CodeSession
from mhsd.client.documents import Device, Receipt
from mhsd.client.endpoint import Endpoint, endpoint_of
from mhsd.client.errors import SessionError
from mhsd.client.evidence import exported_pages, joined
from mhsd.client.http import Tls
from mhsd.client.ledger import noted, reached
from mhsd.client.naming import devices_of
from mhsd.client.negotiated import Negotiated
from mhsd.client.requests import (
    DEFAULT_TTL_S,
    approvals,
    claimed_principal,
    device_named,
    given,
    input_digest,
    mode_of,
    only_resource,
)
from mhsd.client.session import Session
from mhsd.client.token_file import read_token
from mhsd.client.transport import Transport


def connect(
    url_or_argv: str | Sequence[str],
    *,
    token_file: str | PathLike[str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> "CodeClient":
    """A client of an endpoint: `http(s)://…`, `mhs://…`, `unix:PATH`, `stdio:COMMAND`, or a command as a list of words.

    A command is started as a child and ended by `close`. Certificates for https are named by MHS_CA_FILE,
    MHS_CERT_FILE and MHS_KEY_FILE, as for mhsctl. A ValueError (BadEndpoint, BadTokenFile, BadCertificates) for
    arguments that cannot be used, AuthError for plain HTTP to another machine, TransportError when a command does not
    start. HTTP connects at the first call.
    """
    place = endpoint_of(url_or_argv)
    return client_of(place, None if token_file is None else read_token(token_file), timeout_s)


def client_of(place: Endpoint, token: str | None, timeout_s: float) -> "CodeClient":
    """A client of an endpoint whose address has been read."""
    check_timeout(timeout_s)
    return CodeClient(open_transport(place, token=token, tls=Tls.of(os.environ)), timeout_s=timeout_s)


class CodeClient(Client, Negotiated):
    """One endpoint and one caller; a context manager that closes the connection."""

    def __init__(self, transport: Transport, *, timeout_s: float) -> None:
        super().__init__(transport, timeout_s=timeout_s, name="mhsd-python")
        self._sessions: weakref.WeakSet[CodeSession] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<Client of {self.transport.url}>"

    def _told(self) -> dict[str, Any]:
        return self.hello()

    def devices(self) -> list[Device]:
        """The manifests of all devices."""
        self.hello()
        return [Device(found) for found in devices_of(self.call("mhs.devices.list", {"detail": "full"}))]

    def device(self, device_id: str | None = None) -> Device:
        """One device's manifest with its current state; without an id that of the only device.

        Wherever a device is named here, its id, its path, the last word of its path or its display name will do.
        """
        return Device(self.call("mhs.devices.get", {"device_id": self.find(device_id)}))

    def find(self, device_id: str | None = None) -> str:
        """The whole id of a device; MHSError that names the devices where not exactly one is meant."""
        return device_named(self.hello(), device_id)

    def hello(self) -> dict[str, Any]:
        """The endpoint's answer to mhs.hello, asked once: who serves, in which version, with which limits."""
        answered = super().hello()
        reached(str(answered.get("endpoint_id")))
        return answered

    def session(
        self,
        device_ids: str | Sequence[str] | None = None,
        capabilities: Sequence[str] | None = None,
        mode: str | None = None,
        ttl_s: int = DEFAULT_TTL_S,
        *,
        approved_by: Sequence[str] = (),
    ) -> CodeSession:
        """Opens a session, a context manager that closes it.

        Without `device_ids` it covers the only device, else the error names those there are. `capabilities` are ids
        or patterns like `cap.motion.*`, all of them when left out; `[]` opens a session that only reads. `mode` is
        that of the device when left out. It ends `ttl_s` seconds after the last sign of life; signs of life are sent
        while a call, an operation or a subscription is open. `approved_by` names the people who answer for a device
        of risk class R3 [MHSD-9a-86].
        """
        return CodeSession(self, *self.open(device_ids, capabilities, mode, ttl_s, approved_by=approved_by))

    def holds(self, session: CodeSession) -> None:
        """A session works over this client, and ends its threads when the client is closed."""
        self._sessions.add(session)

    def close(self) -> None:
        """Closes the connection; on stdio this ends the endpoint, and ChildFailed says if it ended badly.

        A session that is still open ends at the endpoint when its time is over.
        """
        for session in list(self._sessions):
            session.forget()
        super().close()

    def open(
        self,
        device_ids: str | Sequence[str] | None,
        capabilities: Sequence[str] | None,
        mode: str | None,
        ttl_s: int,
        *,
        approved_by: Sequence[str] = (),
    ) -> tuple[Session, list[str]]:
        """A session as the endpoint knows it, and its devices."""
        named = [device_ids] if isinstance(device_ids, str) else device_ids
        found = [self.find()] if named is None else [self.find(each) for each in named]
        inner = Session.open(
            self,
            principal=claimed_principal(),
            device_ids=found,
            capabilities=["*"] if capabilities is None else capabilities,
            mode=mode_of(self.hello(), found) if mode is None else mode,
            ttl_s=ttl_s,
            approvals=approvals(approved_by),
        )
        # A script that has begun something outlasts a network that is away for a while.
        inner.attempts = ATTEMPTS
        return inner, found

    def wait(
        self, receipt: Mapping[str, Any], *, on_progress: Callable[[Receipt], None] | None = None
    ) -> Receipt:
        """The final receipt of the operation that `receipt` belongs to; a final one is returned as it is.

        It ends when the operation does, for which the endpoint allows its capability's `max_duration_ms`. When the
        session of the receipt is over, a new one asks [TPT-061].
        """
        given = Receipt(receipt)
        if given.final:
            return given
        inner = Session(self, str(given.get("session_id")))
        inner.attempts = ATTEMPTS
        try:
            final = Receipt(inner.follow(given, _wrapped(on_progress)))
        except SessionError:
            final = self.found_out(given, on_progress)
        return noted(final)

    def found_out(
        self, receipt: Mapping[str, Any], on_progress: Callable[[Receipt], None] | None = None
    ) -> Receipt:
        """The final receipt of an operation whose session is over, asked for in a session of its own [TPT-061]."""
        with self.session([str(receipt.get("device_id"))], []) as reading:
            return reading.follow(receipt, on_progress)

    # Safety: none of it waits for a session.

    def safety_status(self, device_id: str | None = None) -> dict[str, Any]:
        """Latch, interlocks, permits and safe state of one device."""
        return self.call("mhs.safety.status", {"device_id": self.find(device_id)})

    def estop(self, reason: str | None = None, *, device_id: str | None = None) -> Receipt:
        """Latches the e-stop of one device, or of all; the receipt says of each what was confirmed."""
        if device_id is not None and not device_id.startswith("mhs://"):
            # A whole id needs no look-up, which would be one more thing that can fail.
            device_id = self.find(device_id)
        return noted(Receipt(self.call("mhs.safety.estop", given(reason=reason, device_id=device_id))))

    def reset(self, device_id: str | None = None) -> Receipt:
        """Releases a latched e-stop, as an operator: look at the device before."""
        with self.session(self.find(device_id), []) as session:
            return session.reset()

    def permit(
        self,
        session_id: str,
        capability_id: str,
        input: Mapping[str, Any],
        *,
        resource: str | None = None,
        device_id: str | None = None,
        ttl_s: int = 300,
        approved_by: Sequence[str] = (),
    ) -> dict[str, Any]:
        """As an operator: approves one command with exactly this input, once, for a session that is open.

        Its `permit_id` is for the `invoke` of that session.
        """
        device_id = self.find(device_id)
        if resource is None:
            resource = only_resource(self.device(device_id), capability_id)
        return self.call(
            "mhs.safety.permit",
            {
                "session_id": session_id,
                "device_id": device_id,
                "capability_id": capability_id,
                "resource": resource,
                "input_digest": input_digest(capability_id, resource, input),
                "ttl_s": ttl_s,
                "approvals": approvals(approved_by),
            },
        )

    # Evidence.

    def evidence_pages(
        self, *, device_id: str | None = None, session_id: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The endpoint's bundles page by page, for an evidence that is too large to be held whole."""
        device_id = None if device_id is None else self.find(device_id)
        return exported_pages(self, given(device_id=device_id, session_id=session_id))

    def export_evidence(
        self, *, device_id: str | None = None, session_id: str | None = None
    ) -> dict[str, Any]:
        """All receipts of the endpoint, or of a device or session, as one bundle."""
        return joined(self.evidence_pages(device_id=device_id, session_id=session_id))


def _wrapped(on_progress: Callable[[Receipt], None] | None) -> Callable[[dict[str, Any]], None] | None:
    return None if on_progress is None else lambda document: on_progress(Receipt(document))
