"""What a driver raises, in any wrapping, is named as the table of MHS-002 section 10.2 has it."""

import asyncio
import concurrent.futures
from types import SimpleNamespace
from typing import Any

import pytest

from mhsd.core.operations import Failed, Interrupted, Lost, Native, Refused
from mhsd.driver import Busy, Cancelled, DriverFailed, LinkDown, OutcomeUnknown
from mhsd.services.native import call_driver


class _Own(DriverFailed):
    """A driver author's own subclass of a signal."""


def _host(raised: BaseException) -> Any:
    async def invoke(_: Any) -> Any:
        raise raised

    safety = SimpleNamespace(interlocks={})
    return SimpleNamespace(
        device_id="d", driver=SimpleNamespace(invoke=invoke), manifest=SimpleNamespace(safety=safety)
    )


async def _native(raised: BaseException) -> Native:
    attempt = SimpleNamespace(capability_id="cap.a.v1", input={}, command_id="c")
    operation: Any = SimpleNamespace(attempt=attempt, stop_native=None, native_returned=False)
    binding: Any = SimpleNamespace(
        capability_id="cap.a.v1", resource="r", interlocks=(), max_duration_ms=1, long_running=False
    )
    native = await call_driver(_host(raised), operation, binding, lambda *_: None)
    assert operation.native_returned
    return native


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (DriverFailed("MHS.DEVICE.FAULT", "no"), Failed),
        (_Own("MHS.DEVICE.FAULT", "no"), Failed),
        (Busy(5, "later"), Refused),
        (LinkDown("gone"), Refused),
        (OutcomeUnknown("lost"), Lost),
        (Cancelled(True), Interrupted),
        (asyncio.CancelledError(), Interrupted),
        (concurrent.futures.CancelledError(), Interrupted),
        (ExceptionGroup("nursery", [Busy(5, "later")]), Refused),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [OutcomeUnknown("lost")])]), Lost),
        (BaseExceptionGroup("nursery", [asyncio.CancelledError()]), Interrupted),
        (ValueError("secret"), Failed),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_what_a_driver_raises_becomes_its_row_of_the_table(
    raised: BaseException, kind: type[Native]
) -> None:
    """[OP-014, PROTO-028]"""
    native = await _native(raised)
    assert isinstance(native, kind)
    if type(raised) is ValueError:
        assert isinstance(native, Failed)
        assert native.fault.mhs_code == "MHS.ADAPTER.SHIM_FAILED"
        assert "secret" not in str(native.fault.data())
