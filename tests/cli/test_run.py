"""`run` and `evidence --ledger` through real processes: code files, how they end, and what their ledgers say."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mhsd.base.resources import schema_document
from mhsd.wire.schema import compile_schema
from tests.cli.conftest import BIN, PATIENCE_S, Daemon, Done, ctl, environment

STEP = 'lab.invoke("cap.world.step.v1", {"ticks": 1})'
TOO_FAST = 'lab.invoke("cap.motion.convey.v1", {"distance_mm": 10, "speed_mm_s": 900})'
NEAR = 'lab.invoke("cap.motion.convey.v1", {"distance_mm": 50, "speed_mm_s": 100})'
FAR = 'lab.invoke("cap.motion.convey.v1", {"distance_mm": 100000, "speed_mm_s": 100})'

Run = Callable[..., Done]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    served = Daemon("conveyor-workcell", "--rate-per-s", "10000", cwd=tmp_path_factory.mktemp("run"))
    yield served
    served.stop()


def code_file(directory: Path, *lines: str, name: str = "sweep.py", lab: str = "mhsd.lab()") -> Path:
    """A code file with these lines in its session."""
    body = textwrap.indent("\n".join(lines or ("pass",)), "    ")
    path = directory / name
    path.write_text(f"import sys\n\nimport mhsd\n\nwith {lab} as lab:\n{body}\n")
    return path


@pytest.fixture
def run(daemon: Daemon, tmp_path: Path) -> Run:
    """Runs a code file of these lines in a directory of its own."""

    def start(*lines: str, words: tuple[str, ...] = ("sweep.py",), **more: str) -> Done:
        code_file(tmp_path, *lines)
        return ctl("run", *words, cwd=tmp_path, MHS_ENDPOINT=daemon.url, **more)

    return start


def ledger_of(directory: Path, name: str = "sweep.ledger.json") -> dict[str, Any]:
    ledger: dict[str, Any] = json.loads((directory / name).read_text())
    schema = compile_schema(schema_document("ledger"), resolve=schema_document)
    assert schema.errors(ledger) == []
    return ledger


def test_a_code_file_runs_as_a_script_and_leaves_its_ledger(run: Run, tmp_path: Path) -> None:
    """[MHSD-9a-87]"""
    (tmp_path / "helper.py").write_text("TICKS = 2\n")
    done = run(
        "from helper import TICKS",
        'print(__name__, __file__, sys.argv[1:], lab.invoke("cap.world.step.v1", {"ticks": TICKS}).ok)',
        words=("sweep.py", "--json", "-e", ""),
    )
    assert (done.code, done.out) == (0, "__main__ sweep.py ['--json', '-e', ''] True\n")
    assert done.err == "finished; 1 receipt in sweep.ledger.json\n"
    ledger = ledger_of(tmp_path)
    assert (ledger["script"], ledger["outcome"], ledger["exit_code"]) == ("sweep.py", "finished", 0)
    assert ledger["endpoint_id"] == "mhs://localhost:7400"
    assert [each["status"] for each in ledger["receipts"]] == ["completed"]


def test_a_code_file_stops_at_the_first_refusal(run: Run, tmp_path: Path) -> None:
    """[CORE-140]"""
    done = run(STEP, TOO_FAST, 'print("not reached")')
    assert (done.code, done.out) == (1, "")
    assert "sweep.py, line 7: stopped by a receipt that is rejected" in done.err
    assert "speed_mm_s = 900 mm/s is above the manifest limit of 500 mm/s" in done.err
    assert "Traceback" not in done.err
    ledger = ledger_of(tmp_path)
    assert (ledger["outcome"], ledger["exit_code"]) == ("refused", 1)
    assert [each["mhs_code"] for each in ledger["receipts"]] == [None, "MHS.SAFETY.ENVELOPE_VIOLATION"]


def test_a_code_file_that_checks_for_itself_gets_every_receipt(daemon: Daemon, tmp_path: Path) -> None:
    """[CORE-140]"""
    code_file(tmp_path, f"print({TOO_FAST}.status)", STEP, lab="mhsd.lab(check=False)")
    done = ctl("run", "sweep.py", cwd=tmp_path, MHS_ENDPOINT=daemon.url)
    assert (done.code, done.out) == (0, "rejected\n")
    assert [each["status"] for each in ledger_of(tmp_path)["receipts"]] == ["rejected", "completed"]


def test_an_exception_of_a_refusal_has_the_receipt(run: Run) -> None:
    done = run(
        "try:",
        f"    {TOO_FAST}",
        "except mhsd.MHSRejected as refused:",
        "    print(refused.mhs_code, refused.receipt.status)",
    )
    assert (done.code, done.out) == (0, "MHS.SAFETY.ENVELOPE_VIOLATION rejected\n")


@pytest.mark.parametrize(
    ("lines", "code", "outcome", "text"),
    [
        (("sys.exit(3)",), 3, "failed", ""),
        (("sys.exit()",), 0, "finished", ""),
        (('sys.exit("no sample")',), 1, "failed", "no sample"),
        (("1 / 0",), 1, "failed", "ZeroDivisionError"),
        (("lab.client.call('mhs.nonsense')",), 1, "failed", "MHS.PROTOCOL.METHOD_NOT_FOUND"),
        (("mhsd.connect('ftp://bench')",), 2, "failed", "ftp://bench"),
        (("mhsd.connect('http://127.0.0.1:1').hello()",), 3, "failed", "MHS.TRANSPORT.UNAVAILABLE"),
        (("mhsd.connect('stdio:false').hello()",), 3, "failed", "the endpoint ended"),
        (("mhsd.connect('http://192.0.2.1')",), 4, "failed", "MHS.AUTH.TRANSPORT_INSECURE"),
        (("raise KeyboardInterrupt",), 130, "interrupted", "sweep.py, line 6: interrupted"),
    ],
)
def test_what_ends_a_code_file_decides_the_exit_code(
    run: Run, tmp_path: Path, lines: tuple[str, ...], code: int, outcome: str, text: str
) -> None:
    """[TPT-052]"""
    done = run(*lines)
    assert (done.code, done.out) == (code, ""), done.err
    assert text in done.err
    ledger = ledger_of(tmp_path)
    assert (ledger["outcome"], ledger["exit_code"]) == (outcome, code)


def test_the_traceback_of_a_defect_begins_in_the_code_file(run: Run) -> None:
    lines = run("def divide():", "    return 1 / 0", "divide()").err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].startswith('  File "sweep.py", line 8, in <module>')
    assert "cmd_run" not in "".join(lines)


def test_a_file_that_is_no_python_is_said_to_be_so(run: Run, tmp_path: Path) -> None:
    done = run("this is no python")
    assert done.code == 1
    assert "SyntaxError" in done.err
    assert ledger_of(tmp_path)["receipts"] == []


def test_with_json_stdout_is_the_document_alone(run: Run, tmp_path: Path) -> None:
    """[CORE-137]"""
    done = run('print("hello")', STEP, TOO_FAST, words=("--json", "sweep.py"))
    assert done.code == 1
    assert done.err == "hello\n"
    ledger = ledger_of(tmp_path)
    document = done.json
    refused, error = document.pop("receipt"), document.pop("error")
    assert document == {**ledger, "ledger": "sweep.ledger.json", "receipts": 2}
    assert error["mhs_code"] == "MHS.SAFETY.ENVELOPE_VIOLATION"
    assert set(error) == {"mhs_code", "message", "retryable", "data", "remediation"}
    assert refused["receipt_id"] == ledger["receipts"][1]["receipt_id"]


def test_a_session_that_was_left_open_is_closed(daemon: Daemon, tmp_path: Path) -> None:
    far = FAR.replace("lab.invoke(", "mhsd.lab().invoke(").replace("})", "}, deadline_ms=20, wait=False)")
    (tmp_path / "left.py").write_text(f"import mhsd\n\nprint({far}.status)\n")
    done = ctl("run", "left.py", cwd=tmp_path, MHS_ENDPOINT=daemon.url)
    assert (done.code, done.out) == (0, "running\n")
    (entry,) = ledger_of(tmp_path, "left.ledger.json")["receipts"]
    found = daemon.ctl("ops", entry["operation_id"], "--json")
    assert found.json["status"] == "cancelled"


def test_ctrl_c_stops_the_operation_and_its_receipt_is_in_the_ledger(daemon: Daemon, tmp_path: Path) -> None:
    """[TPT-052]"""
    code_file(tmp_path, 'print("now", flush=True)', FAR)
    process = subprocess.Popen(
        [BIN / "mhsctl", "run", "--ledger", "kept.json", "sweep.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(MHS_ENDPOINT=daemon.url),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    wait_for_the_belt(daemon)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, told
    assert "The operation was stopped: <Receipt cancelled" in told
    ledger = ledger_of(tmp_path, "kept.json")
    assert ledger["outcome"] == "interrupted"
    assert [each["status"] for each in ledger["receipts"]] == ["cancelled"]
    assert daemon.ctl("evidence", "--ledger", str(tmp_path / "kept.json")).code == 0


def wait_for_the_belt(daemon: Daemon) -> None:
    for _ in range(PATIENCE_S):
        if daemon.ctl("read", "belt", "--json").json["state"]["running"]:
            return
    raise AssertionError("the belt does not move")


def test_the_ledger_is_checked_against_the_evidence(daemon: Daemon, run: Run, tmp_path: Path) -> None:
    """[TPT-050]"""
    run(STEP, STEP)
    path = tmp_path / "sweep.ledger.json"
    good = daemon.ctl("evidence", "--ledger", str(path), "--json")
    assert good.code == 0
    assert good.json["ledger"] == {"valid": True, "entries": 2, "checked": 2, "unlisted": 0, "errors": []}
    assert good.json["valid"] is True
    path.write_text(path.read_text().replace('"completed"', '"failed"', 1))
    bad = daemon.ctl("evidence", "--ledger", str(path))
    assert bad.code == 1
    assert "LEDGER NOT VALID" in bad.out
    assert "entry 1: the evidence has another status" in bad.out


def test_a_ledger_is_checked_against_a_stored_bundle_too(daemon: Daemon, run: Run, tmp_path: Path) -> None:
    run(STEP)
    bundle, ledger = str(tmp_path / "bundle.json"), str(tmp_path / "sweep.ledger.json")
    assert daemon.ctl("evidence", "-o", bundle).code == 0
    done = ctl("evidence", "--file", bundle, "--ledger", ledger)
    assert done.code == 0
    assert "LEDGER VALID  1 of 1" in done.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("nowhere.py",), "nowhere.py cannot be read"),
        ((".",), "cannot be read"),
        (("--ledger", "nowhere/ledger.json", "sweep.py"), "ledger nowhere/ledger.json cannot be written"),
        (("--ledger", "/dev/null", "sweep.py"), "/dev/null is no regular file"),
        (("--ledger", ".", "sweep.py"), ". is no regular file"),
        (("--ledger", "./sweep.py", "sweep.py"), "would be written over the code file"),
        (("--token-file", "nowhere", "sweep.py"), "nowhere"),
        (("--frobnicate", "sweep.py"), "--frobnicate"),
        ((), "SCRIPT"),
    ],
)
def test_a_wrong_command_line_runs_nothing(
    run: Run, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    done = run('print("ran")', words=words)
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert not (tmp_path / "sweep.ledger.json").exists()


def test_the_endpoint_of_the_command_line_is_the_code_files(daemon: Daemon, tmp_path: Path) -> None:
    code_file(tmp_path, STEP)
    done = ctl("run", "-e", daemon.url, "sweep.py", cwd=tmp_path, MHS_ENDPOINT="http://127.0.0.1:1")
    assert done.code == 0, done.err
    lost = ctl("run", "sweep.py", cwd=tmp_path, MHS_ENDPOINT="http://127.0.0.1:1")
    assert lost.code == 3


def test_a_code_file_starts_an_endpoint_of_its_own(tmp_path: Path) -> None:
    code_file(tmp_path, STEP)
    done = ctl("run", "-e", f"stdio:{BIN / 'mhsd'} --stdio", "sweep.py", cwd=tmp_path)
    assert done.code == 0, done.err
    assert [each["status"] for each in ledger_of(tmp_path)["receipts"]] == ["completed"]


def test_a_code_file_runs_without_mhsctl_as_well(daemon: Daemon, tmp_path: Path) -> None:
    code_file(tmp_path, f"print({STEP}.ok)")
    done = ctl("sweep.py", cwd=tmp_path, program="python", MHS_ENDPOINT=daemon.url)
    assert (done.code, done.out) == (0, "True\n")
    assert not (tmp_path / "sweep.ledger.json").exists()


def of(tmp_path: Path, *lines: str) -> None:
    """A code file whose session stays open at its end."""
    text = "\n".join(["import atexit, os, sys, threading", "import mhsd", "lab = mhsd.lab()", *lines])
    (tmp_path / "sweep.py").write_text(text + "\n")


ENDINGS = {
    "threads": (
        "def work():",
        "    threading.main_thread().join()",
        f"    print({STEP}.ok)",
        "threading.Thread(target=work).start()",
    ),
    "an executor": (
        "from concurrent.futures import ThreadPoolExecutor",
        f"ThreadPoolExecutor(1).submit(lambda: print({NEAR}.ok))",
    ),
    "exit functions": (f"atexit.register(lambda: print({STEP}.ok))",),
    "another directory": ("os.chdir('/')", f"print({STEP}.ok)"),
    "a child": (
        "if os.fork() == 0: sys.exit('the child')",
        "os.wait()",
        f"print({STEP}.ok)",
    ),
    "a pool of processes": (
        "import multiprocessing",
        "with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(abs, [1, 2])",
        f"print({STEP}.ok)",
    ),
}


@pytest.mark.parametrize("lines", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_code_file_ends_as_python_ends_it(daemon: Daemon, tmp_path: Path, lines: tuple[str, ...]) -> None:
    """[MHSD-9a-87]"""
    of(tmp_path, *lines)
    done = ctl("run", "sweep.py", cwd=tmp_path, MHS_ENDPOINT=daemon.url)
    assert (done.code, done.out) == (0, "True\n"), done.err
    assert "Traceback" not in done.err
    assert done.err.endswith("finished; 1 receipt in sweep.ledger.json\n")
    assert len(ledger_of(tmp_path)["receipts"]) == 1
    again = ctl("sweep.py", cwd=tmp_path, program="python", MHS_ENDPOINT=daemon.url)
    assert (again.code, again.out) == (0, "True\n"), again.err


def test_whoever_interrupts_a_code_file_does_not_wait_for_its_threads(daemon: Daemon, tmp_path: Path) -> None:
    """[TPT-052]"""
    of(tmp_path, f"threading.Thread(target=lambda: {FAR}).start()", "raise KeyboardInterrupt")
    done = ctl("run", "sweep.py", cwd=tmp_path, MHS_ENDPOINT=daemon.url)
    assert done.code == 130, done.err
    assert ledger_of(tmp_path)["outcome"] == "interrupted"


def test_a_ledger_that_cannot_be_written_at_the_end_is_told(daemon: Daemon, tmp_path: Path) -> None:
    place = tmp_path / "taken away"
    place.mkdir()
    removal = "import shutil; shutil.rmtree('taken away')"
    of(tmp_path, removal, f"print({STEP}.ok)")
    words = ("--ledger", "taken away/ledger.json")
    done = ctl("run", *words, "sweep.py", cwd=tmp_path, MHS_ENDPOINT=daemon.url)
    assert (done.code, done.out) == (1, "True\n")
    assert "the ledger taken away/ledger.json could not be written: No such file or directory" in done.err
    place.mkdir()
    of(tmp_path, removal, "sys.exit(3)")
    done = ctl("run", "--json", *words, "sweep.py", cwd=tmp_path, MHS_ENDPOINT=daemon.url)
    assert done.code == 3
    assert "could not be written" in done.json["error"]["message"]


def test_a_ledger_behind_a_link_is_written_where_the_link_leads(daemon: Daemon, tmp_path: Path) -> None:
    code_file(tmp_path, STEP)
    (tmp_path / "kept.json").symlink_to("real.json")
    done = ctl("run", "--ledger", "kept.json", "sweep.py", cwd=tmp_path, MHS_ENDPOINT=daemon.url)
    assert done.code == 0
    assert (tmp_path / "kept.json").is_symlink()
    assert ledger_of(tmp_path, "real.json")["outcome"] == "finished"
