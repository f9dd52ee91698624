"""Where endpoints of this machine are looked for, and what counts as one [MHSD-9a]."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mhsd.client import local
from mhsd.client.local import LocalSocket, directories, find_sockets, nobody_listens, socket_name, user_name

UID = os.geteuid()
ME = user_name(UID)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory that stands for the machine's root."""
    for name in ("run", "users", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(local, "SYSTEM_DIRECTORY", tmp_path / "run" / "mhsd")
    monkeypatch.setattr(local, "USERS_DIRECTORIES", tmp_path / "users")
    monkeypatch.setattr(local, "SHARED_DIRECTORIES", (tmp_path / "tmp",))
    return tmp_path


def make_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    return path


def test_every_place_is_looked_into_once(machine: Path) -> None:
    (machine / "users" / "1000").mkdir()
    own = machine / "tmp" / f"mhsd-{UID}"
    own.mkdir()
    found = directories({"MHSD_RUNTIME_DIR": str(own), "XDG_RUNTIME_DIR": str(machine / "users" / "1000")})
    assert sorted(found) == sorted([own, machine / "run" / "mhsd", machine / "users" / "1000" / "mhsd"])


@pytest.mark.parametrize(
    "environ", [{}, {"MHSD_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": "", "TMPDIR": ""}, {"TMPDIR": "relative"}]
)
def test_variables_that_say_nothing_name_no_place(machine: Path, environ: dict[str, str]) -> None:
    assert directories(environ) == [machine / "run" / "mhsd"]


def test_the_temporary_files_of_the_caller_count_beside_the_machines(machine: Path) -> None:
    (machine / "own").mkdir()
    for directory in (machine / "own", machine / "tmp"):
        (directory / f"mhsd-{UID}").mkdir()
        (directory / "mhsd-x").mkdir()
        (directory / f"mhsd-{UID}0").write_text("no directory")
    found = directories({"TMPDIR": str(machine / "own")})
    assert [path.parent for path in found[1:]] == [machine / "own", machine / "tmp"]


def test_a_socket_says_by_its_name_which_port_it_serves_and_by_its_owner_whose_it_is(machine: Path) -> None:
    directory = machine / "run" / "mhsd"
    directory.mkdir()
    served = make_socket(directory / socket_name("http-7400", 1, "a"))
    stdio = make_socket(directory / socket_name("stdio", 2, "b"))
    make_socket(directory / ".new-c")
    make_socket(directory / ".hidden.sock")
    make_socket(directory / "other")
    (directory / "note.sock").write_text("no socket")
    (directory / "gone.sock").symlink_to(machine / "nothing")
    found = find_sockets({})
    assert found.sockets == [LocalSocket(served, ME, 7400), LocalSocket(stdio, ME, None)]
    assert found.unreadable == []


def test_a_directory_that_may_not_be_read_is_told_where_it_can_be_seen(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = machine / "run" / "mhsd"
    closed.mkdir()
    (machine / "users" / "1").mkdir()

    def refuse(path: object) -> list[str]:
        raise PermissionError(path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert find_sockets({}).unreadable == [closed]


def test_a_socket_is_deserted_when_its_process_has_ended(machine: Path) -> None:
    path = make_socket(machine / "a.sock")
    assert nobody_listens(path)
    assert nobody_listens(machine / "no-such.sock")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen(0)
        assert not nobody_listens(path)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            try:
                each.connect(str(path))
            except BlockingIOError:
                break
        assert not nobody_listens(path), "nor when it is too busy to take anybody in"
        for each in waiting:
            each.close()


def test_a_user_without_a_name_has_a_number() -> None:
    assert user_name(0) == "root"
    assert user_name(2_000_000_000) == "2000000000"
