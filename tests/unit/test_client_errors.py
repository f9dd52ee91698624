"""Errors as a caller sees them, and the client's copies of the spec's tables."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from mhsd.base.errors import ERRORS
from mhsd.base.resources import METHODS
from mhsd.client import errors
from mhsd.client.calls import DEADLINED, EFFECTFUL
from mhsd.client.documents import Receipt


def test_the_clients_own_codes_are_rows_of_the_error_table() -> None:
    assert {code: ERRORS[code].retryable for code in errors.OWN_CODES} == dict(errors.OWN_CODES)


def test_the_methods_with_a_deadline_are_those_of_the_method_table() -> None:
    assert {name for name, row in METHODS.items() if row.deadline} == DEADLINED


def test_every_effectful_method_is_known_to_change_something() -> None:
    assert {name for name, row in METHODS.items() if row.effectful} <= EFFECTFUL
    assert set(METHODS) >= EFFECTFUL


@pytest.mark.parametrize(
    ("mhs_code", "kind"),
    [
        ("MHS.TRANSPORT.UNAVAILABLE", errors.TransportError),
        ("MHS.OUTCOME.UNKNOWN", errors.OutcomeUnknown),
        ("MHS.PROTOCOL.INVALID_PARAMS", errors.ProtocolError),
        ("MHS.AUTH.FORBIDDEN", errors.AuthError),
        ("MHS.SESSION.EXPIRED", errors.SessionError),
        ("MHS.DEVICE.UNKNOWN", errors.MHSError),
    ],
)
def test_the_group_of_a_code_is_its_exception(mhs_code: str, kind: type[errors.MHSError]) -> None:
    raised = errors.from_answer(
        {"code": -1, "message": "m", "data": {"mhs_code": mhs_code, "retryable": True}}
    )
    assert type(raised) is kind
    assert raised.retryable is True


def test_the_data_of_an_answer_is_kept_as_it_came() -> None:
    data = {
        "mhs_code": "MHS.CONFLICT.REVISION",
        "retryable": True,
        "remediation": "Read again.",
        "current_revision": 7,
    }
    raised = errors.from_answer({"code": -32006, "message": "moved on", "data": data}, 200)
    assert raised.document() == {
        "mhs_code": "MHS.CONFLICT.REVISION",
        "message": "moved on",
        "retryable": True,
        "data": data,
        "remediation": "Read again.",
    }


def test_an_http_refusal_shows_both_layers() -> None:
    data = {"mhs_code": "MHS.AUTH.UNAUTHENTICATED", "retryable": False, "remediation": "Send a token."}
    raised = errors.from_answer({"code": -32001, "message": "who?", "data": data}, 401)
    assert raised.document()["data"] == {**data, "http_status": 401}


@pytest.mark.parametrize(
    "answered", [None, [], "no", {}, {"data": []}, {"message": 3, "data": {"mhs_code": 4}}]
)
def test_an_error_object_of_a_foreign_endpoint_may_lack_anything(answered: object) -> None:
    raised = errors.from_answer(answered)
    assert raised.mhs_code == "MHS.INTERNAL.ERROR"
    assert raised.message
    assert raised.retryable is False


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))]
)
def test_an_error_survives_a_copy_and_a_pool_of_processes(copied: Callable[[Any], Any]) -> None:
    """[TPT-055]"""
    unknown = errors.from_answer({"message": "no", "data": {"mhs_code": "MHS.X.Y", "details": {"a": 1}}}, 403)
    unknown.add_note("while sweeping")
    rejected = errors.MHSRejected(Receipt({"status": "rejected", "error": {"mhs_code": "MHS.SAFETY.X"}}))
    for told in (unknown, rejected, errors.error("MHS.TRANSPORT.UNAVAILABLE", "away", "Wait.")):
        again = copied(told)
        assert type(again) is type(told)
        assert (str(again), again.args, vars(again)) == (str(told), told.args, vars(told))
    assert copied(rejected).receipt == rejected.receipt
