"""Where every command ends: what went wrong becomes one message and one exit code [MHSD-8-12]."""

import os
from collections.abc import Callable

from mhsd.cli import exits
from mhsd.cli.advice import advice
from mhsd.cli.terminal import begin, emit, failed_write, has_emitted, note, plain, value
from mhsd.client.endpoint import BadEndpoint
from mhsd.client.errors import MHSError, error

_WITH_VALUE = frozenset({"-e", "--endpoint", "--token-file", "--timeout", "--ledger"})
"""The options of `run` that a value follows."""

_RECEIPTS = frozenset({"call", "write", "estop", "reset"})
"""The commands whose exit code is the receipt's, wherever the receipt was written to."""


class UsageProblem(Exception):
    """The command line is not one that can be carried out; nothing was sent.

    `command` is the command whose help explains it, where that is not the first word.
    """

    def __init__(self, message: str, command: str | None = None) -> None:
        super().__init__(message)
        self.command = command


def wants_json(argv: list[str]) -> bool:
    """Whether stdout belongs to a program; asked of the words, because they may be the problem."""
    return "--json" in _own_words(argv)


def _own_words(argv: list[str]) -> list[str]:
    """The words that are this program's: not what stands behind `--`, or behind the name of a code file to run."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    if own[:1] != ["run"]:
        return own
    for place, word in enumerate(own[1:], 1):
        if not word.startswith("-") and own[place - 1] not in _WITH_VALUE:
            return own[:place]
    return own


def guarded(program: str, argv: list[str], run: Callable[[], int]) -> int:
    """Runs a command and returns its exit code; never a traceback."""
    begin()
    code = _guarded(program, argv, run)
    if code == exits.INTERRUPTED:
        _complete_interrupted(argv)
    unwritten = failed_write()
    if unwritten is None:
        return code
    note(f"{program}: the output could not be written to stdout: {plain(unwritten)}; what was done stands")
    return code or (exits.OK if argv[:1] and argv[0] in _RECEIPTS else exits.FAILED)


class Interrupted(Exception):
    """Ctrl-C inside a command, carried past typer, which would make a bare exit code of it."""


def interrupted(program: str, argv: list[str]) -> int:
    """Reports Ctrl-C that came before there was any answer."""
    note(f"{program}: interrupted")
    _complete_interrupted(argv)
    return exits.INTERRUPTED


def _complete_interrupted(argv: list[str]) -> None:
    """With `--json` an interruption is the one document, unless there is one already [TPT-052]."""
    if wants_json(argv) and not has_emitted():
        problem = error(
            "MHS.OUTCOME.UNKNOWN",
            "interrupted before there was an answer; what had been sent may have been carried out",
            "Look at the device's state before you send anything again.",
            details={"reason": "interrupted"},
        )
        emit({"error": problem.document()})


def _guarded(program: str, argv: list[str], run: Callable[[], int]) -> int:
    try:
        return run()
    except (KeyboardInterrupt, Interrupted):
        note(f"{program}: interrupted")
        return exits.INTERRUPTED
    except UsageProblem as problem:
        return usage(program, argv, str(problem), problem.command)
    except BadEndpoint as problem:
        return usage(program, argv, str(problem))
    except MHSError as problem:
        return report(program, problem, as_json=wants_json(argv))
    except Exception as defect:  # The outermost boundary: a defect is one line too.
        if os.environ.get("MHS_TRACEBACK"):
            raise
        message = f"{type(defect).__name__}: {defect}"
        hint = "This is a defect of the program; run again with MHS_TRACEBACK=1 and report what it prints."
        return report(program, error("MHS.INTERNAL.ERROR", message, hint), as_json=wants_json(argv))


def usage(program: str, argv: list[str], message: str, command: str | None = None) -> int:
    """Reports a usage error, with where to find help."""
    word = f" {argv[0]}" if argv and argv[0].isalpha() and program != "mhsd" else ""
    hint = f"See `{command or program + word} --help`."
    if wants_json(argv):
        refusal = error("MHS.PROTOCOL.INVALID_PARAMS", message, hint, details={"reason": "usage"})
        emit({"error": refusal.document()})
    else:
        note([f"{program}: {plain(message)}", hint])
    return exits.USAGE


def report(program: str, problem: MHSError, *, as_json: bool) -> int:
    """Reports an error for which no receipt exists, on stdout with `--json`, else on stderr."""
    if as_json:
        emit({"error": problem.document()})
    else:
        http = f" (HTTP {problem.http_status})" if problem.http_status not in (None, 200) else ""
        note(f"{program}: {plain(problem.message)}")
        note(f"  {plain(problem.mhs_code)}{http}")
        note([f"  {plain(name)}: {value(content)}" for name, content in problem.details.items()])
        if problem.remediation:
            note(f"  {advice(problem.remediation, problem.details)}")
    return exits.of_error(problem.mhs_code)
