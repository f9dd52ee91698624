"""Kill -9 under load and disks that fail: what was acknowledged is there, and nothing runs twice.

A bounded number of rounds here; `make soak` runs hundreds (MHSD_SOAK_ROUNDS).
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from tests.crash.campaign import ENDPOINT, MARK, ROOT, WITNESSES, Campaign, chain_of, faulty
from tests.lab import ask_until, ulid

ROUNDS = int(os.environ.get("MHSD_SOAK_ROUNDS", "7"))
SEED = int(os.environ.get("MHSD_SOAK_SEED", "20261020"))
ROUNDS_A_CHAIN = 10
"""Each check reads the whole chain, so a new one is begun now and then."""
BINDINGS = ("http", "stdio")
FAULTS = ("write", "flush", "late_flush")


def last_look(campaign: Campaign) -> None:
    """The chain at the end, by the script as anybody would run it."""
    with campaign.daemon("http") as lab:
        campaign.check(lab)
        bundle = chain_of(lab)
    file = campaign.directory / "bundle.json"
    file.write_text(json.dumps(bundle))
    script = ROOT / "scripts" / "verify_evidence.py"
    said = subprocess.run(
        [sys.executable, str(script), str(file)], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.startswith(f"valid: {len(bundle['receipts'])} receipts")


def test_whatever_was_acknowledged_survives_kill_9_and_nothing_runs_twice(tmp_path: Path) -> None:
    """[OP-001, OP-003, OP-006, OP-013, EVID-001, EVID-003, CORE-172]"""
    choose = random.Random(SEED)
    kills = acknowledged = doubtful = 0
    for start in range(0, ROUNDS, ROUNDS_A_CHAIN):
        directory = tmp_path / f"chain-{start}"
        directory.mkdir()
        campaign = Campaign(directory, choose)
        for number in range(start, min(start + ROUNDS_A_CHAIN, ROUNDS)):
            campaign.killed_round(BINDINGS[number % 2])
            doubtful += sum(not sent.settled for sent in campaign.sent)
        last_look(campaign)
        kills += campaign.kills
        acknowledged += sum(len(sent.receipts) for sent in campaign.sent)
    assert kills == ROUNDS
    assert acknowledged > 5 * ROUNDS, "the load was no load"
    assert doubtful > ROUNDS, "the kills met nothing in flight"


def test_whatever_was_acknowledged_survives_a_disk_that_fails_and_nothing_runs_twice(tmp_path: Path) -> None:
    """[OP-001, OP-003, OP-006, OP-013, OP-014, EVID-001, CORE-172]"""
    choose = random.Random(SEED + 1)
    rounds = max(len(FAULTS), ROUNDS // 2)
    for start in range(0, rounds, ROUNDS_A_CHAIN):
        directory = tmp_path / f"chain-{start}"
        directory.mkdir()
        campaign = Campaign(directory, choose)
        for number in range(start, min(start + ROUNDS_A_CHAIN, rounds)):
            campaign.faulty_round(BINDINGS[number % 2], FAULTS[number % len(FAULTS)])
        last_look(campaign)


def test_a_start_that_cannot_record_what_was_in_flight_says_so_in_one_line(tmp_path: Path) -> None:
    """And the next start, on a disk that works, records it. [OP-006]"""
    campaign = Campaign(tmp_path, random.Random(SEED))
    with campaign.daemon("stdio") as lab:
        session = lab.open(device_id=ENDPOINT + WITNESSES[0])
        command_id = ulid()
        session.begin(MARK, {"wait_ms": 1000}, command_id=command_id, deadline_ms=10_000)
        ask_until(lambda: campaign.log(WITNESSES[0]).read_text(), lambda log: command_id in log)
        lab.kill()
    ended = subprocess.run(
        [*faulty("flush", 1), *campaign.arguments(), "--stdio"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[-1] == (
        f"mhsd: {tmp_path / 'state'}: a write failed: disk I/O error: free or repair the disk, then start again"
    )
    assert "Traceback" not in ended.stderr
    with campaign.daemon("stdio") as lab:
        receipt = lab.open(device_id=ENDPOINT + WITNESSES[0]).look_up(command_id)
        assert receipt["error"]["data"]["details"]["reason"] == "endpoint_restarted"
