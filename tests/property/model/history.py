"""What happened in one example, in the order in which it happened."""

from collections.abc import Mapping
from typing import Any

import attrs
import trio


@attrs.frozen(order=True)
class Moment:
    """When something happened: simulated seconds, and the number of the event, since many share an instant."""

    mono_s: float
    number: int


@attrs.define(eq=False)
class Ask:
    """One call of a client and its answer. `reply` is the decoded JSON-RPC answer, `data` its result's bytes."""

    life: int
    principal: int
    method: str
    params: Mapping[str, Any]
    sent: Moment
    scope: trio.CancelScope
    reply: Mapping[str, Any] | None = None
    data: bytes | None = None
    answered: Moment | None = None
    lost: bool = False
    notification: bool = False
    limit_s: float | None = None
    """How long the answer may take, where it is not the call's own deadline: a batch answers as a whole."""

    @property
    def result(self) -> Any:
        return None if self.reply is None else self.reply.get("result")

    @property
    def error_code(self) -> str | None:
        """The MHS code of a JSON-RPC error or of a receipt's error."""
        if self.reply is None:
            return None
        error = self.reply["error"]["data"] if "error" in self.reply else self.reply["result"].get("error")
        code: str | None = None if error is None else error["mhs_code"]
        return code


@attrs.define(eq=False)
class Native:
    """One call that reached the rig. `how` says how it ended; None while it is out."""

    life: int
    device: int
    capability_id: str
    command_id: str
    value: Mapping[str, Any]
    session_id: str
    permit_id: str | None
    stops_before: int
    state_before: Any
    began: Moment
    ended: Moment | None = None
    how: str | None = None
    moves: list[Moment] = attrs.Factory(list)
    alone: bool = True
    """Whether nothing else touched the rig while it ran and until its receipt was written."""

    @property
    def refused(self) -> bool:
        """Whether the rig said that it did nothing: then it was no execution."""
        return self.how in ("Busy", "LinkDown")


@attrs.frozen(eq=False)
class Put:
    """An entry that was handed to the store; `state` is what the rig showed then, `stops` how often it was stopped."""

    life: int
    entry: Any
    at: Moment
    state: Any
    stops: int


@attrs.define(eq=False)
class Visit:
    """A session as its client knows it. `ended`: when its close was answered."""

    life: int
    principal: int
    session_id: str
    ttl_s: int
    expires_mono_s: float
    closing: Moment | None = None
    ended: Moment | None = None

    def over_at(self, moment: Moment) -> bool:
        """Whether its client knew that it was over when it did something."""
        return (self.ended is not None and self.ended < moment) or moment.mono_s >= self.expires_mono_s

    def over(self, now_mono_s: float) -> bool:
        """Whether it must have ended by now, by its time or by an answered close."""
        return self.ended is not None or now_mono_s >= self.expires_mono_s


@attrs.define(eq=False)
class Grant:
    """A permit as its client knows it."""

    life: int
    session_id: str
    device_id: str
    input_digest: str
    expires_mono_s: float
    used_by: str | None = None


@attrs.define(eq=False)
class Order:
    """A command as it was first sent."""

    principal: int
    method: str
    device: int
    what: str
    params: Mapping[str, Any]

    @property
    def command_id(self) -> str:
        command_id: str = self.params["command_id"]
        return command_id
