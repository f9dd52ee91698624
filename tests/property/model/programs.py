"""Which programs are tried: mixtures of everything, and of what belongs together."""

from itertools import chain

import attrs
from hypothesis import strategies as st

from tests.property.model.steps import (
    CONFIGURE,
    DESCRIBE,
    ENDS,
    FIRE,
    MEASURE,
    MOVE,
    SAMPLE,
    TOGGLE,
    TRAVEL,
    Again,
    Batch,
    Cancel,
    Close,
    Command,
    Conduct,
    DiskFull,
    Gate,
    Get,
    Heartbeat,
    Lose,
    Open,
    Permit,
    Read,
    Reset,
    Restart,
    Status,
    Step,
    Stop,
    Wait,
)

DEVICES = st.sampled_from((0, 0, 0, 1))
SESSIONS = st.sampled_from((0, 0, 1, 2, 3))
RECENT = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 5, 8))
TIMES_MS = st.sampled_from((0, 0, 1, 200, 1000, 3000, 12_000))
DEADLINES_MS = st.sampled_from((60_000, 60_000, 60_000, 1, 100, 500, 2000))
COMMANDS = st.builds(
    Command,
    what=st.sampled_from((MOVE, MOVE, TRAVEL, TRAVEL, FIRE, TOGGLE, MEASURE, SAMPLE, CONFIGURE, DESCRIBE)),
    session=SESSIONS,
    device=DEVICES,
    amount=st.sampled_from((1, 1, 1, 2, 0, 5, 6)),
    how=st.one_of(st.just("ok"), st.sampled_from(ENDS)),
    takes_ms=TIMES_MS,
    deadline_ms=DEADLINES_MS,
    permit=st.one_of(st.none(), st.integers(0, 2)),
    expected=st.sampled_from((None, None, None, 0, 0, 1, -1)),
)
AGAIN = st.builds(
    Again,
    of=RECENT,
    session=st.one_of(st.none(), SESSIONS),
    deadline_ms=st.one_of(st.none(), DEADLINES_MS),
    expected=st.booleans(),
    amount=st.one_of(st.none(), st.none(), st.integers(0, 9)),
    permit=st.one_of(st.none(), st.integers(0, 1)),
)
PERMITS = st.builds(
    Permit,
    session=SESSIONS,
    device=DEVICES,
    how=st.sampled_from(("ok", "ok", "busy", "busy_late", "link_down")),
    takes_ms=st.sampled_from((0, 1000)),
    ttl_s=st.sampled_from((60, 60, 1)),
)
STOPS = st.builds(
    Stop,
    device=st.one_of(st.none(), DEVICES),
    principal=st.integers(0, 1),
    kind=st.sampled_from(("call", "call", "command", "notification", "broken")),
)
RESETS = st.builds(Reset, device=DEVICES, session=SESSIONS, deadline_ms=st.sampled_from((5000, 5000, 300, 1)))
READ_CONDUCTS = st.builds(
    Conduct,
    DEVICES,
    st.just("read"),
    st.sampled_from(("ok", "ok", "slow", "slow", "hang", "fail", "raise", "gap")),
)
CONDUCTS: st.SearchStrategy[Conduct] = st.one_of(
    READ_CONDUCTS,
    st.builds(
        Conduct, DEVICES, st.just("stop"), st.sampled_from(("ok", "ok", "slow", "hang", "raise", "deny"))
    ),
    st.builds(
        Conduct, DEVICES, st.just("reset"), st.sampled_from(("ok", "ok", "slow", "hang", "fail", "half"))
    ),
)
WAITS = st.builds(Wait, st.sampled_from((0, 0, 1, 100, 300, 1000, 5000)))
STEPS: st.SearchStrategy[Step] = st.one_of(
    COMMANDS,
    COMMANDS,
    COMMANDS,
    AGAIN,
    AGAIN,
    WAITS,
    WAITS,
    PERMITS,
    st.builds(Batch, st.lists(st.one_of(COMMANDS, AGAIN), min_size=1, max_size=4).map(tuple)),
    st.builds(Get, of=RECENT, session=SESSIONS, by_command=st.booleans()),
    st.builds(Cancel, of=RECENT, session=SESSIONS, deadline_ms=st.sampled_from((1, 1000, 10_000))),
    st.builds(Read, session=SESSIONS, device=DEVICES, deadline_ms=st.sampled_from((1, 2000))),
    st.builds(Open, principal=st.integers(0, 1), ttl_s=st.sampled_from((600, 1, 2, 5))),
    st.one_of(st.builds(Heartbeat, SESSIONS), st.builds(Status, DEVICES)),
    st.builds(Close, SESSIONS),
    STOPS,
    RESETS,
    st.builds(Gate, DEVICES, st.sampled_from(("closed", "open", "unreadable"))),
    CONDUCTS,
    st.builds(Lose, RECENT),
)
FEW = st.lists(STEPS, max_size=6)


def _around(first: st.SearchStrategy[Step], last: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    return st.tuples(first, FEW, last).map(lambda parts: [parts[0], *parts[1], parts[2]])


@st.composite
def _fires(draw: st.DrawFn) -> list[Step]:
    """A permit, and several commands that it is for."""
    permit = draw(PERMITS)
    fire = st.builds(
        Command,
        what=st.just(FIRE),
        session=st.one_of(st.just(permit.session), SESSIONS),
        device=st.just(permit.device),
        how=st.just(permit.how),
        takes_ms=st.just(permit.takes_ms),
        permit=st.just(0),
        expected=st.sampled_from((None, None, 1)),
        deadline_ms=DEADLINES_MS,
    )
    return [permit, *draw(st.lists(st.one_of(fire, fire, AGAIN, STEPS), min_size=1, max_size=6))]


@st.composite
def _retries(draw: st.DrawFn) -> list[Step]:
    """A command, and the same again and again."""
    again = st.builds(
        Again, of=st.just(0), deadline_ms=st.one_of(st.none(), DEADLINES_MS), expected=st.booleans()
    )
    tail = draw(st.lists(st.one_of(again, again, WAITS, READ_CONDUCTS, STEPS), min_size=1, max_size=8))
    first = attrs.evolve(draw(COMMANDS), expected=draw(st.sampled_from((None, 1))))
    return [*draw(st.lists(READ_CONDUCTS, max_size=1)), first, *tail]


BURSTS: st.SearchStrategy[list[Step]] = st.one_of(
    FEW,
    FEW,
    _fires(),
    _retries(),
    _around(STOPS, RESETS),
    _around(st.builds(Gate, DEVICES, st.sampled_from(("open", "unreadable"))), st.builds(Gate, DEVICES)),
    _around(
        CONDUCTS,
        st.builds(Conduct, DEVICES, st.sampled_from(("read", "stop", "reset")), st.just("ok")),
    ),
    _around(
        st.builds(Open, principal=st.integers(0, 1), ttl_s=st.integers(1, 5)),
        st.builds(Wait, st.sampled_from((1000, 5000))),
    ),
    _around(st.builds(Restart, st.sampled_from(("crash", "crash", "drain"))), st.just(Wait(100))),
    _around(st.just(DiskFull()), st.builds(Restart, st.sampled_from(("crash", "drain")))),
)
PROGRAMS = st.lists(BURSTS, min_size=1, max_size=10).map(lambda bursts: tuple(chain.from_iterable(bursts)))
"""Lists of lists, because one list stays short."""
