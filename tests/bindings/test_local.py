"""Where the local socket is, who can reach it, and that nobody else's things are touched for it [MHSD-9a]."""

from __future__ import annotations

import grp
import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mhsd.base.errors import StartError
from mhsd.bindings import local
from mhsd.bindings.callers import Caller, local_peer
from mhsd.bindings.local import local_socket, runtime_directory
from mhsd.protocol.auth import TokenFiles

OWN_GROUP = grp.getgrgid(os.getegid()).gr_name
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what another user owns")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A /run of the test's own; its mhsd does not exist yet."""
    directory = tmp_path / "run"
    directory.mkdir()
    monkeypatch.setattr(local, "SYSTEM_DIRECTORY", directory / "mhsd")
    return directory


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A directory that is named and missing."""
    return tmp_path / "named"


Hold = Callable[..., Path]


@pytest.fixture
def hold(named: Path) -> Iterator[Hold]:
    """Hold sockets in the named directory to the end of the test."""
    with ExitStack() as stack:

        def hold(kind: str = "stdio", group: str | None = None, directory: Path = named) -> Path:
            environ = {"MHSD_RUNTIME_DIR": str(directory)}
            return stack.enter_context(local_socket(kind, group, environ)).path

        yield hold


def left_over(directory: Path, name: str) -> Path:
    """A socket whose process has died."""
    path = directory / name
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
    return path


# Which directory


def test_the_directory_that_is_named_wins(system: Path, named: Path, tmp_path: Path) -> None:
    environ = {"MHSD_RUNTIME_DIR": str(named), "XDG_RUNTIME_DIR": str(tmp_path)}
    assert runtime_directory(environ) == named


def test_then_comes_the_one_of_the_users_session(system: Path, tmp_path: Path) -> None:
    assert runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "mhsd"


@pytest.mark.parametrize("session", ["", "relative", "/no/such/directory", "/proc/self/status"])
def test_a_session_without_a_directory_is_passed_over(system: Path, session: str) -> None:
    assert runtime_directory({"XDG_RUNTIME_DIR": session}) == system / "mhsd"


@AS_ROOT
def test_the_session_of_another_user_is_passed_over(system: Path, tmp_path: Path) -> None:
    """As `sudo -E` would leave it behind."""
    session = tmp_path / "session"
    session.mkdir()
    os.chown(session, 12345, -1)
    assert runtime_directory({"XDG_RUNTIME_DIR": str(session)}) == system / "mhsd"


def test_the_systems_directory_is_used_where_it_can_be_made_or_is_the_users_own(system: Path) -> None:
    assert runtime_directory({}) == system / "mhsd"
    (system / "mhsd").mkdir()
    assert runtime_directory({}) == system / "mhsd"


@AS_ROOT
def test_the_systems_directory_of_another_user_is_left_alone(system: Path, tmp_path: Path) -> None:
    (system / "mhsd").mkdir()
    os.chown(system / "mhsd", 12345, -1)
    own = tmp_path / f"mhsd-{os.geteuid()}"
    assert runtime_directory({"TMPDIR": str(tmp_path)}) == own


def test_the_last_resort_is_a_directory_of_the_users_own_among_the_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "SYSTEM_DIRECTORY", Path("/no/such/place/mhsd"))
    assert runtime_directory({"TMPDIR": str(tmp_path)}) == tmp_path / f"mhsd-{os.geteuid()}"
    assert runtime_directory({}) == Path("/tmp") / f"mhsd-{os.geteuid()}"


# The directory and the socket


def test_directory_and_socket_are_for_the_user_alone(hold: Hold, named: Path) -> None:
    path = hold("http-7400")
    assert path.parent == named
    assert path.name.startswith(f"http-7400-{os.getpid()}-")
    assert (mode(named), mode(path)) == (0o700, 0o600)
    assert os.listdir(named) == [path.name]


def test_the_mask_of_the_process_does_not_open_them(hold: Hold, named: Path) -> None:
    before = os.umask(0)
    try:
        path = hold()
    finally:
        os.umask(before)
    assert (mode(named), mode(path)) == (0o700, 0o600)


def test_the_socket_goes_with_the_block(named: Path) -> None:
    with local_socket("stdio", None, {"MHSD_RUNTIME_DIR": str(named)}) as held:
        assert held.path.is_socket()
    assert os.listdir(named) == []


def test_a_socket_that_was_taken_away_meanwhile_is_no_trouble(named: Path) -> None:
    with local_socket("stdio", None, {"MHSD_RUNTIME_DIR": str(named)}) as held:
        held.path.unlink()
        named.rmdir()


def test_several_endpoints_share_the_directory(hold: Hold, named: Path) -> None:
    paths = {hold(), hold(), hold("http-7400")}
    assert {named / name for name in os.listdir(named)} == paths


def test_sockets_that_nobody_serves_any_more_are_removed_and_others_kept(hold: Hold, named: Path) -> None:
    living = hold()
    left_over(named, "stdio-1-abc.sock")
    old = left_over(named, ".new-old")
    os.utime(old, (0, 0))
    new = left_over(named, ".new-young")
    (named / "note.sock").write_text("no socket")
    second = hold()
    assert set(os.listdir(named)) == {living.name, second.name, new.name, "note.sock"}


def test_a_directory_that_is_open_to_others_is_closed_where_only_sockets_are_in_it(
    hold: Hold, named: Path
) -> None:
    named.mkdir()
    named.chmod(0o755)
    left_over(named, "stdio-1-abc.sock")
    hold()
    assert mode(named) == 0o700


def test_a_directory_of_other_things_is_not_closed_to_their_users(hold: Hold, named: Path) -> None:
    named.mkdir()
    named.chmod(0o755)
    (named / "something").write_text("of somebody")
    with pytest.raises(StartError, match=r"others can look into it; mend that with: chmod 700 .*named"):
        hold()
    assert mode(named) == 0o755
    assert os.listdir(named) == ["something"]
    named.chmod(0o700)
    assert hold().is_socket()


@AS_ROOT
def test_a_directory_of_another_user_is_refused(hold: Hold, named: Path) -> None:
    named.mkdir(mode=0o700)
    os.chown(named, 12345, -1)
    with pytest.raises(StartError, match="it belongs to another user; MHSD_RUNTIME_DIR names another"):
        hold()


def test_a_link_in_a_shared_place_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: Path
) -> None:
    monkeypatch.setattr(local, "SYSTEM_DIRECTORY", Path("/no/such/place/mhsd"))
    named.mkdir()
    (tmp_path / f"mhsd-{os.geteuid()}").symlink_to(named)
    with pytest.raises(StartError), local_socket("stdio", None, {"TMPDIR": str(tmp_path)}):
        pass
    assert os.listdir(named) == []


def test_a_link_that_is_named_is_followed(hold: Hold, named: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    named.symlink_to(tmp_path / "real")
    assert hold().parent == tmp_path / "real"


@pytest.mark.parametrize("place", ["/proc/no-such", "/dev/null"])
def test_a_place_where_no_directory_can_be_says_so(hold: Hold, place: str) -> None:
    with pytest.raises(StartError, match=f"{place} cannot hold the local socket") as refused:
        hold(directory=Path(place))
    assert refused.value.exit_code == 2


def test_a_path_that_no_socket_can_have_says_so(hold: Hold, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="too long a path for a socket"):
        hold(directory=tmp_path / ("x" * 100))


# The group


def test_a_group_may_reach_the_socket_and_nothing_more(hold: Hold, named: Path) -> None:
    path = hold(group=OWN_GROUP)
    assert (mode(named), mode(path)) == (0o750, 0o660)
    assert path.stat().st_gid == named.stat().st_gid == os.getegid()


def test_an_endpoint_without_a_group_leaves_the_directory_to_one_that_has_it(hold: Hold, named: Path) -> None:
    shared = hold(group=OWN_GROUP)
    own = hold()
    assert (mode(named), mode(shared), mode(own)) == (0o750, 0o660, 0o600)


def test_it_is_closed_again_when_nobody_of_the_group_is_served(hold: Hold, named: Path) -> None:
    with local_socket("stdio", OWN_GROUP, {"MHSD_RUNTIME_DIR": str(named)}):
        assert mode(named) == 0o750
    hold()
    assert mode(named) == 0o700


def test_an_unknown_group_is_named(hold: Hold) -> None:
    with pytest.raises(StartError, match="--socket-group no-such-group: there is no such group") as refused:
        hold(group="no-such-group")
    assert refused.value.exit_code == 2


# Who connects


def test_the_user_of_the_endpoint_and_root_may_do_what_the_local_principal_may() -> None:
    tokens = TokenFiles.load(None, None)
    for uid in (os.geteuid(), 0):
        peer = local_peer(uid, tokens)
        assert (peer.role, peer.stop_only, peer.authenticated) == ("operator", False, True)
    assert local_peer(0, tokens).principal.id == "local:root"


def test_with_an_operators_file_the_user_is_a_client(tmp_path: Path) -> None:
    path = tmp_path / "operator"
    path.write_text("a-token-of-some-length\n")
    path.chmod(0o600)
    tokens = TokenFiles.load(None, path)
    assert local_peer(os.geteuid(), tokens).role == "client"
    shown = [(b"authorization", b"Bearer a-token-of-some-length")]
    assert Caller(uid=os.geteuid()).peer(shown, tokens).role == "operator"
    assert Caller(uid=12345).peer(shown, tokens).stop_only is False


def test_anybody_else_may_only_stop_whatever_token_is_shown() -> None:
    tokens = TokenFiles.load(None, None)
    for headers in ([], [(b"authorization", b"Bearer anything")]):
        peer = Caller(uid=12345).peer(headers, tokens)
        assert (peer.principal.id, peer.role, peer.stop_only) == ("local:12345", "reader", True)
