"""A daemon that is killed under load, again and again, and what must be true each time it is back.

The truth is what the witness wrote down (`tests/crash/witness`): its lines are there whatever becomes of the daemon.
"""

import importlib.util
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from queue import Empty
from typing import Any

from tests.lab import Lab, RpcError, Session, request, running, ulid

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MARK = "x-cap.test.mark.v1"
WITNESSES = ("/test/witness", "/test/second")
ENDPOINT = "mhs://localhost:7400"
UNLIMITED = ("--rate-per-s", "1000000", "--rate-burst", "1000000", "--log-level", "error")
CLIENTS = 6
FINAL = ("completed", "failed", "cancelled", "unknown")
UNAVAILABLE = "MHS.INTERNAL.STORE_UNAVAILABLE"
GONE = (OSError, EOFError, HTTPException, Empty)
"""What a client sees of a daemon that was killed."""


def _script() -> Any:
    """scripts/verify_evidence.py, which checks a chain without any part of mhsd."""
    spec = importlib.util.spec_from_file_location("verify_evidence", ROOT / "scripts" / "verify_evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


verify_evidence = _script()


class Sent:
    """One command as its client knows it."""

    def __init__(self, path: str, wait_ms: int, deadline_ms: int) -> None:
        self.path = path
        self.command_id = ulid()
        self.params = {
            "device_id": ENDPOINT + path,
            "capability_id": MARK,
            "input": {"wait_ms": wait_ms},
            "command_id": self.command_id,
            "deadline_ms": deadline_ms,
        }
        self.receipts: list[dict[str, Any]] = []
        self.errors: list[str] = []
        self.times = 0

    @property
    def settled(self) -> bool:
        return any(receipt["status"] in (*FINAL, "rejected") and final(receipt) for receipt in self.receipts)

    def send(self, session: Session) -> None:
        """Send it, again or for the first time, and note the answer."""
        self.times += 1
        try:
            self.receipts.append(session.call("mhs.command", **self.params))
        except RpcError as error:
            self.errors.append(error.code)


def final(receipt: dict[str, Any]) -> bool:
    """Whether it is more than the interim receipt of a command that goes on."""
    interim = receipt["status"] == "unknown" and receipt["error"]["mhs_code"] == "MHS.OUTCOME.TIMEOUT"
    return receipt["status"] not in ("accepted", "running") and not interim


class Campaign:
    """Rounds on one state directory. `choose` decides everything that is left to chance."""

    def __init__(self, directory: Path, choose: random.Random) -> None:
        self.directory = directory
        self.choose = choose
        self.sent: list[Sent] = []
        self.stops: list[dict[str, Any]] = []
        self.kills = 0

    @contextmanager
    def daemon(self, binding: str, program: Sequence[str] | None = None) -> Iterator[Lab]:
        more = {} if program is None else {"program": program, "PYTHONPATH": str(ROOT)}
        with running(binding, self.directory, targets=self.arguments(), **more) as lab:
            yield lab

    def arguments(self) -> list[str]:
        """Of mhsd: both witnesses, each with its file, on the campaign's state directory."""
        targets = [str(HERE / "witness"), *(f"{HERE / 'witness'}@{path}" for path in WITNESSES[1:])]
        options = [word for path in WITNESSES for word in ("--option", f"{path}:log={self.log(path)}")]
        return [*targets, *options, "--state-dir", str(self.directory / "state"), *UNLIMITED]

    def log(self, path: str) -> Path:
        return self.directory / f"{Path(path).name}.log"

    # Load.

    def killed_round(self, binding: str) -> None:
        """Clients at work, at some moment an emergency stop perhaps, at some moment the end of the process."""
        with self.daemon(binding) as lab:
            self.check(lab)
            stopping = self.choose.random() < 0.3
            with self.load(lab, lambda sent: False):
                # The moment is random, not a wait for anything.
                threading.Event().wait(self.choose.uniform(0.02, 0.5))
                if stopping:
                    self.stops.append(lab.call("mhs.safety.estop", reason="smoke"))
                    threading.Event().wait(self.choose.uniform(0, 0.02))
                lab.kill()
            self.kills += 1

    def faulty_round(self, binding: str, kind: str) -> None:
        """Clients at work on a disk that begins to fail; they stop when nothing is taken any more."""
        with self.daemon(binding) as lab:
            self.check(lab)
        count = self.choose.randrange(40, 400)
        with self.daemon(binding, faulty(kind, count)) as lab:
            with self.load(lab, lambda sent: [each.errors != [] for each in sent[-3:]] == [True] * 3):
                pass
            refused = [sent for sent in self.sent if UNAVAILABLE in sent.errors]
            assert len(refused) >= CLIENTS
            stop = lab.call("mhs.safety.estop", reason="the disk fails")
            assert (stop["status"], stop["output"]["latch_durable"]) == ("completed", True)
            self.stops.append(stop)
            lab.kill()
            self.kills += 1

    @contextmanager
    def load(self, lab: Lab, enough: Callable[[list[Sent]], bool]) -> Iterator[None]:
        """Clients of their own sessions, each on a device of its own choice, until `enough` or the daemon's end."""
        plans = [random.Random(self.choose.getrandbits(64)) for _ in range(CLIENTS)]
        sessions = [
            lab.open(device_id=ENDPOINT + WITNESSES[number % len(WITNESSES)]) for number in range(CLIENTS)
        ]
        problems: list[BaseException] = []
        lists: list[list[Sent]] = [[] for _ in plans]

        def work(number: int) -> None:
            path, plan, own = WITNESSES[number % len(WITNESSES)], plans[number], lists[number]
            try:
                while not enough(own):
                    if own and plan.random() < 0.1:
                        plan.choice(own).send(sessions[number])
                        continue
                    own.append(_next_command(path, plan))
                    own[-1].send(sessions[number])
            except GONE:
                return
            except BaseException as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        yield
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), "a client still waits for its answer"
        self.sent += [sent for own in lists for sent in own]
        assert not problems, problems[0]

    # Truth.

    def check(self, lab: Lab) -> None:
        """What must hold on a daemon that has just come up, and again after everything doubtful was sent again."""
        self._check_latches(lab)
        self._check_chain(chain_of(lab))
        self._send_again(lab)
        self._check_chain(chain_of(lab))

    def _check_latches(self, lab: Lab) -> None:
        stops, self.stops = self.stops, []
        for path in WITNESSES:
            status = lab.call("mhs.safety.status", device_id=ENDPOINT + path, deadline_ms=10_000)
            if any(stop["output"]["latch_durable"] for stop in stops):
                assert status["estop"]["engaged"] is True, "an acknowledged stop was lost"
            if status["estop"]["engaged"]:
                session = lab.open(device_id=ENDPOINT + path)
                reset = session.call("mhs.safety.reset", device_id=ENDPOINT + path, deadline_ms=10_000)
                assert reset["status"] == "completed", reset
                session.close()

    def _send_again(self, lab: Lab) -> None:
        """Every command whose outcome its client does not know is sent once more with its own id."""
        sessions = {path: lab.open(device_id=ENDPOINT + path) for path in WITNESSES}
        for sent in self.sent:
            if not sent.settled:
                sent.errors.clear()
                sent.send(sessions[sent.path])
                assert sent.errors == []
                assert sent.receipts[-1]["status"] in (*FINAL, "rejected")
        for session in sessions.values():
            session.close()

    def _check_chain(self, bundle: dict[str, Any]) -> None:
        assert list(verify_evidence.problems(bundle)) == []
        chain = bundle["receipts"]
        assert [receipt["evidence"]["seq"] for receipt in chain] == list(range(1, len(chain) + 1))
        self._check_acknowledged(chain)
        self._check_executions(chain)
        self._check_revisions(chain)

    def _check_acknowledged(self, chain: list[dict[str, Any]]) -> None:
        """No acknowledged receipt is lost or changed."""
        for sent in self.sent:
            for receipt in sent.receipts:
                if receipt["status"] in ("accepted", "running"):
                    continue
                assert chain[receipt["evidence"]["seq"] - 1] == {**receipt, "replayed": False}

    def _check_executions(self, chain: list[dict[str, Any]]) -> None:
        """Nothing ran twice, nothing that ran is said to be refused or unknown to everybody, and the reverse."""
        lines = [
            line.split()
            for path in WITNESSES
            if self.log(path).exists()
            for line in self.log(path).read_text().splitlines()
        ]
        started = Counter(command_id for word, command_id in lines if word == "start")
        ended = {command_id for word, command_id in lines if word == "end"}
        assert {command_id: count for command_id, count in started.items() if count > 1} == {}
        times_sent = {sent.command_id: sent.times for sent in self.sent}
        ends: dict[str, list[str]] = {}
        for receipt in chain:
            if final(receipt):
                ends.setdefault(receipt["command_id"], []).append(receipt["status"])
        for command_id in started:
            statuses = ends.get(command_id)
            assert statuses is not None, f"{command_id} ran and has no receipt"
            # A refusal does not reserve the id: whoever sends it again may get it done, once.
            refusals = statuses[: times_sent[command_id] - 1]
            assert set(statuses[:-1]) <= set(refusals) & {"rejected"}, f"{command_id} is {statuses}"
            assert statuses[-1] in FINAL, f"{command_id} ran and is {statuses[-1]}"
        completed = {command_id for command_id, statuses in ends.items() if "completed" in statuses}
        marked = {receipt["command_id"] for receipt in chain if receipt["capability_id"] == MARK}
        assert completed & marked <= ended, "a command is completed that never ended"
        for sent in self.sent:
            if sent.errors and set(sent.errors) == {UNAVAILABLE} and not sent.receipts:
                assert sent.command_id not in started, "it was refused and has run"

    def _check_revisions(self, chain: list[dict[str, Any]]) -> None:
        """Each device's revision moves on from where it was, also over a crash."""
        revisions: dict[str, int] = {}
        for receipt in chain:
            if "state_revision_after" not in receipt:
                continue
            device_id = receipt["device_id"]
            assert receipt["state_revision_before"] == revisions.get(device_id, 0), receipt
            revisions[device_id] = receipt["state_revision_after"]


def faulty(kind: str, count: int) -> list[str]:
    """The command line of an mhsd whose disk fails; see faulty_mhsd.py."""
    return [sys.executable, "-m", "tests.crash.faulty_mhsd", kind, str(count)]


def _next_command(path: str, plan: random.Random) -> Sent:
    kind = plan.random()
    if kind < 0.1:
        return Sent(path, 50_000, 10_000)  # Beyond the limit: a rejected receipt.
    if kind < 0.2:
        return Sent(path, plan.randrange(20, 60), 10)  # The caller does not wait for its end.
    return Sent(path, plan.choice((0, 0, 0, 1, 5, 30)), 10_000)


def chain_of(lab: Lab) -> dict[str, Any]:
    """Everything that the endpoint has recorded, as one bundle."""
    params: dict[str, Any] = {}
    bundle: dict[str, Any] = {}
    receipts: list[Any] = []
    while True:
        # The check of a page against its schema has tests of its own, and takes long.
        bundle = lab.wire.exchange(request("mhs.evidence.export", **params))["result"]
        receipts += bundle["receipts"]
        if bundle["truncation"] is None:
            return {**bundle, "receipts": receipts}
        params = {"since_receipt": bundle["truncation"]["next_since_receipt"]}
