"""One-time tickets for the WebSockets of browsers [TPT-023, TPT-059; MHSD-9a-88]."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from mhsd.base.errors import Fault
from mhsd.bindings import checks
from mhsd.bindings.routes import ROUTES
from mhsd.bindings.tickets import EXPIRES_IN_S, MOST_TICKETS, Tickets, shown_in
from mhsd.bindings.ws import websocket_routes
from mhsd.protocol.auth import TokenFiles
from mhsd.protocol.peer import Peer, Principal
from tests.bindings.conftest import Serve, Served
from tests.bindings.fakes import Answer, Client, call
from tests.bindings.sockets import WsClient

PEER = Peer(Principal("agent:a", "agent"), "client", "http", devices=("/d",))
SECRET = "s3cret-of-the-bench"
PATH = "/mhs/v1/ws-ticket"


def asked_again(peer: Peer, **change: object) -> Peer:
    """The peer with a credential that is found to be of somebody changed like this."""
    return attrs.evolve(peer, recheck=lambda: attrs.evolve(peer, **change))  # type: ignore[arg-type]


LASTING = asked_again(PEER)


def issued(tickets: Tickets, peer: Peer = LASTING) -> str:
    ticket = tickets.issue(peer)
    assert ticket is not None
    return ticket


async def test_a_ticket_has_256_bits_and_is_worth_one_connection() -> None:
    """[TPT-023]"""
    tickets = Tickets()
    ticket, other = issued(tickets), issued(tickets)
    assert len(base64.urlsafe_b64decode(ticket + "=")) == 32
    assert ticket != other
    assert tickets.redeem(ticket) is LASTING
    assert tickets.redeem(ticket) is None
    assert tickets.redeem("guessed") is None
    assert tickets.redeem("\udcff") is None
    assert tickets.redeem(other) is LASTING


async def test_a_ticket_expires(autojump_clock: trio.testing.MockClock) -> None:
    """[TPT-023]"""
    tickets = Tickets()
    early, late = issued(tickets), issued(tickets)
    await trio.sleep(EXPIRES_IN_S - 0.1)
    assert tickets.redeem(early) is LASTING
    await trio.sleep(0.1)
    assert tickets.redeem(late) is None


async def test_a_principal_has_so_many_tickets_and_gets_more_when_they_are_used_or_expire(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """[TPT-020, TPT-023]"""
    tickets = Tickets()
    mine = [issued(tickets) for _ in range(MOST_TICKETS)]
    assert tickets.issue(LASTING) is None
    issued(tickets, asked_again(attrs.evolve(PEER, principal=Principal("agent:b", "agent"))))
    tickets.redeem(mine[0])
    issued(tickets)
    assert tickets.issue(LASTING) is None
    await trio.sleep(EXPIRES_IN_S)
    issued(tickets)


@pytest.mark.parametrize(
    "change",
    [
        {"role": "operator"},
        {"devices": None},
        {"capabilities": ("cap.*",)},
        {"principal": Principal("agent:b", "agent")},
        {"stop_only": True},
    ],
    ids=str,
)
async def test_a_ticket_is_bound_to_the_principal_and_what_it_may_do(change: dict[str, object]) -> None:
    """[TPT-023, TPT-059]"""
    tickets = Tickets()
    assert tickets.redeem(issued(tickets, asked_again(PEER, **change))) is None


async def test_a_ticket_of_a_credential_that_is_gone_is_worth_nothing() -> None:
    """[TPT-059]"""
    tickets = Tickets()

    def gone() -> Peer:
        raise checks.unauthenticated()

    assert tickets.redeem(issued(tickets, attrs.evolve(PEER, recheck=gone))) is None


async def test_only_the_digest_of_a_ticket_is_kept() -> None:
    """[TPT-059]"""
    tickets = Tickets()
    ticket = issued(tickets)
    kept = repr(vars(tickets))
    assert ticket not in kept
    assert repr(hashlib.sha256(ticket.encode()).digest()) in kept


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (b"/mhs/v1/ws", None),
        (b"/mhs/v1/ws?", None),
        (b"/mhs/v1/ws?access_token=x&token=y&Ticket=z", None),
        (b"/mhs/v1/ws?ticket=abc", "abc"),
        (b"/mhs/v1/ws?x=1&ticket=a%2Db#ticket=c", "a-b"),
        (b"/mhs/v1/ws?ticket=", ""),
        (b"/mhs/v1/ws?ticket=a&ticket=a", ""),
        (b"/mhs/v1/ws?ticket=%ff\xff", "\ufffd\xff"),
    ],
)
def test_nothing_but_one_ticket_is_read_from_a_query(target: bytes, shown: str | None) -> None:
    """[TPT-023, TPT-059]"""
    assert shown_in(target) == shown


# Over HTTP


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    write(path, SECRET)
    return path


def write(path: Path, secret: str) -> None:
    """Make this the only token that is valid."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    path.write_text(
        f'[[token]]\nsha256 = "{digest}"\nprincipal = "agent:a"\nrole = "reader"\ndevices = ["/d"]\n'
    )
    path.chmod(0o600)


@pytest.fixture
async def guarded(serve: Serve, token_file: Path) -> Served:
    return await serve(routes={**ROUTES, **websocket_routes()}, tokens=TokenFiles.load(token_file, None))


BEARER = f"Authorization: Bearer {SECRET}"


async def ask(client: Client, *headers: str) -> Answer:
    return await client.get(PATH, *headers, method="POST")


async def ticket_of(served: Served) -> str:
    answer = await ask(await served.connect(), BEARER)
    assert answer.status == 200
    document = json.loads(answer.body)
    assert document.keys() == {"ticket", "expires_in_s"}
    assert document["expires_in_s"] == 30
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "application/json"
    return str(document["ticket"])


async def socket_with(served: Served, ticket: str, *headers: str) -> tuple[WsClient, Answer]:
    client = WsClient((await served.connect()).stream)
    return client, await client.open(*headers, target=f"/mhs/v1/ws?ticket={ticket}")


async def test_a_ticket_opens_one_socket_for_its_principal(guarded: Served) -> None:
    """[TPT-023]"""
    ticket = await ticket_of(guarded)
    client, answer = await socket_with(guarded, ticket)
    assert answer.status == 101
    await client.say(call())
    assert await client.text() == call()
    peer = guarded.door.peers[0]
    assert (peer.principal.id, peer.role, peer.devices, peer.binding) == ("agent:a", "reader", ("/d",), "ws")
    assert SECRET not in repr(peer)
    _, again = await socket_with(guarded, ticket)
    assert (again.status, again.mhs_code) == (401, "MHS.AUTH.UNAUTHENTICATED")
    _, shown = await socket_with(guarded, ticket, BEARER)
    assert shown.status == 401, "what is asked for with a ticket is given for a ticket"


async def test_a_401_for_a_ticket_is_word_for_word_that_for_no_token(guarded: Served) -> None:
    """[TPT-014, TPT-059]"""
    client = WsClient((await guarded.connect()).stream)
    none = await client.open()
    _, wrong = await socket_with(guarded, "guessed")
    assert (none.status, none.body) == (401, wrong.body)


async def test_taking_the_token_back_takes_its_tickets_back(guarded: Served, token_file: Path) -> None:
    """[TPT-059]"""
    ticket = await ticket_of(guarded)
    write(token_file, "another")
    _, answer = await socket_with(guarded, ticket)
    assert answer.status == 401


async def test_a_ticket_opens_nothing_but_a_socket(guarded: Served) -> None:
    """[TPT-023]"""
    ticket = await ticket_of(guarded)
    client = await guarded.connect()
    assert (await client.get(f"/mhs/v1/schema/receipt?ticket={ticket}")).status == 401
    client = await guarded.connect()
    assert (await client.post(call(), path=f"/mhs/v1/rpc?ticket={ticket}")).status == 401
    client = await guarded.connect()
    assert (await client.get(f"{PATH}?ticket={ticket}", method="POST")).status == 401
    _, answer = await socket_with(guarded, ticket)
    assert answer.status == 101


async def test_a_ticket_needs_a_credential_a_post_and_a_known_host(guarded: Served) -> None:
    """[TPT-010, TPT-014, TPT-023]"""
    assert (await ask(await guarded.connect())).status == 401
    assert (await (await guarded.connect()).get(PATH, BEARER)).status == 405
    foreign = await ask(await guarded.connect(), BEARER, "Origin: https://evil.example")
    assert (foreign.status, foreign.mhs_code) == (403, "MHS.AUTH.FORBIDDEN")


async def test_a_body_means_nothing_and_the_connection_goes_on(guarded: Served) -> None:
    client = await guarded.connect()
    for body in (b"", b"{}"):
        assert (await client.post(body, BEARER, path=PATH)).status == 200
    assert (await ask(client, BEARER)).status == 200


async def test_one_ticket_too_many_is_429(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """[TPT-020]"""
    monkeypatch.setattr("mhsd.bindings.tickets.MOST_TICKETS", 1)
    await ticket_of(guarded)
    answer = await ask(await guarded.connect(), BEARER)
    assert (answer.status, answer.mhs_code, answer.headers["retry-after"]) == (
        429,
        "MHS.LIMIT.CONNECTION_LIMIT",
        "30",
    )


async def test_tickets_count_against_the_rate(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """[TPT-020]"""

    def charge(peer: Peer) -> None:
        raise Fault("MHS.LIMIT.RATE_EXCEEDED", "too fast", details={"retry_after_ms": 1200})

    monkeypatch.setattr(guarded.door, "charge", charge)
    answer = await ask(await guarded.connect(), BEARER)
    assert (answer.status, answer.mhs_code, answer.headers["retry-after"]) == (
        429,
        "MHS.LIMIT.RATE_EXCEEDED",
        "2",
    )


async def test_without_tokens_a_ticket_is_still_used_once(serve: Serve) -> None:
    """[TPT-023]"""
    served = await serve(routes={**ROUTES, **websocket_routes()})
    ticket = await ticket_of(served)
    assert (await socket_with(served, ticket))[1].status == 101
    assert (await socket_with(served, ticket))[1].status == 401


async def test_no_ticket_reaches_the_log(guarded: Served, caplog: pytest.LogCaptureFixture) -> None:
    """[TPT-059]"""
    with caplog.at_level(logging.DEBUG):
        ticket = await ticket_of(guarded)
        client, _ = await socket_with(guarded, ticket)
        await socket_with(guarded, ticket)
        await client.say(call())
        await client.text()
        await client.stream.aclose()
    assert caplog.records
    assert ticket not in caplog.text
