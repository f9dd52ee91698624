"""The client over https: it talks to whom it can check, and to nobody else [TPT-013]."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mhsd.client.client import connect
from mhsd.client.errors import MHSError, TransportError
from mhsd.client.http import Tls
from tests.cli.tiny import HELLO, Endpoint, Tiny

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def certificate(place: Path, name: str, address: str) -> tuple[Path, Path]:
    """A self-signed certificate for one address, and its key."""
    cert, key = place / f"{name}.pem", place / f"{name}.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    words += ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}"]
    subprocess.run(["openssl", *words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path, "server", "127.0.0.1")


@pytest.fixture
def tiny(pair: tuple[Path, Path]) -> Iterator[Tiny]:
    served = Tiny(Endpoint(), server_context(*pair))
    yield served
    served.close()


def test_a_certificate_that_is_trusted_is_enough(tiny: Tiny, pair: tuple[Path, Path]) -> None:
    with connect(tiny.url, tls=Tls(ca_file=str(pair[0])), token="s3cret", timeout_s=5) as client:
        assert client.hello() == HELLO
        client.hello()
    assert tiny.requests[0].header("Authorization") == "Bearer s3cret"


def test_calls_share_a_connection_under_tls_too(pair: tuple[Path, Path]) -> None:
    tiny = Tiny(Endpoint(devices_list=lambda _: {}), server_context(*pair))
    with connect(tiny.url, tls=Tls(ca_file=str(pair[0])), timeout_s=5) as client:
        for _ in range(3):
            client.call("mhs.devices.list")
    tiny.close()
    # The first answer may bring a session ticket with it, which ends the rest of the first connection.
    assert [request.connection for request in tiny.requests][1:] in ([1, 1], [2, 2])


def test_an_unknown_certificate_gets_no_token(tiny: Tiny) -> None:
    with connect(tiny.url, token="s3cret", timeout_s=5) as client, pytest.raises(TransportError) as failed:
        client.hello()
    assert "not trusted" in failed.value.message
    assert "MHS_CA_FILE" in (failed.value.remediation or "")
    assert tiny.requests == []


def test_a_certificate_of_another_address_gets_no_token(tmp_path: Path) -> None:
    other = certificate(tmp_path, "other", "127.0.0.2")
    tiny = Tiny(Endpoint(), server_context(*other))
    with (
        connect(tiny.url, tls=Tls(ca_file=str(other[0])), token="s3cret", timeout_s=5) as client,
        pytest.raises(TransportError),
    ):
        client.hello()
    tiny.close()
    assert tiny.requests == []


def test_a_client_certificate_is_shown_where_it_is_asked_for(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    own = certificate(tmp_path, "client", "127.0.0.1")
    context = server_context(*pair)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(own[0])
    tiny = Tiny(Endpoint(), context)
    with connect(tiny.url, tls=Tls(str(pair[0]), str(own[0]), str(own[1])), timeout_s=5) as client:
        assert client.hello() == HELLO
    tiny.close()


def test_https_spoken_to_a_plain_port_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def refuse() -> None:
            peer, _ = plain.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.recv(65536)

        answering = threading.Thread(target=refuse)
        answering.start()
        url = f"https://127.0.0.1:{plain.getsockname()[1]}"
        with connect(url, timeout_s=5) as client, pytest.raises(TransportError) as failed:
            client.hello()
        answering.join(5)
    assert "http://" in (failed.value.remediation or "")


def test_plain_http_spoken_to_a_tls_port_is_a_transport_error(tiny: Tiny) -> None:
    with connect(tiny.url.replace("https", "http"), timeout_s=5) as client, pytest.raises(MHSError) as failed:
        client.call("mhs.devices.list")
    assert failed.value.mhs_code in ("MHS.TRANSPORT.UNAVAILABLE", "MHS.OUTCOME.UNKNOWN")
