"""`discover`, and -e with a name of the endpoints file: what is known, what answers, and who is told which token."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.cli.conftest import BIN, Daemon, Done, ctl
from tests.cli.shapes import has_shape, shapes

PROBED = "/.well-known/mhs.json"


class Site:
    """An HTTP server that answers every GET alike and keeps the credentials it was shown."""

    def __init__(self, status: int = 200, document: Any = None, *, wanted: str | None = None) -> None:
        self.seen: list[tuple[str, str | None]] = []
        site = self
        content = json.dumps(
            {"endpoint_id": "mhs://site:7400", "transports": {}} if document is None else document
        )

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                shown = self.headers.get("Authorization")
                site.seen.append((self.path, shown))
                self.send_response(401 if wanted not in (None, shown) else status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content.encode())

            def log_message(self, *_: object) -> None:
                """Keeps pytest's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    running = Site()
    yield running
    running.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where connections are accepted and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def discover(tmp_path: Path, *words: str, endpoints: list[dict[str, str]] | None = None, **more: str) -> Done:
    """`mhsctl discover` with a home of its own and, where given, an endpoints file there."""
    if endpoints is not None:
        (tmp_path / ".mhs").mkdir(exist_ok=True)
        (tmp_path / ".mhs" / "endpoints.json").write_text(json.dumps({"endpoints": endpoints}))
    return ctl("discover", *words, cwd=tmp_path, HOME=str(tmp_path), **more)


def test_the_variable_and_the_file_are_listed_and_what_answers_is_told(
    shared: Daemon, tmp_path: Path
) -> None:
    """[CORE-120] Entries of both, in order; what serves says who it is, and nobody is trusted [CORE-121]."""
    port = shared.url.rpartition(":")[2]
    listed = f" mhs://127.0.0.1:{port} ,stdio:mhsd --stdio conveyor-workcell,http://127.0.0.1:1,"
    done = discover(
        tmp_path, "--json", endpoints=[{"name": "bench", "url": shared.url}], MHS_ENDPOINTS=listed
    )
    assert (done.code, done.err) == (0, "")
    has_shape(done.json, shapes()["discover"])
    entries = done.json["endpoints"]
    assert [entry["url"] for entry in entries] == [
        f"mhs://127.0.0.1:{port}",
        "stdio:mhsd --stdio conveyor-workcell",
        "http://127.0.0.1:1",
        shared.url,
    ]
    assert [entry["reachable"] for entry in entries] == [True, None, False, True]
    assert [entry["name"] for entry in entries] == [None, None, None, "bench"]
    assert entries[0]["endpoint_id"] == entries[3]["endpoint_id"] == "mhs://localhost:7400"
    assert entries[3]["devices"] == 1
    assert entries[2]["error"]["mhs_code"] == "MHS.TRANSPORT.UNAVAILABLE"
    assert all(entry["trusted"] is False for entry in entries + done.json["local"])


def test_the_endpoints_of_this_machine_are_listed_beside_them(shared: Daemon, tmp_path: Path) -> None:
    local = discover(tmp_path, "--json").json["local"]
    assert any(entry["url"].startswith("unix:") and entry["reachable"] for entry in local)


def test_a_person_sees_a_table_and_that_nothing_is_trusted(shared: Daemon, tmp_path: Path) -> None:
    done = discover(tmp_path, endpoints=[{"name": "bench", "url": shared.url}, {"url": "http://127.0.0.1:1"}])
    assert done.code == 0
    assert re.search(rf"^{re.escape(shared.url)} +bench +answers ", done.out, re.MULTILINE)
    assert "not reached" in done.out
    assert "Connection refused" in done.out
    assert "does not mean trusted" in done.out


def test_a_command_is_listed_and_never_started(tmp_path: Path) -> None:
    """[CORE-120] Its words are those between the spaces."""
    done = discover(tmp_path, "--json", MHS_ENDPOINTS="stdio:touch started")
    assert done.json["endpoints"][0]["url"] == "stdio:touch started"
    assert not (tmp_path / "started").exists()


def test_probing_is_bounded_and_one_that_is_silent_holds_up_no_other(
    site: Site, silent: str, tmp_path: Path
) -> None:
    done = discover(tmp_path, "--timeout", "0.5", "--json", MHS_ENDPOINTS=f"{silent},{site.url},{silent}")
    assert done.code == 0
    assert [entry["reachable"] for entry in done.json["endpoints"]] == [False, True, False]
    assert "did not answer within 0.5 s" in done.json["endpoints"][0]["error"]["message"]


@pytest.mark.parametrize(
    ("status", "document"),
    [(404, None), (302, None), (500, None), (200, []), (200, {"endpoint_id": 7}), (200, {"hello": "web"})],
)
def test_what_is_no_endpoint_is_not_taken_for_one(tmp_path: Path, status: int, document: Any) -> None:
    """A redirect is not followed either."""
    other = Site(status, document)
    try:
        entry = discover(tmp_path, "--json", MHS_ENDPOINTS=other.url).json["endpoints"][0]
    finally:
        other.close()
    assert (entry["reachable"], entry["endpoint_id"]) == (False, None)
    assert "no MHS endpoint" in entry["error"]["message"]
    assert [path for path, _ in other.seen] == [PROBED]


def test_plain_http_to_another_machine_is_not_even_asked(tmp_path: Path) -> None:
    """[TPT-013]"""
    entry = discover(tmp_path, "--json", MHS_ENDPOINTS="http://bench.example:7400").json["endpoints"][0]
    assert entry["error"]["mhs_code"] == "MHS.AUTH.TRANSPORT_INSECURE"


def test_a_token_is_shown_to_its_own_entry_alone_and_only_where_it_is_asked_for(
    site: Site, tmp_path: Path
) -> None:
    """[CORE-122] Discovery authenticates nothing [CORE-121], so an open endpoint sees no token at all."""
    guarded = Site(wanted="Bearer own-secret")
    (tmp_path / ".mhs").mkdir()
    for name in ("own", "other"):
        (tmp_path / ".mhs" / name).write_text(f"{name}-secret\n")
        (tmp_path / ".mhs" / name).chmod(0o600)
    endpoints = [
        {"url": site.url, "token_file": "other"},
        {"url": guarded.url, "token_file": "own"},
        {"url": guarded.url},
    ]
    try:
        done = discover(tmp_path, "--json", endpoints=endpoints)
    finally:
        guarded.close()
    assert [entry["reachable"] for entry in done.json["endpoints"]] == [True, True, False]
    assert site.seen == [(PROBED, None)]
    assert {shown for _, shown in guarded.seen} == {None, "Bearer own-secret"}
    assert done.json["endpoints"][1]["token_file"] == str(tmp_path / ".mhs" / "own")
    assert "secret" not in done.out + done.err


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "holds a list"),
        ("{", "is no JSON"),
        ('{"endpoints": [{"url": "http://a:1"}, {"name": "x"}]}', "/endpoints/1"),
        ('{"endpoints": [{"url": "ftp://a"}]}', "/endpoints/0/url"),
        ('{"endpoints": [{"url": "http://user@a:1"}]}', "/endpoints/0/url"),
        ('{"endpoints": [{"url": "http://a:1", "tokenfile": "t"}]}', "tokenfile"),
        ('{"endpoints": [{"url": "http://a:1", "name": "a"}, {"url": "http://b:1", "name": "a"}]}', "name a"),
    ],
)
def test_an_invalid_file_is_a_usage_error_that_names_file_and_key(
    tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "known.json"
    file.write_text(text)
    for done in (
        discover(tmp_path, "--file", "known.json"),
        discover(tmp_path, MHS_ENDPOINTS_FILE=str(file)),
        ctl("devices", "-e", "bench", cwd=tmp_path, MHS_ENDPOINTS_FILE=str(file)),
    ):
        assert (done.code, done.out) == (2, "")
        assert "known.json" in done.err
        assert named in done.err


def test_a_file_that_was_named_must_be_there_and_a_wrong_variable_is_named(tmp_path: Path) -> None:
    assert discover(tmp_path).code == 0
    assert discover(tmp_path, "--file", "nothing.json").code == 2
    done = discover(tmp_path, "--json", MHS_ENDPOINTS="http://127.0.0.1:1,nonsense")
    assert done.code == 2
    assert "MHS_ENDPOINTS" in done.json["error"]["message"]


def test_a_name_of_the_file_brings_its_address_its_token_and_its_directory(tmp_path: Path) -> None:
    """[CORE-122, MHSD-8-10] The token file and the directory are relative to the endpoints file."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "secret").write_text("s3cret\n")
    (site / "secret").chmod(0o600)
    daemon = Daemon("conveyor-workcell", "--token-file", str(site / "secret"), cwd=tmp_path)
    file = site / "endpoints.json"
    file.write_text(
        json.dumps(
            {
                "endpoints": [
                    {"name": "bench", "url": daemon.url, "token_file": "secret"},
                    {"name": "bare", "url": daemon.url},
                    {"name": "child", "url": f"stdio:{BIN}/mhsd --stdio ./copy", "cwd": "."},
                ]
            }
        )
    )
    try:
        for words in (("devices",), ("status",), ("estop",)):
            assert ctl(*words, "-e", "bench", MHS_ENDPOINTS_FILE=str(file)).code == 0
        assert ctl("devices", MHS_ENDPOINT="bench", MHS_ENDPOINTS_FILE=str(file)).code == 0
        assert ctl("devices", "-e", "bare", MHS_ENDPOINTS_FILE=str(file)).code == 4
    finally:
        daemon.stop()
    child = ctl("devices", "-e", "child", MHS_ENDPOINTS_FILE=str(file))
    assert child.code == 3
    assert str(site / "copy") in child.err or "./copy" in child.err
    unknown = ctl("devices", "-e", "bunch", MHS_ENDPOINTS_FILE=str(file))
    assert unknown.code == 2
    assert "bare, bench, child" in unknown.err
