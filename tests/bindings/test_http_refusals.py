"""Each refusal of the HTTP binding, shown on a raw socket [TPT-010 to TPT-015, TPT-020]."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import trio

from mhsd.bindings.checks import Names, Refused
from mhsd.protocol.auth import TokenFiles
from tests.bindings.conftest import Serve, Served
from tests.bindings.fakes import STOP, Answer, Client, call

BODY = call()
FRAMED = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


async def raw(served: Served, data: bytes) -> Answer:
    """What the endpoint answers to these bytes, with the connection closed after it."""
    client = await served.connect()
    await client.send(data)
    answer = await client.answer()
    assert answer.headers["connection"] == "close"
    assert await client.at_end()
    return answer


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:65535", "[::1]", "[::1]:7400", "Lab.Example:8443"],
)
async def test_a_host_that_names_the_endpoint_passes_whatever_its_port(client: Client, host: str) -> None:
    assert (await client.post(BODY, host=host)).status == 200


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Host:\r\n",
        b"Host: evil.example\r\n",
        b"Host: localhost.evil.example\r\n",
        b"Host: localhost.\r\n",
        b"Host: localhost:80:80\r\n",
        b"Host: localhost:abc\r\n",
        b"Host: user@localhost\r\n",
        b"Host: localhost/x\r\n",
        b"Host: \xff\r\n",
        b"Host: localhost\r\nHost: localhost\r\n",
        b"Host: localhost\r\nHost: evil.example\r\n",
    ],
)
@pytest.mark.parametrize("line", [b"POST /mhs/v1/rpc", b"GET /.well-known/mhs.json", b"GET /nothing"])
async def test_any_other_host_is_forbidden_on_every_route(served: Served, line: bytes, header: bytes) -> None:
    answer = await raw(served, line + b" HTTP/1.1\r\n" + header + FRAMED)
    assert (answer.status, answer.mhs_code) == (403, "MHS.AUTH.FORBIDDEN")
    assert served.door.entered == []


async def test_http_1_0_needs_a_host_too_and_is_served_with_one(served: Served) -> None:
    assert (await raw(served, b"POST /mhs/v1/rpc HTTP/1.0\r\n" + FRAMED)).status == 403
    answer = await raw(served, b"POST /mhs/v1/rpc HTTP/1.0\r\nHost: localhost\r\n" + FRAMED)
    assert (answer.status, answer.body) == (200, BODY)


async def test_http_1_0_with_two_hosts_is_forbidden(served: Served) -> None:
    head = b"POST /mhs/v1/rpc HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n"
    assert (await raw(served, head + FRAMED)).status == 403


async def test_a_refused_client_sees_the_end_at_once_although_it_keeps_its_side_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mhsd.bindings.limits.LINGER_S", 3600)
    await raw(served, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST"])
async def test_the_endpoints_own_loopback_origin_passes(served: Served, client: Client, name: str) -> None:
    assert (await client.post(BODY, f"Origin: http://{name}:{served.port}")).status == 200


async def test_an_allowed_origin_passes(client: Client) -> None:
    assert (await client.post(BODY, "Origin: https://pages.example")).status == 200


@pytest.mark.parametrize(
    ("allowed", "sent"),
    [
        ("HTTPS://Pages.Example:443/", "https://pages.example"),
        ("http://pages.example:80", "http://pages.example"),
        ("http://pages.example:8080", "http://pages.example:8080"),
        ("https://pages.example:80", "https://pages.example:80"),
        ("vscode-webview://a-page", "vscode-webview://a-page"),
    ],
)
def test_an_origin_is_allowed_as_a_browser_writes_it(allowed: str, sent: str) -> None:
    """[TPT-010]"""
    names = Names.of([], [], [allowed], port=7400, tls=False)
    names.check_origin([(b"origin", sent.encode())])
    with pytest.raises(Refused):
        names.check_origin([(b"origin", sent.encode() + b"x")])


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://localhost",
        "http://localhost:1",
        "https://localhost:{port}",
        "http://pages.example",
        "https://pages.example.evil",
        "http://localhost:{port}\r\nOrigin: http://localhost:{port}",
    ],
)
@pytest.mark.parametrize("line", ["POST /mhs/v1/rpc", "GET /.well-known/mhs.json"])
async def test_any_other_origin_is_forbidden(served: Served, line: str, origin: str) -> None:
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin.format(port=served.port)}\r\n"
    answer = await raw(served, head.encode() + FRAMED)
    assert (answer.status, answer.mhs_code) == (403, "MHS.AUTH.FORBIDDEN")
    assert served.door.entered == []


@pytest.mark.parametrize("target", ["http://127.0.0.1:{port}/mhs/v1/rpc", "HTTP://localhost/mhs/v1/rpc?x=1"])
async def test_an_absolute_target_that_names_the_endpoint_is_served(served: Served, target: str) -> None:
    client = await served.connect()
    await client.send(
        f"POST {target.format(port=served.port)} HTTP/1.1\r\nHost: localhost\r\n".encode() + FRAMED
    )
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/mhs/v1/rpc", "localhost", 403),
        ("http://localhost/mhs/v1/rpc", "evil.example", 403),
        ("http://localhost@evil.example/mhs/v1/rpc", "localhost", 403),
        ("http:///mhs/v1/rpc", "localhost", 403),
        ("ftp://localhost/mhs/v1/rpc", "localhost", 404),
        ("localhost:7400", "localhost", 404),
        ("*", "localhost", 404),
    ],
)
async def test_other_targets_are_refused(served: Served, target: str, host: str, status: int) -> None:
    answer = await raw(served, f"POST {target} HTTP/1.1\r\nHost: {host}\r\n".encode() + FRAMED)
    assert answer.status == status
    assert served.door.entered == []


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "Content-Type:\r\n",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: multipart/form-data; boundary=x\r\n",
        "Content-Type: application/jsonp\r\n",
        "Content-Type: application/json\r\nContent-Type: text/plain\r\n",
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\n",
    ],
)
async def test_a_body_that_is_not_declared_as_plain_json_is_415(served: Served, content_type: str) -> None:
    head = (
        f"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\n{content_type}Content-Length: {len(BODY)}\r\n\r\n"
    )
    answer = await raw(served, head.encode() + BODY)
    assert (answer.status, answer.mhs_code) == (415, "MHS.PROTOCOL.INVALID_REQUEST")
    assert served.door.entered == []


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", " application/json ;x=y"]
)
async def test_parameters_of_the_content_type_are_allowed(served: Served, content_type: str) -> None:
    client = await served.connect()
    head = f"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    await client.send(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY))
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/mhs/v1/rpc", "POST"),
        ("HEAD", "/mhs/v1/rpc", "POST"),
        ("OPTIONS", "/mhs/v1/rpc", "POST"),
        ("post", "/mhs/v1/rpc", "POST"),
        ("POST", "/.well-known/mhs.json", "GET"),
        ("DELETE", "/mhs/v1/schema/receipt", "GET"),
    ],
)
async def test_a_wrong_method_is_405_and_names_the_right_one(
    client: Client, method: str, path: str, allow: str
) -> None:
    answer = await client.get(path, method=method)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    assert await client.at_end()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/mhs/v1/rpc/",
        "/mhs/v1/RPC",
        "/mhs/v1/%72pc",
        "//mhs/v1/rpc",
        "/mhs/v1/events/",
        "/mhs/v1/ws",
        "/mhs/v1/schema",
    ],
)
async def test_an_unknown_path_is_404(served: Served, path: str) -> None:
    answer = await raw(served, f"POST {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + FRAMED)
    assert (answer.status, answer.mhs_code) == (404, "MHS.PROTOCOL.INVALID_REQUEST")


async def test_a_declared_length_over_the_limit_is_413_before_any_of_the_body_is_sent(served: Served) -> None:
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = await raw(served, head + b"Content-Length: 100001\r\n\r\n")
    assert (answer.status, answer.mhs_code) == (413, "MHS.LIMIT.PAYLOAD_TOO_LARGE")


async def test_a_body_of_exactly_the_limit_is_served(client: Client, served: Served) -> None:
    body = b'"' + b"x" * 99_998 + b'"'
    answer = await client.post(body)
    assert (answer.status, served.door.entered) == (200, [body])


async def test_chunks_over_the_limit_are_413_and_the_client_gets_to_read_it(served: Served) -> None:
    client = await served.connect()
    await client.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    for _ in range(32):  # More than the sockets hold between them, so that the endpoint must go on reading.
        await client.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
    answer = await client.answer()
    assert (answer.status, answer.mhs_code) == (413, "MHS.LIMIT.PAYLOAD_TOO_LARGE")
    assert served.door.entered == []


async def test_a_chunked_body_within_the_limit_is_served(client: Client) -> None:
    await client.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    for byte in BODY:
        await client.send(b"1\r\n%c\r\n" % byte)
    await client.send(b"0\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.body) == (200, BODY)


async def test_a_body_in_very_many_small_chunks_is_refused(served: Served) -> None:
    client = await served.connect()
    await client.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n1\r\n" * 3000
    )
    answer = await client.answer()
    assert (answer.status, answer.mhs_code) == (400, "MHS.PROTOCOL.INVALID_REQUEST")


async def test_100_continue_is_sent_only_to_a_request_that_passes(served: Served) -> None:
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
    refused = await raw(served, head + b"Content-Type: application/json\r\nContent-Length: 100001\r\n\r\n")
    assert refused.status == 413
    client = await served.connect()
    await client.send(head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    assert (await client.answer()).status == 100
    await client.send(BODY)
    assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST /mhs/v1/rpc HTTP/1.1\r\nHost : localhost\r\n" + FRAMED, 400),
        (b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n" + FRAMED, 400),
        (b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5000), 400),
        (b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n" + FRAMED, 400),
        (b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20000, 431),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"POST /mhs/v1/rpc HTTP/3.0\r\nHost: localhost\r\n" + FRAMED, 505),
    ],
)
async def test_malformed_http_is_refused_and_closed(served: Served, data: bytes, status: int) -> None:
    answer = await raw(served, data)
    assert (answer.status, answer.mhs_code) == (status, "MHS.PROTOCOL.INVALID_REQUEST")
    assert served.door.entered == []
    assert served.front.defects == 0


async def test_an_upgrade_to_http_2_is_not_taken_up(client: Client) -> None:
    answer = await client.post(
        BODY, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAM"
    )
    assert (answer.status, answer.body) == (200, BODY)


async def test_what_follows_a_refused_request_is_never_served(served: Served) -> None:
    smuggled = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\n" + FRAMED
    client = await served.connect()
    await client.send(
        b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(smuggled), smuggled)
    )
    assert (await client.answer()).status == 415
    assert await client.at_end()
    assert served.door.entered == []


SECRET = "s3cret-of-the-bench"


@pytest.fixture
async def guarded(serve: Serve, tmp_path: Path) -> Served:
    path = tmp_path / "tokens.toml"
    expired = hashlib.sha256(b"expired-token").hexdigest()
    path.write_text(
        f'[[token]]\nsha256 = "{hashlib.sha256(SECRET.encode()).hexdigest()}"\nprincipal = "agent:a"\n'
        f'role = "reader"\ndevices = ["/d"]\n'
        f'[[token]]\nsha256 = "{expired}"\nprincipal = "agent:b"\nexpires_at = 2020-01-01T00:00:00Z\n'
    )
    path.chmod(0o600)
    return await serve(tokens=TokenFiles.load(path, None))


async def test_every_way_of_having_no_valid_token_gets_the_same_401(guarded: Served) -> None:
    answers = []
    for header in (
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Basic czNjcmV0\r\n",
        "Authorization: Bearer expired-token\r\n",
        f"Authorization: Bearer {SECRET} x\r\n",
        f"Authorization: Bearer {SECRET}\r\nAuthorization: Bearer {SECRET}\r\n",
        f"Authorization: Bearer \xff{SECRET}\r\n",
    ):
        head = f"POST /mhs/v1/rpc?access_token={SECRET} HTTP/1.1\r\nHost: localhost\r\n{header}"
        answers.append(await raw(guarded, head.encode("latin-1") + FRAMED))
    assert {answer.status for answer in answers} == {401}
    assert {answer.headers["www-authenticate"] for answer in answers} == {"Bearer"}
    assert len({answer.body for answer in answers}) == 1
    assert answers[0].mhs_code == "MHS.AUTH.UNAUTHENTICATED"
    assert SECRET.encode() not in answers[0].body
    assert guarded.door.entered == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
async def test_a_valid_token_makes_its_principal_the_sender(guarded: Served, scheme: str) -> None:
    client = await guarded.connect()
    assert (await client.post(BODY, f"Authorization: {scheme} {SECRET}")).status == 200
    peer = guarded.door.peers[0]
    assert (peer.principal.id, peer.role, peer.devices, peer.binding) == (
        "agent:a",
        "reader",
        ("/d",),
        "http",
    )
    assert peer.authenticated
    assert not peer.needs_hello


async def test_schemas_and_stops_need_the_token_and_the_descriptor_does_not(guarded: Served) -> None:
    client = await guarded.connect()
    assert (await client.get("/.well-known/mhs.json")).status == 200
    assert (await client.get("/mhs/v1/schema/receipt")).status == 401
    client = await guarded.connect()
    assert (await client.post(STOP)).status == 401


async def test_one_connection_carries_requests_of_several_principals(guarded: Served) -> None:
    client = await guarded.connect()
    assert (await client.post(BODY, f"Authorization: Bearer {SECRET}")).status == 200
    assert (await client.post(BODY)).status == 401


async def test_a_slow_head_and_a_slow_body_are_408(serve: Serve) -> None:
    served = await serve(socket_timeout_s=0.2)
    head = b"POST /mhs/v1/rpc HTTP/1.1\r\nHost: localhost\r\n"
    for data in (head, head + b"Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{"):
        answer = await raw(served, data)
        assert (answer.status, answer.mhs_code) == (408, "MHS.TRANSPORT.UNAVAILABLE")
    assert served.door.entered == []


async def test_a_head_that_trickles_in_does_not_extend_its_time(serve: Serve) -> None:
    served = await serve(socket_timeout_s=0.3)
    client = await served.connect()

    async def trickle() -> None:
        while True:
            await client.send(b"X: y\r\n")
            await trio.sleep(0.02)

    await client.send(b"POST /mhs/v1/rpc HTTP/1.1\r\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        assert (await client.answer()).status == 408
        nursery.cancel_scope.cancel()


async def test_an_idle_connection_is_closed_without_an_answer(serve: Serve) -> None:
    served = await serve(socket_timeout_s=0.2)
    client = await served.connect()
    assert await client.at_end()
    client = await served.connect()
    assert (await client.post(BODY)).status == 200
    assert await client.at_end()
