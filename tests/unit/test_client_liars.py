"""An endpoint that answers nonsense: every call of the code API ends in time, and in an MHSError if any [TPT-055]."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import mhsd
from mhsd.client.calls import Agreed, budget, limit
from tests.cli.tiny import HELLO, Answer, Endpoint, Request, Tiny, http, result

DEVICE = str(HELLO["devices"][0]["device_id"])
GRANT = {"session_id": "mhs_s_1", "mode": "simulated", "expires_at": "2026-10-20T07:55:00.000Z"}
HUGE = 10**400
FAR = "9999-12-31T23:59:59Z"


@pytest.fixture
def served() -> Iterator[Any]:
    """A client of an endpoint with these methods."""
    with ExitStack() as opened:

        def begin(answer: Answer | None = None, **methods: Any) -> mhsd.Client:
            usual = {"hello": HELLO, "session_open": GRANT, "session_close": {}, **methods}
            constant = {name: (lambda _, said=said: said) for name, said in usual.items()}
            tiny = Tiny(answer or Endpoint(**constant))
            opened.callback(tiny.close)
            return opened.enter_context(mhsd.connect(tiny.url, timeout_s=5.0))

        yield begin


@pytest.mark.parametrize(
    "limits",
    [None, 7, {"max_request_bytes": float("inf")}, {"max_rate_per_s": HUGE}, {"rate_burst": float("nan")}],
)
def test_limits_that_are_none_are_the_usual_ones(served: Any, limits: Any) -> None:
    client = served(hello={**HELLO, "limits": limits})
    with client.session() as session:
        assert session.mode == "simulated"
    assert limit({"limits": limits}, "max_rate_per_s", 50) == 50


@pytest.mark.parametrize("now", ["garbage", "0001-01-01T00:00:00"])
def test_a_time_that_is_none_is_a_protocol_error(served: Any, now: str) -> None:
    with pytest.raises(mhsd.ProtocolError, match="time"):
        served(hello={**HELLO, "time": {"now": now}}).session()
    with pytest.raises(mhsd.ProtocolError, match="expires_at"):
        served(session_open={**GRANT, "expires_at": now}).session()


def test_a_session_that_never_ends_has_heartbeats_all_the_same(served: Any) -> None:
    client = served(session_open={**GRANT, "expires_at": FAR}, subscribe={"subscription_id": "sub_1"})
    with client.session() as session:
        assert session._pulse._every_s <= 86_400
        assert session._inner.lifetime_s(session.grant) <= 86_400


@pytest.mark.parametrize("asked", [HUGE, 10**12, -1, 0])
def test_a_deadline_of_any_size_is_sent_and_waited_for_no_longer_than_is_allowed(asked: int) -> None:
    sent, wait_s = budget("mhs.command", {"deadline_ms": asked}, 30.0, Agreed())
    assert sent["deadline_ms"] == asked
    assert wait_s <= 605


@pytest.mark.parametrize("asked", [str(HUGE), "1e999", "NaN", "-5", "true", '"soon"', "[]"])
def test_a_time_to_wait_that_is_none_is_not_waited_for(served: Any, asked: str) -> None:
    def refuse(request: Request) -> bytes:
        request_id = json.dumps(request.message["id"])
        details = f'{{"retry_after_ms": {asked}}}'
        data = f'{{"mhs_code": "MHS.LIMIT.RATE_EXCEEDED", "details": {details}}}'
        error = f'{{"code": -32011, "message": "no", "data": {data}}}'
        return http(429, f'{{"jsonrpc": "2.0", "id": {request_id}, "error": {error}}}'.encode())

    with pytest.raises(mhsd.MHSError) as refused:
        served(refuse).call("mhs.devices.list")
    assert refused.value.mhs_code == "MHS.LIMIT.RATE_EXCEEDED"
    assert refused.value.retry_after_s is None


def test_a_retry_after_of_another_script_is_not_used(served: Any) -> None:
    with pytest.raises(mhsd.MHSError, match="429"):
        served(lambda _: http(429, Retry_After="²").decode().encode("latin-1")).call("mhs.devices.list")


@pytest.mark.parametrize("status", [["completed"], None, {}, 7])
def test_a_status_that_is_none_is_returned_as_it_came(served: Any, status: Any) -> None:
    with served(command={"status": status}).session() as session:
        receipt = session.invoke("cap.x.v1", {}, wait=True)
    assert receipt == {"status": status}
    assert not receipt.final


@pytest.mark.parametrize("first", ["x", None, 1.5, "9" * 5000])
def test_a_first_number_that_is_none_is_a_protocol_error(served: Any, first: Any) -> None:
    client = served(subscribe={"subscription_id": "sub_1", "seq_start": first})
    with client.session() as session, pytest.raises(mhsd.ProtocolError, match="seq_start"):
        session.subscribe("state")


@pytest.mark.parametrize(
    "page",
    [
        {"receipts": 7},
        {"receipts": {"a": 1}},
        {"receipts": [], "truncation": {"next_since_receipt": "r_1"}},
        {"receipts": [{}], "truncation": {"next_since_receipt": "r_1"}},
    ],
)
def test_pages_of_evidence_that_lead_nowhere_are_a_protocol_error(served: Any, page: Any) -> None:
    with pytest.raises(mhsd.ProtocolError, match="page of evidence"):
        served(evidence_export=page).export_evidence()


def test_a_document_deeper_than_the_protocol_allows_can_be_shown(served: Any) -> None:
    deep = '{"a": ' * 500 + "[" * 50 + "]" * 50 + "}" * 500

    def answer(request: Request) -> bytes:
        text = json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "result": {"output": 0}})
        return http(200, text.replace('"output": 0', f'"status": "completed", "output": {deep}').encode())

    stopped = served(answer).estop()
    assert "…" in repr(stopped)
    assert "…" in str(stopped)
    assert "…" in stopped._repr_html_()


@pytest.fixture
def crowded() -> Iterator[None]:
    """A process with more than 1024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2000, hard), hard))
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(Path("/dev/null").open("rb"))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_program_with_many_open_files_uses_its_connections_again(served: Any, crowded: None) -> None:
    client = served(lambda request: result(request, {}))
    for _ in range(3):
        assert client.call("mhs.devices.list") == {}


def test_a_program_with_many_open_files_writes_to_a_child(crowded: None, tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    request_id = json.loads(line)['id']\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': request_id, 'result': {}}), flush=True)\n"
    )
    with mhsd.connect(["python3", str(script)]) as client:
        assert client.call("mhs.safety.status") == {}
