"""`run`: a code file, run here, with a ledger of the receipts that it got.

The file runs as `python` would run it. What ends it decides the exit code; the ledger is written whatever that was.
"""

import atexit
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from mhsd.base.clock import rfc3339
from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem, report
from mhsd.cli.command import client_command
from mhsd.cli.inputs import output_file
from mhsd.cli.link import Link
from mhsd.cli.render import receipt_lines
from mhsd.cli.terminal import Paint, emit, note, plain
from mhsd.client import lab, ledger
from mhsd.client.endpoint import BadEndpoint
from mhsd.client.errors import MHSError, MHSRejected, error
from mhsd.client.http import BadCertificates
from mhsd.client.stdio import ChildFailed
from mhsd.client.token_file import BadTokenFile


@client_command
def run(
    link: Link,
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="the code file; what follows is for it")],
    ledger_file: Annotated[
        Path | None,
        typer.Option("--ledger", metavar="FILE", help="where the ledger goes, else ./SCRIPT.ledger.json"),
    ] = None,
) -> int:
    """Runs a code file and writes its ledger [MHSD-9a-87]."""
    place, token = link.known.place, link.checked()
    path = ledger_file or Path(f"{script.stem}.ledger.json")
    source = _source(script)
    kept = _ledger(path, script, source)
    lab.default = lab.Default(place, token, link.timeout_s)
    process = os.getpid()
    with _stdout_for_json(wanted=link.json):
        end = _run(script, source, context.args, kept)
    if os.getpid() != process:
        return end.code  # A child that the code file forked: the ledger is its parent's.
    try:
        document = _finished(kept, end)
    except OSError as problem:
        lost = error(
            "MHS.INTERNAL.ERROR",
            f"the ledger {path} could not be written: {problem.strerror}",
            "The receipts are in the evidence of the endpoint.",
        )
        if not link.json:
            _tell(end)
        code = report(context.find_root().info_name or "mhsctl", lost, as_json=link.json)
        return end.code or code
    _show(link, path, document, end)
    return end.code


class _End(NamedTuple):
    """How a code file ended."""

    outcome: str
    code: int
    problem: MHSError | None = None
    where: str = ""


def _source(script: Path) -> bytes:
    try:
        return script.read_bytes()
    except OSError as problem:
        raise UsageProblem(f"{script} cannot be read: {problem.strerror}") from None


def _finished(kept: ledger.Ledger, end: "_End") -> dict[str, Any]:
    ended_at = rfc3339(time.time())
    try:
        return kept.finish(end.outcome, end.code, ended_at)
    except KeyboardInterrupt:
        # The code file had ended before: its ledger says so, and how.
        return kept.finish(end.outcome, end.code, ended_at)


def _ledger(path: Path, script: Path, source: bytes) -> ledger.Ledger:
    place = output_file(path)
    if place == script.resolve():
        raise UsageProblem(f"the ledger {path} would be written over the code file")
    try:
        return ledger.Ledger(place, str(script), source, rfc3339(time.time()))
    except OSError as problem:
        raise UsageProblem(f"the ledger {path} cannot be written: {problem.strerror}") from None


def _run(script: Path, source: bytes, arguments: Sequence[str], kept: ledger.Ledger) -> _End:
    """Runs the file to its end, whatever that is; what it left open is closed before the ledger is."""
    ledger.keep(kept)
    try:
        with _as_main(script, arguments) as module, _ended_as_by_python():
            exec(compile(source, str(script), "exec"), module.__dict__)  # noqa: S102 - what `run` is for
            end = _End("finished", exits.OK)
    except (
        BaseException
    ) as problem:  # A code file may end in any way, and its ledger is written all the same.
        end = _ended_by(problem, script)
    finally:
        ledger.keep(None)
    return end


@contextmanager
def _ended_as_by_python() -> Iterator[None]:
    """What Python does when a program has come to its end: its threads are waited for and its exit functions called.
    What it leaves open is closed then. Whoever presses Ctrl-C does not want to wait for threads."""
    # The order is Python's own, but what could not be closed is to be told.
    atexit.unregister(lab.close_all)
    os.register_at_fork(after_in_child=_end_by_signals)
    is_waited_for = True
    try:
        yield
    except KeyboardInterrupt:
        is_waited_for = False
        raise
    finally:
        try:
            if is_waited_for:
                # Python's own function, since nobody else can tell the threads of an executor to end.
                threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        finally:
            for trouble in lab.close_all():
                note(f"warning: {plain(trouble)}")


def _end_by_signals() -> None:
    """A child that the code file forks, as pools of processes do, is ended by signals as any other process is."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is signal.default_int_handler:
            signal.signal(signum, signal.SIG_DFL)


@contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[types.ModuleType]:
    """The process as the code file expects it: it is the main module, and its directory is where modules are found."""
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    before = sys.modules["__main__"], sys.argv, list(sys.path)
    sys.modules["__main__"] = module
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield module
    finally:
        sys.modules["__main__"], sys.argv, sys.path[:] = before


def _ended_by(problem: BaseException, script: Path) -> _End:
    """What an exception that left the code file means; what is a defect of the file is shown with its traceback."""
    where = _line(problem, script)
    if isinstance(problem, SystemExit):
        return _End(*_exit(problem.code))
    if isinstance(problem, KeyboardInterrupt | MHSError):
        for text in getattr(problem, "__notes__", ()):
            note(plain(text))
    if isinstance(problem, KeyboardInterrupt):
        return _End("interrupted", exits.INTERRUPTED, where=where)
    if isinstance(problem, MHSRejected):
        return _End("refused", exits.of_receipt(problem.receipt), problem, where)
    if isinstance(problem, MHSError):
        return _End("failed", exits.of_error(problem.mhs_code), problem, where)
    if isinstance(problem, BadEndpoint | BadTokenFile | BadCertificates):
        note(f"{where}: {plain(str(problem))}")
        return _End("failed", exits.USAGE, where=where)
    if isinstance(problem, ChildFailed):
        note([plain(line) for line in str(problem).split("\n")])
        return _End("failed", exits.FAILED, where=where)
    # The frames of this program stand above those of the file and tell nobody anything.
    lines = "".join(
        traceback.format_exception(type(problem), problem, _from_script(problem, script))
    ).splitlines()
    note([plain(line) for line in lines])
    return _End("failed", exits.FAILED, where=where)


def _exit(code: object) -> tuple[str, int]:
    """`sys.exit(…)`: a text is a message, and nothing is success."""
    if code is None or isinstance(code, int):
        return ("failed" if code else "finished"), int(code or 0)
    note(plain(str(code)))
    return "failed", exits.FAILED


def _from_script(problem: BaseException, script: Path) -> types.TracebackType | None:
    """The traceback from the code file's first frame on; none where it did not come to run, as with a wrong syntax."""
    frames = problem.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != str(script):
        frames = frames.tb_next
    return frames


def _line(problem: BaseException, script: Path) -> str:
    """Where in the code file it happened."""
    lines = [line for frame, line in traceback.walk_tb(problem.__traceback__) if _is_in(frame, script)]
    return f"{script.name}, line {lines[-1]}" if lines else script.name


def _is_in(frame: types.FrameType, script: Path) -> bool:
    return frame.f_code.co_filename == str(script)


@contextmanager
def _stdout_for_json(*, wanted: bool) -> Iterator[None]:
    """With --json stdout holds the document alone: what the code file prints goes to stderr [CORE-137]."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _show(link: Link, path: Path, document: Mapping[str, Any], end: _End) -> None:
    if link.json:
        receipt = _refused(end)
        told = {name: value for name, value in document.items() if name != "receipts"}
        errors = {} if end.problem is None else {"error": end.problem.document()}
        refused = {} if receipt is None else {"receipt": receipt}
        emit({"ledger": str(path), **told, "receipts": len(document["receipts"]), **errors, **refused})
        return
    _tell(end)
    count = len(document["receipts"])
    note(f"{end.outcome}; {count} receipt{'' if count == 1 else 's'} in {plain(str(path))}")


def _tell(end: _End) -> None:
    """What ended the code file, for a person."""
    receipt = _refused(end)
    if receipt is not None:
        note([f"{plain(end.where)}: stopped by a receipt that is {plain(str(receipt.get('status')))}"])
        note(receipt_lines(receipt, Paint(sys.stderr)))
    elif end.problem is not None:
        note([f"{plain(end.where)}: {plain(end.problem.message)}", f"  {plain(end.problem.mhs_code)}"])
        if end.problem.remediation:
            note(f"  {plain(end.problem.remediation)}")
    elif end.outcome == "interrupted":
        note(f"{plain(end.where)}: interrupted")


def _refused(end: _End) -> Mapping[str, Any] | None:
    """The receipt that stopped it."""
    return end.problem.receipt if isinstance(end.problem, MHSRejected) else None
