"""Token files: who a credential speaks for, rotation, and what a bad file does."""

from __future__ import annotations

import hashlib
import logging
import os
import tracemalloc
from pathlib import Path

import pytest

from mhsd.base.errors import StartError
from mhsd.protocol.auth import Identity, TokenFiles, local_principal
from mhsd.protocol.peer import REMEMBERED_IDS, Peer, Principal
from mhsd.protocol.token_file import parse_subject, subject_of

SECRET = "s3cret-of-the-bench"
OTHER = "another-secret"


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def token(secret: str, principal: str, more: str = "") -> str:
    return f'[[token]]\nsha256 = "{digest(secret)}"\nprincipal = "{principal}"\n{more}\n'


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    """Put a new file in the old one's place, as a careful editor does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.toml"


class Wall:
    """A wall clock that the test sets."""

    seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


def load(path: Path | None, operator: Path | None = None, wall: Wall | None = None) -> TokenFiles:
    return TokenFiles.load(path, operator, now=wall or Wall())


def test_without_token_files_everybody_is_the_local_principal_with_every_role() -> None:
    tokens = load(None)
    assert not tokens.configured
    assert tokens.authenticate(None) == Identity(local_principal(), "operator")
    assert tokens.authenticate("whatever") == tokens.local


def test_a_token_speaks_for_its_principal_with_its_role_and_grants(path: Path) -> None:
    text = token(
        SECRET, "agent:a", 'kind = "agent"\nrole = "reader"\ndevices = ["/d"]\ncapabilities = ["cap.*"]'
    )
    tokens = load(write(path, text))
    assert tokens.authenticate(SECRET) == Identity(
        Principal("agent:a", "agent"), "reader", ("/d",), ("cap.*",)
    )


@pytest.mark.parametrize("presented", [None, "", OTHER, SECRET + " ", SECRET[:-1], "\udcff", "ü"])
def test_anything_but_the_secret_speaks_for_nobody(path: Path, presented: str | None) -> None:
    assert load(write(path, token(SECRET, "p"))).authenticate(presented) is None


def test_a_bare_line_is_the_secret_of_one_client(path: Path) -> None:
    tokens = load(write(path, SECRET + "\n"))
    expected = Identity(Principal("token:" + digest(SECRET)[:12], "service"), "client")
    assert tokens.authenticate(SECRET) == expected
    assert not tokens.operator_configured


def test_a_bare_line_of_base64_with_padding_is_a_secret_and_not_toml(path: Path) -> None:
    assert load(write(path, "c2VjcmV0==\n")).authenticate("c2VjcmV0==") is not None


def test_in_the_operator_file_a_bare_line_is_an_operator_and_makes_tokens_necessary(path: Path) -> None:
    tokens = load(None, write(path, SECRET + "\n"))
    identity = tokens.authenticate(SECRET)
    assert identity is not None
    assert identity.role == "operator"
    assert tokens.configured
    assert tokens.operator_configured
    assert tokens.authenticate(None) is None
    assert tokens.local.role == "client"


def test_an_operator_in_the_client_file_counts_as_an_operator_credential(path: Path) -> None:
    assert load(write(path, token(SECRET, "p", 'role = "operator"'))).operator_configured


def test_a_token_ends_at_its_expiry_and_not_before(path: Path) -> None:
    wall = Wall()
    tokens = load(write(path, token(SECRET, "p", "expires_at = 2027-01-31T00:00:00Z")), wall=wall)
    wall.seconds = 1801353599.0
    assert tokens.authenticate(SECRET) is not None
    wall.seconds = 1801353600.0
    assert tokens.authenticate(SECRET) is None


def test_a_removed_token_stops_working_at_the_next_request_and_a_new_one_works(path: Path) -> None:
    tokens = load(write(path, token(SECRET, "p") + token(OTHER, "q")))
    assert tokens.authenticate(OTHER) is not None
    write(path, token(SECRET, "p") + token("third", "r"))
    assert tokens.authenticate(OTHER) is None
    assert tokens.authenticate(SECRET) is not None
    third = tokens.authenticate("third")
    assert third is not None
    assert third.principal.id == "r"


def test_a_missing_file_allows_nobody_until_it_is_back(path: Path) -> None:
    tokens = load(write(path, token(SECRET, "p")))
    path.unlink()
    assert tokens.authenticate(SECRET) is None
    assert tokens.configured
    write(path, token(SECRET, "p"))
    assert tokens.authenticate(SECRET) is not None


@pytest.mark.parametrize(
    ("text", "mode"),
    [("[[token]]\nsha256 = ", 0o600), ("[[token]]\nprincipal = 'p'\n", 0o600), (token(OTHER, "q"), 0o644)],
)
def test_an_unusable_new_file_leaves_the_last_good_set_and_is_logged_once_without_secrets(
    path: Path, caplog: pytest.LogCaptureFixture, text: str, mode: int
) -> None:
    tokens = load(write(path, token(SECRET, "p")))
    write(path, text, mode)
    with caplog.at_level(logging.WARNING):
        assert tokens.authenticate(SECRET) is not None
        assert tokens.authenticate(OTHER) is None
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    assert SECRET not in caplog.text
    assert digest(SECRET) not in caplog.text


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused_with_the_chmod_that_mends_it(
    path: Path, mode: int
) -> None:
    write(path, SECRET + "\n", mode)
    with pytest.raises(StartError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    assert f"chmod 600 {path}" in caught.value.message
    assert f"{mode:04o}" in caught.value.message


def test_mounted_secrets_may_be_world_readable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, SECRET + "\n", 0o644)
    monkeypatch.setattr("mhsd.protocol.auth._SECRETS_DIR", path.parent)
    assert load(path).authenticate(SECRET) is not None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no"),
        ("# nothing\n", "holds no"),
        ("[[tokens]]\n", "unknown key 'tokens'"),
        ("token = 3\n", "[[token]]"),
        (token(SECRET, "p", 'scope = "all"'), "token 1: unknown key 'scope'"),
        (token(SECRET, "p") + token(SECRET, "q"), "two token entries"),
        (token(SECRET, "p", 'role = "admin"'), "reader, client, operator"),
        (token(SECRET, "p", 'kind = "robot"'), "agent, human, service"),
        (token(SECRET, "p", "devices = 'all'"), "list of texts"),
        (token(SECRET, "p", "expires_at = 2027-01-31T00:00:00"), "offset"),
        (token(SECRET, "p", "expires_at = 'soon'"), "offset"),
        (token(SECRET, " "), "principal"),
        ('[[token]]\nsha256 = "abc"\nprincipal = "p"\n', "64 hexadecimal"),
        ('[[client_cert]]\nprincipal = "p"\n', "64 hexadecimal"),
        (f'[[client_cert]]\nprincipal = "p"\nsubject = "CN=x"\nsha256 = "{digest("x")}"\n', "not both"),
    ],
)
def test_a_bad_file_ends_the_start_with_one_line(path: Path, text: str, told: str) -> None:
    write(path, text)
    with pytest.raises(StartError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    assert told in caught.value.message
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="does not exist") as caught:
        load(tmp_path / "absent")
    assert caught.value.exit_code == 2


def test_one_secret_in_both_files_is_refused(tmp_path: Path) -> None:
    clients, operators = write(tmp_path / "c", SECRET + "\n"), write(tmp_path / "o", SECRET + "\n")
    with pytest.raises(StartError, match="both"):
        load(clients, operators)


def test_a_certificate_is_found_by_its_digest_or_its_subject(path: Path) -> None:
    der = b"certificate"
    by_digest = f'[[client_cert]]\nsha256 = "{hashlib.sha256(der).hexdigest()}"\nprincipal = "one"\n'
    by_subject = '[[client_cert]]\nsubject = "O=Lab, CN=agent-7"\nprincipal = "two"\nrole = "reader"\n'
    tokens = load(write(path, by_digest + by_subject))
    one = tokens.authenticate_certificate(der, [("commonName", "whoever")])
    two = tokens.authenticate_certificate(b"other", [("commonName", "agent-7"), ("organizationName", "Lab")])
    assert one is not None
    assert two is not None
    assert (one.principal.id, two.principal.id, two.role) == ("one", "two", "reader")
    assert tokens.authenticate_certificate(b"other", [("commonName", "agent-7")]) is None


def test_a_subject_is_compared_without_order_and_spelling_of_names() -> None:
    assert parse_subject(r"CN=a\,b,OU=x,O=y") == subject_of(
        [("organizationName", "y"), ("organizationalUnitName", "x"), ("commonName", "a,b")]
    )


def test_a_peer_knows_the_ids_it_has_used_for_the_last_4096_requests() -> None:
    peer = Peer(Principal("p", "human"), "client", "stdio", remembers_ids=True)
    assert peer.remember_id("1")
    assert peer.remember_id(1)
    assert not peer.remember_id("1")
    assert all(peer.remember_id(f"r{number}") for number in range(REMEMBERED_IDS))
    assert peer.remember_id("1")


def test_a_peer_knows_a_long_id_again_without_keeping_it() -> None:
    """[PROTO-004]"""
    peer = Peer(Principal("p", "human"), "client", "ws", remembers_ids=True)
    long_ids: list[str | int] = [
        "x" * 100_000,
        "x" * 100_000 + "\ud800",
        10**4000,
        str(10**4000),
        -(10**4000),
    ]
    tracemalloc.start()
    try:
        for long_id in long_ids:
            assert peer.remember_id(long_id)
        for number in range(100):
            assert peer.remember_id(f"{number}" + "y" * 100_000)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 100_000
    assert not any(peer.remember_id(long_id) for long_id in long_ids)


def test_a_peer_over_http_remembers_no_ids() -> None:
    peer = Peer(Principal("p", "human"), "client", "http")
    assert peer.remember_id("1")
    assert peer.remember_id("1")


def test_the_local_principal_is_the_user_of_this_process() -> None:
    name = local_principal().id.removeprefix("local:")
    assert name
    assert os.getuid() == 0 or name != "root"
