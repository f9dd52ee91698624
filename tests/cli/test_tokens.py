"""`token new|list|revoke`: the file is changed whole, keeps what stood in it, and a running daemon follows it."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mhsd.cli import token_table
from tests.cli.conftest import BIN, Daemon, Done, ctl, environment
from tests.cli.shapes import has_shape, shapes
from tests.cli.shell import Shell, shells

TABLE = """\
# The tokens of hall 2. Ask Kim before you change this.

[[token]]   # the night run
sha256 = "{a}"
principal = "agent:night"
devices = [
  "mhs://localhost:7400/lab/conveyor-workcell",   # this one only
]

# Kim's laptop
[[token]]
sha256 = "sha256:{b}"
principal = "human:kim"
kind = "human"
role = "operator"
expires_at = 2020-01-01T00:00:00Z

# A certificate.
[[client_cert]]
subject = "CN=bench"
principal = "service:bench"

[[token]]
sha256 = "{c}"
principal = "agent:night"
# the last word
""".format(**{name: name * 64 for name in "abc"})


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    yield from shells(monkeypatch, capsys)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A token file with comments and entries of every kind."""
    path = tmp_path / "tokens.toml"
    path.write_text(TABLE)
    path.chmod(0o600)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def new(file: Path, *words: str) -> Done:
    return ctl("token", "new", "--file", str(file), *words)


# --- with a running daemon --------------------------------------------------------------------


def test_a_new_token_works_in_a_running_daemon_and_a_revoked_one_stops_at_once(tmp_path: Path) -> None:
    """[MHSD-6-02] From minting over use to revoking, without a restart [TPT-059]."""
    file = tmp_path / "tokens.toml"
    first = new(file, "--principal", "human:kim", "-o", str(tmp_path / "kim.token"))
    assert first.code == 0
    daemon = Daemon("conveyor-workcell", "--token-file", str(file), cwd=tmp_path)
    try:
        kim = ("--token-file", str(tmp_path / "kim.token"))
        assert daemon.ctl("devices").code == 4
        assert daemon.ctl("devices", *kim).code == 0

        made = new(file, "--principal", "agent:night", "--json").json
        night = tmp_path / "night.token"
        night.write_text(made["token"])
        night.chmod(0o600)
        done = daemon.ctl("call", "-c", "cap.device.describe.v1", "--token-file", str(night), "--json")
        assert (done.code, done.json["principal"]["id"]) == (0, "agent:night")

        revoked = ctl("token", "revoke", "agent:night", "--file", str(file), "--json")
        assert (revoked.code, revoked.json["left"]) == (0, 1)
        has_shape(revoked.json, shapes()["token revoke"])
        refused = daemon.ctl("devices", "--token-file", str(night), "--json")
        assert (refused.code, refused.json["error"]["mhs_code"]) == (4, "MHS.AUTH.UNAUTHENTICATED")
        assert daemon.ctl("devices", *kim).code == 0
        assert made["token"] not in daemon.log.read_text() + file.read_text()
    finally:
        daemon.stop()


def test_roles_and_limits_of_a_token_are_the_endpoints_to_keep(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    for role in ("reader", "operator"):
        new(file, "--principal", f"human:{role}", "--role", role, "-o", str(tmp_path / role))
    daemon = Daemon("conveyor-workcell", "--token-file", str(file), cwd=tmp_path)
    try:
        valve = ("call", "-c", "cap.actuation.valve.v1", "-i", '{"open": true}')
        assert daemon.ctl("read", "belt", "--token-file", str(tmp_path / "reader")).code == 0
        assert daemon.ctl(*valve, "--token-file", str(tmp_path / "reader")).code == 1
        assert daemon.ctl(*valve, "--token-file", str(tmp_path / "operator")).code == 0
    finally:
        daemon.stop()


# --- the file ---------------------------------------------------------------------------------


def test_a_token_is_shown_once_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    """[MHSD-6-02]"""
    file = tmp_path / "tokens.toml"
    done = new(file, "--principal", "human:kim", "--role", "reader", "--expires", "30d", "--json")
    assert (done.code, done.err) == (0, "")
    has_shape(done.json, {**shapes()["token new"], "expires_at": ""})
    secret = done.json["token"]
    assert len(secret) >= 40
    assert done.json["sha256"] == hashlib.sha256(secret.encode()).hexdigest()
    assert mode(file) == 0o600
    entry = tomllib.loads(file.read_text())["token"][0]
    assert secret not in file.read_text()
    assert (entry["principal"], entry["kind"], entry["role"]) == ("human:kim", "human", "reader")
    assert timedelta(days=29) < entry["expires_at"] - datetime.now(UTC) <= timedelta(days=30)

    person = new(file, "--principal", "human:kim")
    shown = person.out.split()[1]
    assert hashlib.sha256(shown.encode()).hexdigest() in file.read_text()
    assert "once" in person.err
    assert shown not in ctl("token", "list", "--file", str(file)).out


def test_a_secret_goes_to_a_file_of_its_own_and_is_shown_nowhere(tmp_path: Path) -> None:
    secret_file = tmp_path / "kim.token"
    words = ("--principal", "human:kim", "-o", str(secret_file))
    done = new(tmp_path / "tokens.toml", *words)
    secret = secret_file.read_text().strip()
    assert (done.code, mode(secret_file)) == (0, 0o600)
    assert secret not in done.out + done.err
    before = (tmp_path / "tokens.toml").read_text()
    again = new(tmp_path / "tokens.toml", *words)
    assert again.code == 2
    assert "not written over" in again.err
    assert (tmp_path / "tokens.toml").read_text() == before


def test_what_stood_in_the_file_stays_byte_by_byte(file: Path) -> None:
    file.chmod(0o640)
    assert new(file, "--principal", 'human:"k\\im"', "--note", "Ünïcode").code == 0
    text = file.read_text()
    assert text.startswith(TABLE)
    assert mode(file) == 0o600
    assert tomllib.loads(text)["token"][3]["principal"] == 'human:"k\\im"'


def test_a_list_shows_everybody_and_who_has_expired(file: Path) -> None:
    done = ctl("token", "list", "--file", str(file), "--json")
    assert done.code == 0
    has_shape(done.json, shapes()["token list"])
    assert [entry["principal"] for entry in done.json["tokens"]] == [
        "agent:night",
        "human:kim",
        "agent:night",
    ]
    assert [entry["expired"] for entry in done.json["tokens"]] == [False, True, False]
    assert done.json["client_certs"][0]["subject"] == "CN=bench"
    lines = ctl("token", "list", "--file", str(file)).out.splitlines()
    assert [line.split()[0] for line in lines] == ["SHA256", "a" * 12, "b" * 12, "c" * 12, "certificate"]
    assert "expired" in lines[2]


@pytest.mark.parametrize(
    ("who", "numbers"),
    [("agent:night", {0, 2}), ("human:kim", {1}), ("bbbbbb", {1}), ("sha256:" + "C" * 64, {2})],
)
def test_revoking_takes_exactly_what_is_named_and_keeps_every_comment(
    file: Path, who: str, numbers: set[int]
) -> None:
    assert ctl("token", "revoke", who, "--file", str(file)).code == 0
    before, after = tomllib.loads(TABLE), tomllib.loads(file.read_text())
    left = [entry for number, entry in enumerate(before["token"]) if number not in numbers]
    assert after.get("token", []) == left
    assert after["client_cert"] == before["client_cert"]
    for comment in ("# The tokens of hall 2.", "# Kim's laptop", "# A certificate.", "# the last word"):
        assert comment in file.read_text()
    assert mode(file) == 0o600


def test_the_last_token_that_goes_is_warned_about(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    new(file, "--principal", "human:kim")
    done = ctl("token", "revoke", "human:kim", "--file", str(file))
    assert done.code == 0
    assert "lets nobody in" in done.err
    assert ctl("token", "list", "--file", str(file)).out.strip() == f"{file} lets nobody in"


def test_tokens_that_are_made_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    words = [BIN / "mhsctl", "token", "new", "--file", str(file)]
    making = [
        subprocess.Popen(
            [*words, "--principal", f"agent:{number}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        for number in range(4)
    ]
    assert [process.wait(60) for process in making] == [0] * 4
    assert len(tomllib.loads(file.read_text())["token"]) == 4
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("content", "words", "told"),
    [
        ("one-bare-secret\n", ("list",), "bare token"),
        ("one-bare-secret\n", ("new", "--principal", "human:kim"), "bare token"),
        ("[[token]]\n", ("list",), "sha256"),
        ("not toml at = all [\n", ("list",), "TOML"),
        (TABLE, ("revoke", "human:nobody"), "human:kim"),
        (TABLE, ("revoke", "bbb"), "6 digits or more"),
        (TABLE, ("new", "--principal", "  "), "--principal"),
        (TABLE, ("new", "--principal", "a\nb"), "control characters"),
        (TABLE, ("new", "--principal", "a", "--expires", "soon"), "30d"),
        (TABLE, ("new", "--principal", "a", "--expires", "2020-01-01T00:00:00Z"), "passed"),
        (TABLE, ("new", "--principal", "a", "--expires", "2099-01-01T00:00:00"), "offset"),
        (TABLE, ("new", "--principal", "a", "--expires", "2099-01-01"), "time of day"),
        (TABLE, ("new", "--principal", "a", "--role", "king"), "--role"),
    ],
)
def test_what_cannot_be_is_a_usage_error_and_changes_nothing(
    shell: Shell, tmp_path: Path, content: str, words: tuple[str, ...], told: str
) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(content)
    file.chmod(0o600)
    done = shell("token", *words, "--file", str(file))
    assert done.code == 2
    assert told in done.err
    assert file.read_text() == content
    assert "one-bare-secret" not in done.err


def test_a_file_that_is_not_there_is_named(shell: Shell, tmp_path: Path) -> None:
    for words in (("list",), ("revoke", "human:kim")):
        done = shell("token", *words, "--file", str(tmp_path / "none.toml"))
        assert done.code == 2
        assert "token new" in done.err
    assert shell("token", "new", "--principal", "a", "--file", str(tmp_path / "no" / "t.toml")).code == 2


@pytest.mark.parametrize(
    "text",
    [
        'token = [{{sha256 = "{a}", principal = "x"}}]\n',
        '[[token]]\nsha256 = "{a}"\nprincipal = """x\n[[token]]\n"""\n[[token]]\nsha256 = "{b}"\nprincipal = "y"\n',
    ],
)
def test_what_is_written_unusually_is_left_for_a_person(text: str) -> None:
    """Taking out the wrong lines would let somebody in or lock somebody out."""
    text = text.format(a="a" * 64, b="b" * 64)
    with pytest.raises(Exception, match="by hand"):
        token_table.removed(text, {len(token_table.tokens(text)) - 1})


def test_a_file_of_another_user_is_not_taken_over(
    file: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """A renamed file would be this user's, and its daemon could not read it any more."""
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    done = shell("token", "new", "--principal", "a", "--file", str(file))
    assert done.code == 2
    assert "run this as that user" in done.err
    assert file.read_text() == TABLE


def test_a_link_is_written_through(file: Path, tmp_path: Path, shell: Shell) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    assert shell("token", "new", "--principal", "a", "--file", str(link)).code == 0
    assert link.is_symlink()
    assert len(_tokens(file)) == 4


def _tokens(file: Path) -> list[Any]:
    return list(tomllib.loads(file.read_text())["token"])
