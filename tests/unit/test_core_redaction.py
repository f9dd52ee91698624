"""What a manifest declares as secret is taken out of receipts, and nothing else is."""

from mhsd.base.errors import Fault
from mhsd.core.redaction import redacted
from tests.documents import check_receipt

BODY = {
    "status": "completed",
    "output": {"model": "m", "serial": "s", "parts": [{"serial": 1}, {"serial": 2}]},
}


def test_what_a_pointer_names_is_gone_and_named() -> None:
    """[EVID-002]"""
    body = redacted(BODY, ["/output/serial"])
    assert body == {
        "status": "completed",
        "output": {"model": "m", "parts": [{"serial": 1}, {"serial": 2}]},
        "redacted_fields": ["/output/serial"],
    }
    assert BODY["output"]["serial"] == "s", "the body that was given is left as it was"


def test_a_pointer_reaches_into_arrays_and_leaves_their_places() -> None:
    """[EVID-002]"""
    parts = redacted(BODY, ["/output/parts/1/serial"])["output"]["parts"]
    assert parts == [{"serial": 1}, {}]
    assert redacted(BODY, ["/output/parts/0"])["output"]["parts"] == [None, {"serial": 2}]


def test_a_body_without_the_secret_is_the_same_body() -> None:
    """[EVID-002]"""
    for pointer in (
        "/output/nothing",
        "/output/parts/7",
        "/output/parts/x",
        "/output/model/deep",
        "/error/details/x",
    ):
        assert redacted(BODY, [pointer]) is BODY
    assert redacted(BODY, []) is BODY


def test_a_secret_in_an_error_goes_from_both_of_its_places() -> None:
    """[PROTO-042]"""
    fault = Fault("MHS.DEVICE.FAULT", "broken", details={"serial": "s", "native_code": "7"})
    body = {
        "receipt_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4X",
        "command_id": "01J8ZQ3V6Y7M2N4P6R8S0T2V4X",
        "session_id": "mhs_s_x",
        "endpoint_id": "mhs://localhost:7400",
        "device_id": "mhs://localhost:7400/lab/x",
        "capability_id": "cap.world.step.v1",
        "input_digest": "sha256:" + "0" * 64,
        "status": "failed",
        "mode": "simulated",
        "accepted_at": "2026-10-20T07:46:58.900Z",
        "error": fault.receipt_error(),
    }
    receipt = redacted(body, ["/error/details/serial", "/output/serial"])
    assert receipt["error"]["details"] == receipt["error"]["data"]["details"] == {"native_code": "7"}
    assert receipt["redacted_fields"] == ["/error/details/serial"]
    check_receipt(receipt)
