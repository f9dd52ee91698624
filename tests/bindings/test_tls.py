"""TLS, client certificates, and where an endpoint may listen [TPT-013, TPT-014]."""

from __future__ import annotations

import hashlib
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import attrs
import pytest
import trio

from mhsd.base.errors import StartError
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.tls import check_exposure, listen, port_of, resolve, server_context
from mhsd.bindings.ws import websocket_routes
from mhsd.config import Config
from mhsd.protocol.auth import TokenFiles
from tests.bindings.conftest import Serve, Served
from tests.bindings.fakes import STOP, Client, Sent, call, until
from tests.bindings.sockets import PING, PONG, WsClient, close, frame

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
BODY = call()
SECRET = "s3cret-of-the-bench"


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@attrs.frozen
class Pair:
    cert: Path
    key: Path

    def digest(self) -> str:
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.cert.read_text())).hexdigest()


@attrs.frozen
class Authority:
    """A certificate authority of this test run."""

    place: Path
    own: Pair

    @classmethod
    def make(cls, place: Path) -> Authority:
        place.mkdir()
        own = Pair(place / "ca.pem", place / "ca.key")
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            # Python 3.13 checks strictly: an authority says what its key is for, a certificate by whom it is.
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-subj", "/CN=test authority", "-keyout", own.key, "-out", own.cert),
        )
        return cls(place, own)

    def issue(self, name: str, subject: str) -> Pair:
        pair = Pair(self.place / f"{name}.pem", self.place / f"{name}.key")
        request, extension = self.place / f"{name}.csr", self.place / f"{name}.ext"
        extension.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", subject, "-keyout", pair.key, "-out", request),
        )
        openssl(
            *(
                "x509",
                "-req",
                "-in",
                request,
                "-CA",
                self.own.cert,
                "-CAkey",
                self.own.key,
                "-CAcreateserial",
            ),
            *("-days", "2", "-extfile", extension, "-out", pair.cert),
        )
        return pair


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "own")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("tls") / "other")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.issue("server", "/CN=localhost")


async def connect(served: Served, authority: Authority, shown: Pair | None = None) -> Client:
    context = ssl.create_default_context(cafile=str(authority.own.cert))
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    stream = trio.SSLStream(
        await trio.open_tcp_stream("127.0.0.1", served.port),
        context,
        server_hostname="localhost",
        https_compatible=True,
    )
    return Client(stream)  # type: ignore[arg-type]


async def test_requests_travel_under_tls(serve: Serve, authority: Authority, server: Pair) -> None:
    served = await serve(context=server_context(server.cert, server.key, None))
    client = await connect(served, authority)
    assert (await client.post(BODY)).body == BODY
    assert (await client.post(BODY)).body == BODY
    assert client.stream.version() in ("TLSv1.2", "TLSv1.3")


async def test_events_travel_under_tls_and_a_client_that_goes_is_noticed(
    serve: Serve, authority: Authority, server: Pair
) -> None:
    served = await serve(context=server_context(server.cert, server.key, None))
    client = await connect(served, authority)
    assert (await client.events()).status == 200
    assert await client.block() == "retry: 3000"
    served.door.streams.opened[0].push(Sent("sub_A", 1, b"{}"), Sent("sub_A", 2, b"x" * 300_000))
    assert (await client.block()).startswith("id: sub_A:1\n")
    assert len(await client.block()) > 300_000
    await client.stream.aclose()
    await until(lambda: served.door.streams.open_now == 0 and not served.front.connections)
    assert served.front.defects == 0


async def test_a_refusal_under_tls_is_read_and_closes(
    serve: Serve, authority: Authority, server: Pair
) -> None:
    served = await serve(context=server_context(server.cert, server.key, None))
    client = await connect(served, authority)
    assert (await client.post(BODY, host="evil.example")).status == 403


async def test_an_old_tls_version_is_refused(serve: Serve, authority: Authority, server: Pair) -> None:
    served = await serve(context=server_context(server.cert, server.key, None))
    context = ssl.create_default_context(cafile=str(authority.own.cert))
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    stream = trio.SSLStream(
        await trio.open_tcp_stream("127.0.0.1", served.port), context, server_hostname="localhost"
    )
    with pytest.raises(trio.BrokenResourceError):
        await stream.do_handshake()


async def test_plain_text_and_silence_on_a_tls_port_end_their_connection_only(
    serve: Serve, authority: Authority, server: Pair
) -> None:
    served = await serve(context=server_context(server.cert, server.key, None), socket_timeout_s=0.5)
    plain, silent = await served.connect(), await served.connect()
    await plain.send(b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with pytest.raises((EOFError, trio.BrokenResourceError)):
        await plain.answer()
    assert await silent.at_end()
    client = await connect(served, authority)
    assert (await client.post(BODY)).status == 200
    assert served.front.defects == 0


async def test_a_certificate_or_a_token_makes_a_principal_and_neither_makes_a_401(
    serve: Serve, authority: Authority, server: Pair, tmp_path: Path
) -> None:
    by_digest = authority.issue("one", "/CN=whoever")
    by_subject = authority.issue("two", "/O=Lab/CN=agent-7")
    unknown = authority.issue("three", "/CN=nobody")
    path = tmp_path / "tokens.toml"
    path.write_text(
        f'[[client_cert]]\nsha256 = "{by_digest.digest()}"\nprincipal = "cert:one"\nkind = "agent"\n'
        '[[client_cert]]\nsubject = "CN=agent-7,O=Lab"\nprincipal = "cert:two"\nrole = "reader"\n'
        f'[[token]]\nsha256 = "{hashlib.sha256(SECRET.encode()).hexdigest()}"\nprincipal = "bearer"\n'
    )
    path.chmod(0o600)
    served = await serve(
        context=server_context(server.cert, server.key, authority.own.cert),
        tokens=TokenFiles.load(path, None),
    )
    bearer = f"Authorization: Bearer {SECRET}"
    for shown, headers, status in (
        (by_digest, (), 200),
        (by_subject, (), 200),
        (None, (bearer,), 200),
        (unknown, (bearer,), 200),
        (by_digest, (bearer,), 200),
        (unknown, (), 401),
        (None, (), 401),
        (by_digest, ("Authorization: Bearer wrong",), 401),
    ):
        client = await connect(served, authority, shown)
        assert (await client.post(BODY, *headers)).status == status
    assert [(peer.principal.id, peer.role) for peer in served.door.peers] == [
        ("cert:one", "client"),
        ("cert:two", "reader"),
        ("bearer", "client"),
        ("bearer", "client"),
        ("bearer", "client"),
    ]
    client = await connect(served, authority)
    assert (await client.get("/.well-known/mhs.json")).status == 200


async def test_a_websocket_travels_under_tls_and_its_peer_is_who_the_certificate_says(
    serve: Serve, authority: Authority, server: Pair, tmp_path: Path
) -> None:
    """[TPT-023, MHSD-6-07]"""
    agent = authority.issue("ws", "/CN=agent-ws")
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[client_cert]]\nsha256 = "{agent.digest()}"\nprincipal = "cert:ws"\nkind = "agent"\n')
    path.chmod(0o600)
    served = await serve(
        context=server_context(server.cert, server.key, authority.own.cert),
        tokens=TokenFiles.load(path, None),
        routes={**ROUTES, **websocket_routes()},
    )
    nobody = WsClient((await connect(served, authority)).stream)
    assert (await nobody.open()).status == 401
    client = await WsClient((await connect(served, authority, agent)).stream).opened()
    large = b'"' + b"x" * 99_000 + b'"'
    await client.say(BODY, large, STOP)
    assert sorted(await client.texts(3)) == sorted([BODY, large, STOP])
    assert {peer.principal.id for peer in served.door.peers} == {"cert:ws"}
    await client.send(frame(b"", PING), close(1000))
    assert (await client.frame()).opcode == PONG
    assert (await client.frame()).code == 1000
    assert await client.at_end()
    assert served.front.defects == 0


async def test_a_certificate_of_another_authority_does_not_get_through(
    serve: Serve, authority: Authority, stranger: Authority, server: Pair
) -> None:
    served = await serve(context=server_context(server.cert, server.key, authority.own.cert))
    client = await connect(served, authority, stranger.issue("forged", "/CN=agent-7"))
    with pytest.raises((EOFError, trio.BrokenResourceError)):
        await client.post(BODY)
    assert served.door.entered == []
    assert served.front.defects == 0


def test_unusable_certificates_are_one_line_with_the_file(
    server: Pair, stranger: Authority, tmp_path: Path
) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    locked = tmp_path / "locked.key"
    openssl("ec", "-in", server.key, "-aes256", "-passout", "pass:x", "-out", locked)
    for cert, key, ca in (
        (tmp_path / "absent.pem", None, None),
        (server.cert, tmp_path / "absent.key", None),
        (rubbish, server.key, None),
        (server.cert, stranger.own.key, None),
        (server.cert, locked, None),
        (server.cert, server.key, rubbish),
    ):
        with pytest.raises(StartError) as caught:
            server_context(cert, key, ca)
        assert caught.value.exit_code == 2
        assert str(tmp_path) in caught.value.message or str(server.cert) in caught.value.message
        assert "\n" not in caught.value.message
    with pytest.raises(StartError, match="give the key with --tls-key"):
        server_context(server.cert, None, None)


# Where to listen


def exposed(**settings: object) -> Config:
    return Config(**settings)  # type: ignore[arg-type]


BEYOND = [(socket.AF_INET, "0.0.0.0")]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1"])
def test_loopback_needs_neither_tokens_nor_tls(address: str) -> None:
    check_exposure(exposed(), [(socket.AF_INET, address)], tokens_configured=False)


def test_a_proxy_in_front_needs_tokens_on_loopback_too() -> None:
    behind = exposed(tls_terminated_upstream=True, public_url="https://lab.example")
    with pytest.raises(StartError, match="needs --token-file") as caught:
        check_exposure(behind, [(socket.AF_INET, "127.0.0.1")], tokens_configured=False)
    assert caught.value.exit_code == 4
    check_exposure(behind, [(socket.AF_INET, "127.0.0.1")], tokens_configured=True)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, False),
        ({}, True),
        ({"tls_cert": Path("c")}, False),
        ({"tls_terminated_upstream": True}, True),
        ({"tls_terminated_upstream": True, "public_url": "http://lab.example"}, True),
        ({"public_url": "https://lab.example"}, True),
    ],
)
@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.7", "::", "2001:db8::1"])
def test_an_address_beyond_loopback_without_tokens_and_tls_is_exit_4(
    settings: dict[str, object], tokens: bool, address: str
) -> None:
    with pytest.raises(StartError) as caught:
        check_exposure(exposed(**settings), [(socket.AF_INET, address)], tokens_configured=tokens)
    assert (caught.value.exit_code, caught.value.mhs_code) == (4, "MHS.AUTH.TRANSPORT_INSECURE")


@pytest.mark.parametrize(
    "settings",
    [{"tls_cert": Path("c")}, {"tls_terminated_upstream": True, "public_url": "https://lab.example"}],
)
def test_tokens_with_tls_here_or_upstream_are_enough(settings: dict[str, object]) -> None:
    check_exposure(exposed(**settings), BEYOND, tokens_configured=True)


def test_one_address_beyond_loopback_among_others_counts() -> None:
    with pytest.raises(StartError):
        check_exposure(exposed(), [(socket.AF_INET, "127.0.0.1"), *BEYOND], tokens_configured=False)


async def test_a_port_in_use_is_exit_1_with_the_address() -> None:
    listeners = await listen(await resolve("127.0.0.1"), 0, None)
    port = port_of(listeners)
    with pytest.raises(StartError, match=f"127.0.0.1:{port}") as caught:
        await listen(await resolve("127.0.0.1"), port, None)
    assert caught.value.exit_code == 1
    for listener in listeners:
        await listener.aclose()


async def test_a_host_that_is_none_is_exit_2() -> None:
    for host in ("no host", "a" * 70, "x..y"):
        with pytest.raises(StartError, match="--host") as caught:
            await resolve(host)
        assert caught.value.exit_code == 2


async def test_a_name_is_listened_on_at_one_port_for_all_its_addresses() -> None:
    listeners = await listen(await resolve("localhost"), 0, None)
    ports = {listener.socket.getsockname()[1] for listener in listeners}
    assert len(ports) == 1
    for listener in listeners:
        await listener.aclose()
