"""Which programs are tried: mixtures of everything, in bursts of what belongs together.

They come from a generator of random numbers and not from Hypothesis's strategies, whose lists of alternatives of lists
are short or much like each other; Hypothesis chooses the seeds, and `shorten` takes from a program that fails what it
does not need.
"""

from collections.abc import Callable
from itertools import chain
from random import Random
from typing import Any

import attrs

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

Program = tuple[Step, ...]

MOST_BURSTS = 12
DEVICES = (0, 0, 0, 1)
SESSIONS = (0, 0, 0, 1, 1, 2, 3)
RECENT = (0, 0, 0, 1, 1, 2, 3, 5, 8)
CAPABILITIES = (MOVE, MOVE, MOVE, TRAVEL, TRAVEL, FIRE, TOGGLE, MEASURE, SAMPLE, CONFIGURE, DESCRIBE)
DEADLINES_MS = (60_000, 60_000, 60_000, 60_000, 1, 100, 500, 2000)
HOWS = {
    "read": ("slow", "slow", "hang", "fail", "raise", "gap"),
    "stop": ("slow", "hang", "raise", "deny"),
    "reset": ("slow", "hang", "fail", "half"),
}
MEND: list[Step] = [
    *(Conduct(device, part, "ok") for device in (0, 1) for part in HOWS),
    *(Gate(0), Gate(1)),
    Wait(5000),
    *(Reset(0), Reset(1)),
    Wait(100),
]
"""After this a device serves again, but for what is still running on it."""


def make_program(random: Random) -> Program:
    """One program."""
    bursts = [random.choice(BURSTS)(random) for _ in range(random.randint(1, MOST_BURSTS))]
    return tuple(chain.from_iterable(bursts))


def _command(random: Random, **given: Any) -> Command:
    values = {
        "what": random.choice(CAPABILITIES),
        "session": random.choice(SESSIONS),
        "device": random.choice(DEVICES),
        "amount": random.choice((1, 1, 1, 1, 2, 0, 5, 6)),
        "how": random.choice(("ok", random.choice(ENDS))),
        "takes_ms": random.choice((0, 0, 1, 200, 1000, 3000, 12_000)),
        "deadline_ms": random.choice(DEADLINES_MS),
        "permit": random.choice((None, 0)),
        "expected": random.choice((None, None, None, None, 0, 1, -1)),
    }
    return Command(**{**values, **given})


def _again(random: Random, **given: Any) -> Again:
    values = {
        "of": random.choice(RECENT),
        "session": random.choice((None, None, None, random.choice(SESSIONS))),
        "deadline_ms": random.choice((None, None, random.choice(DEADLINES_MS))),
        "expected": random.choice((False, True)),
        "amount": random.choice((None, None, None, None, 2)),
        "permit": random.choice((None, None, 0, 1)),
    }
    return Again(**{**values, **given})


def _conduct(random: Random, *parts: str) -> Conduct:
    part = random.choice(parts or tuple(HOWS))
    return Conduct(random.choice(DEVICES), part, random.choice(("ok", *HOWS[part])))


def _wait(random: Random) -> Wait:
    return Wait(random.choice((0, 0, 0, 1, 100, 100, 300, 1000, 5000)))


def _permit(random: Random) -> Permit:
    return Permit(
        session=random.choice(SESSIONS),
        device=random.choice(DEVICES),
        how=random.choice(("ok", "ok", "ok", "busy", "busy_late", "link_down")),
        takes_ms=random.choice((0, 1000)),
        ttl_s=random.choice((60, 60, 1)),
    )


def _stop(random: Random) -> Stop:
    return Stop(
        device=random.choice((None, *DEVICES)),
        principal=random.choice((0, 1)),
        kind=random.choice(("call", "call", "command", "notification", "broken")),
    )


def _reset(random: Random) -> Reset:
    return Reset(random.choice(DEVICES), random.choice(SESSIONS), random.choice((5000, 5000, 300, 1)))


def _open(random: Random) -> Open:
    return Open(random.choice((0, 1)), random.choice((600, 1, 2, 5)))


def _gate(random: Random) -> Gate:
    return Gate(random.choice(DEVICES), random.choice(("closed", "open", "unreadable")))


def _read(random: Random) -> Read:
    return Read(random.choice(SESSIONS), random.choice(DEVICES), random.choice((1, 2000)))


def _cancel(random: Random) -> Cancel:
    return Cancel(random.choice(RECENT), random.choice(SESSIONS), random.choice((1, 1000, 10_000)))


def _get(random: Random) -> Get:
    return Get(random.choice(RECENT), random.choice(SESSIONS), random.choice((False, True)))


def _batch(random: Random) -> Batch:
    makers = (_command, _again)
    return Batch(tuple(random.choice(makers)(random) for _ in range(random.randint(1, 4))))


STEPS: tuple[Callable[[Random], Step], ...] = (
    *(_command, _command, _command, _command, _command, _command),
    *(_again, _again, _again),
    *(_wait, _wait, _wait),
    *(_permit, _batch, _get, _cancel, _read, _open, _stop, _reset, _gate, _conduct),
    lambda random: Heartbeat(random.choice(SESSIONS)),
    lambda random: Status(random.choice(DEVICES)),
    lambda random: Close(random.choice(SESSIONS)),
    lambda random: Lose(random.choice(RECENT)),
)


def _few(random: Random) -> list[Step]:
    return [random.choice(STEPS)(random) for _ in range(random.randint(0, 6))]


def _commands(random: Random) -> list[Step]:
    makers: tuple[Callable[[Random], Step], ...] = (_command, _command, _again, _wait)
    return [random.choice(makers)(random) for _ in range(random.randint(1, 8))]


def _fires(random: Random) -> list[Step]:
    """A permit, and several commands that it is for."""
    permit = _permit(random)

    def fire(random: Random) -> Step:
        return Command(
            FIRE,
            session=random.choice((permit.session, permit.session, permit.session, 0)),
            device=permit.device,
            how=permit.how,
            takes_ms=permit.takes_ms,
            deadline_ms=random.choice(DEADLINES_MS),
            permit=0,
            expected=random.choice((None, None, 0, 1)),
        )

    makers = (fire, fire, fire, _again, _wait, random.choice(STEPS))
    return [permit, *(random.choice(makers)(random) for _ in range(random.randint(1, 6)))]


def _retries(random: Random) -> list[Step]:
    """A command, and the same again and again, perhaps over a link that is slow."""
    steps: list[Step] = [_conduct(random, "read")] if random.random() < 0.5 else []
    steps.append(_command(random, expected=random.choice((None, 0, 1)), amount=1))
    makers: tuple[Callable[[Random], Step], ...] = (
        lambda random: _again(random, of=0, session=None, amount=None),
        _again,
        _wait,
        lambda random: _conduct(random, "read"),
        random.choice(STEPS),
    )
    return [*steps, *(random.choice(makers)(random) for _ in range(random.randint(1, 8)))]


def _mend(random: Random) -> list[Step]:
    return MEND


def _stops(random: Random) -> list[Step]:
    return [*_commands(random), _stop(random), *_few(random), _wait(random), _reset(random), *_few(random)]


def _gates(random: Random) -> list[Step]:
    return [_gate(random), *_few(random), Gate(0), Gate(1)]


def _conducts(random: Random) -> list[Step]:
    first = _conduct(random)
    return [first, *_few(random), attrs.evolve(first, how="ok")]


def _visits(random: Random) -> list[Step]:
    """A session that soon ends, and what is done in it."""
    ends = (Wait(1000), Wait(5000), Close(0))
    return [
        _open(random),
        _command(random, session=0, how="ok"),
        *_few(random),
        random.choice(ends),
        *_few(random),
    ]


def _restarts(random: Random) -> list[Step]:
    return [*_few(random), Restart(random.choice(("crash", "crash", "drain"))), *_few(random)]


def _full(random: Random) -> list[Step]:
    return [*_few(random), DiskFull(), *_few(random), Restart(random.choice(("crash", "drain")))]


BURSTS: tuple[Callable[[Random], list[Step]], ...] = (
    *(_few, _commands, _commands, _fires, _retries, _retries, _mend, _mend),
    *(_stops, _gates, _conducts, _visits, _restarts, _full),
)


def shorten(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program that still fails and has little in it that it could do without."""
    size = max(1, len(program) // 2)
    while size:
        at = 0
        while at < len(program):
            shorter = program[:at] + program[at + size :]
            if fails(shorter):
                program = shorter
            else:
                at += size
        size //= 2
    for at, step in enumerate(program):
        for field in attrs.fields(type(step)):
            plain = (
                attrs.evolve(step, **{field.name: field.default})
                if field.default is not attrs.NOTHING
                else step
            )
            simpler = (*program[:at], plain, *program[at + 1 :])
            if plain != step and fails(simpler):
                program, step = simpler, plain
    return program
