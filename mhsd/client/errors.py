"""What a call can raise: one exception per group of codes, made from an answer or by the client itself.

A refusal of a command is a receipt and never an exception [TPT-055]; what stands here are failures of the
transport, the protocol, authentication and sessions [PROTO-028], and the endpoint's other errors.
"""

from collections.abc import Mapping
from typing import Any

OWN_CODES: Mapping[str, bool] = {
    "MHS.TRANSPORT.UNAVAILABLE": True,
    "MHS.OUTCOME.TIMEOUT": False,
    "MHS.OUTCOME.UNKNOWN": False,
    "MHS.OPERATION.UNKNOWN": False,
    "MHS.PROTOCOL.INVALID_REQUEST": False,
    "MHS.PROTOCOL.INVALID_PARAMS": False,
    "MHS.PROTOCOL.VERSION_UNSUPPORTED": False,
    "MHS.AUTH.UNAUTHENTICATED": False,
    "MHS.AUTH.FORBIDDEN": False,
    "MHS.AUTH.TRANSPORT_INSECURE": False,
    "MHS.LIMIT.RATE_EXCEEDED": True,
    "MHS.LIMIT.PAYLOAD_TOO_LARGE": False,
    "MHS.DEVICE.UNKNOWN": False,
    "MHS.INTERNAL.ERROR": False,
}
"""The codes that the client and mhsctl state by themselves, with `retryable` as in spec/errors.toml.

A copy, because the table's reader imports attrs; tests/unit/test_client_errors.py compares the two.
"""


_LONGEST_RETRY_MS = 86_400_000
"""A longer wait is none that an endpoint could mean."""


class MHSError(Exception):
    """No receipt exists for a call, and this is why.

    `data` is the JSON-RPC error's data where the endpoint answered one [PROTO-040]; `http_status` is the
    status of the HTTP answer, None on stdio or when there was none [TPT-012].
    """

    def __init__(
        self,
        mhs_code: str,
        message: str,
        *,
        remediation: str = "",
        retryable: bool | None = None,
        details: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        http_status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.mhs_code = mhs_code
        self.message = message
        self.remediation = remediation
        self.retryable = OWN_CODES[mhs_code] if retryable is None else retryable
        self.http_status = http_status
        if data is None:
            data = {"mhs_code": mhs_code, "retryable": self.retryable, "remediation": remediation}
            if details:
                data["details"] = dict(details)
        self.data: dict[str, Any] = dict(data)

    def __str__(self) -> str:
        return f"{self.mhs_code}: {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and pickles, as pools of processes make them, get everything from `__dict__`.
        return _empty, (type(self), self.args), self.__dict__

    @property
    def retry_after_s(self) -> float | None:
        """How long the endpoint asks to wait; None where it does not, or names no time that could be waited."""
        retry_after_ms = self.details.get("retry_after_ms")
        if isinstance(retry_after_ms, bool) or not isinstance(retry_after_ms, int | float):
            return None
        return retry_after_ms / 1000 if 0 <= retry_after_ms <= _LONGEST_RETRY_MS else None

    @property
    def details(self) -> dict[str, Any]:
        """`data.details`, or an empty dict."""
        details = self.data.get("details")
        return details if isinstance(details, dict) else {}

    def document(self) -> dict[str, Any]:
        """The error as `--json` prints it [TPT-052]; an HTTP refusal's status stands in `data`."""
        data = dict(self.data)
        if self.http_status not in (None, 200):
            data["http_status"] = self.http_status
        return {
            "mhs_code": self.mhs_code,
            "message": self.message,
            "retryable": self.retryable,
            "data": data,
            "remediation": self.remediation,
        }


def _empty(kind: type[MHSError], args: tuple[Any, ...]) -> MHSError:
    return kind.__new__(kind, *args)


class MHSRejected(MHSError):
    """A receipt that is neither completed nor running, in a code file that wants to stop there [CORE-140].

    `mhs_code` is the receipt's; empty where it states no error, as a cancelled one may.
    """

    def __init__(self, receipt: Mapping[str, Any]) -> None:
        error = receipt.get("error")
        error = error if isinstance(error, dict) else {}
        data = error.get("data")
        super().__init__(
            str(error.get("mhs_code", "")),
            f"{receipt.get('capability_id')} is {receipt.get('status')}: {error.get('message') or _why(receipt)}",
            remediation=str(error.get("remediation", "")),
            retryable=error.get("retryable") is True,
            data=data if isinstance(data, dict) else None,
        )
        self.receipt = receipt

    def __str__(self) -> str:
        return super().__str__() if self.mhs_code else self.message


def _why(receipt: Mapping[str, Any]) -> str:
    """Who ended what has no error."""
    cancellation = receipt.get("cancellation")
    cancellation = cancellation if isinstance(cancellation, dict) else {}
    return f"by {cancellation.get('requested_by')}, {cancellation.get('reason') or 'no reason given'}"


class TransportError(MHSError):
    """Nothing was sent, or the endpoint said that it does not serve now (`MHS.TRANSPORT.*`)."""


class TransportOver(TransportError):
    """Nothing was sent, nor will be: the client is closed, or the child that it started has ended."""


class OutcomeUnknown(MHSError):
    """The request may have been carried out and its answer is lost (`MHS.OUTCOME.*`) [TPT-062]."""


class AnswerLost(OutcomeUnknown):
    """The transport lost the answer, so that the endpoint may still be asked what became of the request."""


class ProtocolError(MHSError):
    """The request or the answer is not MHS (`MHS.PROTOCOL.*`)."""


class AuthError(MHSError):
    """The caller is not known or not allowed (`MHS.AUTH.*`)."""


class SessionError(MHSError):
    """The session is gone or does not cover the call (`MHS.SESSION.*`)."""


_GROUPS: Mapping[str, type[MHSError]] = {
    "TRANSPORT": TransportError,
    "OUTCOME": OutcomeUnknown,
    "PROTOCOL": ProtocolError,
    "AUTH": AuthError,
    "SESSION": SessionError,
}


def class_of(mhs_code: str) -> type[MHSError]:
    """The exception class of a code, by its group; MHSError itself for the other groups."""
    return _GROUPS.get(mhs_code.removeprefix("MHS.").split(".")[0], MHSError)


def error(mhs_code: str, message: str, remediation: str = "", **more: Any) -> MHSError:
    """An error that the client states by itself; `mhs_code` is one of OWN_CODES."""
    return class_of(mhs_code)(mhs_code, message, remediation=remediation, **more)


def no_more_events(why: str) -> MHSError:
    """The error of subscriptions whose connection could not be mended [TPT-064]."""
    return error(
        "MHS.TRANSPORT.UNAVAILABLE",
        f"the events have ended: {why}",
        "Read the state, which is unknown from here on, then subscribe again.",
    )


def from_answer(answered: object, http_status: int | None = None) -> MHSError:
    """The exception for a JSON-RPC error object as it came; a foreign endpoint's may lack members."""
    error_object = answered if isinstance(answered, dict) else {}
    data = error_object.get("data")
    data = data if isinstance(data, dict) else {}
    mhs_code = data.get("mhs_code")
    if not isinstance(mhs_code, str):
        mhs_code = "MHS.INTERNAL.ERROR"
    message = error_object.get("message")
    remediation = data.get("remediation")
    return class_of(mhs_code)(
        mhs_code,
        message if isinstance(message, str) and message else "the endpoint gave no reason",
        remediation=remediation if isinstance(remediation, str) else "",
        retryable=data.get("retryable") is True,
        data=data,
        http_status=http_status,
    )
