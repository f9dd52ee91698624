"""One command from the shell: sent, watched, stopped by Ctrl-C, and its session closed or left open.

Every command closes the session that it opened, except when its receipt is not final: closing would then
cancel what still runs [MHSD-9a-45].
"""

import contextlib
import getpass
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mhsd.cli import exits, sessions_here
from mhsd.cli.boundary import report
from mhsd.cli.link import Link
from mhsd.cli.progress import Progress
from mhsd.cli.render import receipt_lines
from mhsd.cli.targets import Target
from mhsd.cli.terminal import Paint, emit, note, plain, say, value
from mhsd.client.client import Client
from mhsd.client.errors import MHSError, OutcomeUnknown
from mhsd.client.receipts import is_final, operation_of
from mhsd.client.session import Receipt, Session

SESSION_TTL_S = 600
_LOOK_S = 0.1
_QUEUED_PATIENCE_S = 2.0


def principal() -> dict[str, str]:
    """Who this program claims to act for; the endpoint's own authentication wins."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return {"id": f"local:{user}", "kind": "human"}


def open_session(
    client: Client,
    devices: Sequence[Mapping[str, Any]],
    capabilities: Sequence[str],
    ttl_s: int = SESSION_TTL_S,
) -> Session:
    """A session on these devices, in their mode."""
    return Session.open(
        client,
        principal=principal(),
        device_ids=[str(device["device_id"]) for device in devices],
        capabilities=capabilities,
        mode=str(devices[0].get("mode")),
        ttl_s=ttl_s,
    )


def close_quietly(session: Session) -> None:
    """Closes a session that has nothing left to do; a failure is worth a warning, not another exit code."""
    try:
        session.close()
    except MHSError as problem:
        note(f"warning: the session could not be closed and ends by itself: {plain(str(problem))}")


class Mutation:
    """A `call` or a `write`, from the command line to its exit code."""

    def __init__(
        self,
        link: Link,
        client: Client,
        target: Target,
        method: str,
        params: Mapping[str, Any],
        *,
        capability: str | None,
        max_duration_ms: int | None = None,
        long_running: bool = False,
        deadline_ms: int | None = None,
        wait: bool = True,
        again: Sequence[str] = (),
    ) -> None:
        """`capability` is what the session asks for, None for a session that grants nothing; `again` are the
        words of this command line, to which the ids are added so that it can be followed."""
        self._link = link
        self._client = client
        self._target = target
        self._method = method
        self._params = {**params, "device_id": target.device_id}
        self._capability = capability
        self._max_duration_ms = max_duration_ms
        self._long_running = long_running
        self._deadline_s = None if deadline_ms is None else deadline_ms / 1000
        if deadline_ms is not None:
            self._params["deadline_ms"] = deadline_ms
        self._wait = wait
        self._again = list(again)
        self._interrupted = False
        self._owned = False

    def run(self, session_id: str | None) -> int:
        """Runs in the session `session_id`, or in one of its own; prints the receipt."""
        stays = self._link.outlives_command()
        if session_id is not None:
            session = Session(self._client, session_id)
        else:
            capabilities = [] if self._capability is None else [self._capability]
            session = open_session(self._client, [self._target.device], capabilities, self._ttl_s())
        self._owned = session_id is None
        over = True
        try:
            receipt, over = self._receipt(session)
        except KeyboardInterrupt:
            # The second Ctrl-C: the person does not want to wait, and the operation may still run. The first one
            # comes here where nothing is waited for yet, or no more: the end of the own session cancels what runs.
            over = self._owned and not self._interrupted
            if self._interrupted:
                self._ask_to_stop(session)
            raise
        except MHSError as problem:
            over = not isinstance(problem, OutcomeUnknown)
            if not self._interrupted:
                raise
            report("mhsctl", problem, as_json=self._link.json)
            return exits.INTERRUPTED
        finally:
            if not over:
                self._say_open(session, stays)
            elif self._owned:
                close_quietly(session)
        if self._owned and over:
            self._say_safe_state(receipt)
        return exits.INTERRUPTED if self._interrupted else exits.of_receipt(receipt)

    def _say_safe_state(self, receipt: Receipt) -> None:
        """To a person at a terminal, that the device does not stay as the command has left it [SESS-006]."""
        safety = self._target.device.get("safety")
        safe_state = safety.get("safe_state") if isinstance(safety, dict) else None
        if self._link.json or not sys.stderr.isatty() or not receipt.get("effects"):
            return
        if isinstance(safe_state, dict) and safe_state.get("achieved_by"):
            told = value(safe_state.get("description") or "declared by the device")
            text = f"The command's session is over, which brings the device to its safe state ({told})."
            note(Paint(sys.stderr)("dim", f"{text} To work on, use `mhsctl session open`."))

    def _ttl_s(self) -> int:
        """Long enough to outlive the operation, should nobody be left to send heartbeats."""
        return max(SESSION_TTL_S, (self._max_duration_ms or 0) // 1000 + 60)

    def _receipt(self, session: Session) -> tuple[Receipt, bool]:
        """The receipt, printed, and whether it is the last word."""
        with session.kept_alive(_lost_session):
            job = _Job(session, self._method, self._params, self._deadline_s)
            progress = Progress(self._params.get("capability_id", self._method))
            try:
                receipt = self._sent(session, job, progress)
                if self._wait and receipt.get("status") in ("accepted", "running"):
                    receipt = session.follow(receipt, progress.show)
            except KeyboardInterrupt:
                self._interrupted = True
                progress.clear()
                note("stopping; press Ctrl-C again to leave it to the endpoint")
                receipt = self._stopped(session, job)
            finally:
                progress.clear()
            over = session.settled(receipt)
        if self._link.json:
            emit(receipt)
        else:
            say(receipt_lines(receipt, Paint(sys.stdout)))
        return receipt, over

    def _sent(self, session: Session, job: "_Job", progress: "Progress") -> Receipt:
        """The endpoint's answer, which comes at the end or at the deadline.

        What takes long shows how far it is meanwhile; without waiting, its receipt is that of the first look.
        """
        look_s = progress.EVERY_S if self._wait else _LOOK_S
        watch = self._long_running and (progress.enabled or not self._wait)
        which = {"command_id": self._params["command_id"], "device_id": self._target.device_id}
        while not job.done(look_s if watch else None):
            # The answer comes all the same: a look that fails is left out.
            with contextlib.suppress(MHSError):
                known = session.call("mhs.operations.get", which)
                if not self._wait:
                    return known
                progress.show(known)
        return job.receipt()

    def _stopped(self, session: Session, job: "_Job") -> Receipt:
        """Cancels the operation and waits for its final receipt.

        What still waits for the device has no operation yet. It is given a moment; then the session, if it is
        this command's own, is closed, after which the endpoint runs nothing of it any more.
        """
        until_mono_s = time.monotonic() + _QUEUED_PATIENCE_S
        while not job.done(_LOOK_S):
            known = session.look_up(self._params["command_id"], self._target.device_id)
            if known is not None:
                return self._cancelled(session, known)
            if self._owned and time.monotonic() > until_mono_s:
                session.close("interrupted")
                self._owned = False
                job.done(None)
        return self._cancelled(session, job.receipt())

    def _ask_to_stop(self, session: Session) -> None:
        """Sends the cancellation that a quick second Ctrl-C may have come before; its end is not waited for."""
        with contextlib.suppress(MHSError):
            known = session.look_up(self._params["command_id"], self._target.device_id)
            operation_id = operation_of(known) if known is not None and not is_final(known) else None
            if operation_id is not None:
                asking = threading.Thread(target=_cancel_quietly, args=(session, operation_id), daemon=True)
                asking.start()
                asking.join(_LOOK_S)

    def _cancelled(self, session: Session, receipt: Receipt) -> Receipt:
        operation_id = operation_of(receipt)
        if is_final(receipt) or operation_id is None:
            return receipt
        return session.follow(session.cancel(operation_id))

    def _say_open(self, session: Session, stays: bool) -> None:
        """How to follow what is not over."""
        if not stays:
            note("the endpoint ends with this command, which cancels what still runs")
            return
        lives, operation_id = self._what_lives(session)
        if self._owned:
            known = self._client.hello().get("endpoint_id")
            sessions_here.remember(session.session_id, self._link.address, known, [self._target.device_id])
        words = [*self._again, "--session", session.session_id, "--command-id", self._params["command_id"]]
        follow = shlex.join(["mhsctl", *words, *self._link.words()])
        stop = shlex.join(["mhsctl", "session", "close", session.session_id, *self._link.words()])
        note(
            [
                lives,
                f"  session    {plain(session.session_id)}",
                f"  operation  {plain(operation_id or 'not known')}",
                f"  follow it  {plain(follow)}",
                f"  stop it    {plain(stop)}",
            ]
        )

    def _what_lives(self, session: Session) -> tuple[str, str | None]:
        """Until when the session lives, and the operation, as far as the endpoint can still be asked."""
        try:
            expires = plain(str(session.heartbeat().get("expires_at")))
            known = session.look_up(self._params["command_id"], self._target.device_id)
        except MHSError:
            return "Whether this is over is not known; its session may still be open.", None
        operation_id = operation_of(known) if known is not None else None
        return f"This is not over; its session stays open until {expires}.", operation_id


class _Job(threading.Thread):
    """The one request of a mutation, in a thread, so that Ctrl-C can cancel while it waits for its answer."""

    def __init__(
        self, session: Session, method: str, params: Mapping[str, Any], deadline_s: float | None
    ) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._request = (method, params, deadline_s)
        self._receipt: Receipt | None = None
        self._problem: Exception | None = None
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            self._receipt = self._session.mutate(*self._request)
        except Exception as problem:  # Carried to the thread that waits, which raises it again.
            self._problem = problem
        finally:
            self._over.set()

    def done(self, timeout_s: float | None) -> bool:
        """Waits up to `timeout_s`, or as long as it takes."""
        return self._over.wait(timeout_s)

    def receipt(self) -> Receipt:
        """The receipt of a job that is done, or its error."""
        if self._problem is not None:
            raise self._problem
        assert self._receipt is not None
        return self._receipt


def _cancel_quietly(session: Session, operation_id: str) -> None:
    with contextlib.suppress(MHSError):
        session.cancel(operation_id)


def _lost_session(problem: MHSError) -> None:
    note(f"warning: the session was lost: {plain(str(problem))}")
