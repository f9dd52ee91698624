"""Where the programs start. Looks at the first word before anything slow is imported."""

import os
import signal
import sys
from collections.abc import Callable

_FAST = ("estop", "status")
_ALIASES = ("mhsctl", "mhs", "openmhs")


def mhsctl() -> int:
    """The operators' program; returns its exit code."""
    return _interruptible(_mhsctl)


def mhsd() -> int:
    """The daemon: `mhsd TARGET…` is `mhsctl serve TARGET…`; returns its exit code."""
    return _interruptible(_mhsd)


def _interruptible(program: Callable[[], int]) -> int:
    try:
        return program()
    except KeyboardInterrupt:
        # While the programs are still being imported, so that nothing was sent.
        from mhsd.cli import boundary

        return boundary.interrupted(os.path.basename(sys.argv[0]), sys.argv[1:])


def _mhsctl() -> int:
    _open_closed_streams()
    program = _program("mhsctl", _ALIASES)
    argv = _without_old_spelling(sys.argv[1:])
    if argv and argv[0] in _FAST and not os.environ.get(f"_{program.upper()}_COMPLETE"):
        # An e-stop must not wait for imports that it does not need.
        from mhsd.cli import fast

        return fast.main(program, argv)
    if argv[:1] != ["serve"]:
        _end_as_by_ctrl_c()
    from mhsd.cli import app

    return app.main(program, argv)


def _mhsd() -> int:
    from mhsd.cli import cmd_serve

    return cmd_serve.main(_program("mhsd", ("mhsd",)), sys.argv[1:])


def _open_closed_streams() -> None:
    """A caller that closed a stream (cron jobs and desktop starters do) must not keep a stop from being sent."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def _end_as_by_ctrl_c() -> None:
    """A terminal that is closed, or a SIGTERM, ends a command as Ctrl-C does: what it started is cancelled first."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # Whoever ignores a hang-up (nohup) means it.
            signal.signal(signum, signal.default_int_handler)


def _program(usual: str, names: tuple[str, ...]) -> str:
    """The name that the program was started by, as messages and completion use it."""
    name = os.path.basename(sys.argv[0])
    return name if name in names else usual


def _without_old_spelling(argv: list[str]) -> list[str]:
    """`safety estop|status|reset` is the deprecated spelling of the three commands [TPT-050]."""
    if argv[:1] != ["safety"]:
        return argv
    rest = argv[1:] if argv[1:2] and argv[1] in (*_FAST, "reset") else ["status", *argv[1:]]
    sys.stderr.write(f"`safety` is an old spelling; write `{rest[0]}`\n")
    return rest
