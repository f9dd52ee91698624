"""A program: what clients, people at the rig and the machine do to an endpoint, one step after the other.

Between two steps no time passes and no other task runs, unless a step says so: what stands together happens in one
instant. Numbers that name an earlier session, command or permit count back from the newest, modulo how many there are.
"""

from typing import Any

import attrs

MOVE = "x-cap.rig.move.v1"
TRAVEL = "x-cap.rig.travel.v1"
FIRE = "x-cap.rig.fire.v1"
MEASURE = "x-cap.rig.measure.v1"
SAMPLE = "x-cap.rig.sample.v1"
TOGGLE = "x-cap.rig.toggle.v1"
CONFIGURE = "cap.device.configure.v1"
DESCRIBE = "cap.device.describe.v1"

ENDS = (
    *("busy", "busy_late", "link_down", "fail", "interlock", "raise", "unknown", "hang"),
    *("stubborn", "deaf", "bad_output", "ended", "ended_unsafe"),
)


@attrs.frozen
class Open:
    """A session; waits for its answer. `principal` 0 is an operator, 1 a client."""

    principal: int = 0
    ttl_s: int = 600
    devices: tuple[int, ...] = (0, 1)


@attrs.frozen
class Heartbeat:
    session: int = 0


@attrs.frozen
class Close:
    session: int = 0


@attrs.frozen
class Command:
    """A command under a new id. `permit`: the permit that it names. `expected`: how far off the revision is."""

    what: str = MOVE
    session: int = 0
    device: int = 0
    amount: int = 1
    how: str = "ok"
    takes_ms: int = 0
    deadline_ms: int = 60_000
    permit: int | None = None
    expected: int | None = None

    @property
    def value(self) -> dict[str, Any]:
        if self.what == CONFIGURE:
            return {"speed": self.amount}
        if self.what == DESCRIBE:
            return {}
        return {"amount": self.amount, "how": self.how, "takes_ms": self.takes_ms}


@attrs.frozen
class Again:
    """An earlier command under its own id: word for word, or with what is given here."""

    of: int = 0
    session: int | None = None
    deadline_ms: int | None = None
    expected: bool = False
    """Whether it expects the same revision as the first time; else none."""
    amount: int | None = None
    permit: int | None = None


@attrs.frozen
class Batch:
    """Several of these in one message."""

    of: tuple[Command | Again, ...]


@attrs.frozen
class Get:
    """Where a command stands, by its operation where that is known and `by_command` is not wanted."""

    of: int = 0
    session: int = 0
    by_command: bool = False


@attrs.frozen
class Cancel:
    of: int = 0
    session: int = 0
    deadline_ms: int = 1000


@attrs.frozen
class Read:
    session: int = 0
    device: int = 0
    deadline_ms: int = 2000


@attrs.frozen
class Status:
    device: int = 0


@attrs.frozen
class Permit:
    """A permit for a FIRE."""

    session: int = 0
    device: int = 0
    amount: int = 1
    how: str = "ok"
    takes_ms: int = 0
    ttl_s: int = 60


@attrs.frozen
class Stop:
    """An emergency stop, of all devices where none is named; as one of four kinds of message."""

    device: int | None = None
    principal: int = 0
    kind: str = "call"


@attrs.frozen
class Reset:
    device: int = 0
    session: int = 0
    deadline_ms: int = 5000


@attrs.frozen
class Gate:
    """Somebody moves the gate of a rig, or breaks its switch."""

    device: int = 0
    state: str = "closed"


@attrs.frozen
class Conduct:
    """From now on the link of a rig behaves like this."""

    device: int = 0
    part: str = "read"
    how: str = "ok"


@attrs.frozen
class Lose:
    """The connection is lost on which a call waits that is still open."""

    of: int = 0


@attrs.frozen
class DiskFull:
    """From now on the store cannot be written, until the next restart."""


@attrs.frozen
class Restart:
    """`crash`: nothing more is written and nobody is told. `drain`: the endpoint ends in order."""

    how: str = "crash"


@attrs.frozen
class Wait:
    """Time passes; 0 ms: every other task has its turn once."""

    ms: int = 0


Step = (
    Open
    | Heartbeat
    | Close
    | Command
    | Again
    | Batch
    | Get
    | Cancel
    | Read
    | Status
    | Permit
    | Stop
    | Reset
    | Gate
    | Conduct
    | Lose
    | DiskFull
    | Restart
    | Wait
)
