"""Refusals: the rows of spec/errors.toml, and the two exceptions that carry one.

`Fault` is an answer to a peer and becomes a JSON-RPC error or the error of a receipt; which of the two is
the caller's decision [PROTO-028]. `StartError` ends the program before it serves anything.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from mhsd.base.resources import ERROR_TABLE


@attrs.frozen
class Reason:
    """What a known `details.reason` changes on its row; None leaves the row's own."""

    retryable: bool | None = None
    remediation: str | None = None


@attrs.frozen
class ErrorRow:
    """What is true of an MHS code wherever it is answered [PROTO-040, PROTO-041]."""

    mhs_code: str
    json_rpc: int
    retryable: bool
    remediation: str
    meaning: str
    reasons: Mapping[str, Reason]


def _row(mhs_code: str, row: Mapping[str, Any]) -> ErrorRow:
    group = mhs_code.split(".")[1]
    return ErrorRow(
        mhs_code=mhs_code,
        json_rpc=row["json_rpc"] if "json_rpc" in row else ERROR_TABLE["groups"][group],
        retryable=row["retryable"],
        remediation=row["remediation"],
        meaning=row["meaning"],
        reasons={name: Reason(**reason) for name, reason in row.get("reasons", {}).items()},
    )


ERRORS: Mapping[str, ErrorRow] = MappingProxyType(
    {mhs_code: _row(mhs_code, row) for mhs_code, row in ERROR_TABLE["codes"].items()}
)
"""Every MHS code that this endpoint can answer with."""

_NO_REASON = Reason()


class Fault(Exception):
    """One refusal, by its MHS code; the row gives what the raiser does not say.

    `message` says what was asked and what is allowed, with units, and holds nothing secret [PROTO-042].
    An `mhs_code` without a row is a KeyError: a defect of the program, not of the request.
    """

    def __init__(
        self,
        mhs_code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        retryable: bool | None = None,
        remediation: str | None = None,
        current_revision: int | None = None,
        interlocks: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        row = ERRORS[mhs_code]
        # A driver's text may hold half a surrogate pair, which no answer can carry.
        message = message if message.isascii() else message.encode(errors="replace").decode()
        super().__init__(message)
        self.mhs_code = mhs_code
        self.message = message
        self.code = row.json_rpc
        self.details: dict[str, Any] | None = dict(details) if details is not None else None
        reason = _NO_REASON
        if self.details is not None and row.reasons:
            named = self.details.get("reason")
            if isinstance(named, str):
                reason = row.reasons.get(named, _NO_REASON)
        self.retryable: bool = _first(retryable, reason.retryable, row.retryable)
        self.remediation: str = _first(remediation, reason.remediation, row.remediation)
        self.current_revision = current_revision
        self.interlocks = [dict(interlock) for interlock in interlocks] if interlocks is not None else None

    def __repr__(self) -> str:
        return f"Fault({self.mhs_code!r}, {self.message!r})"

    def data(self) -> dict[str, Any]:
        """`data` of the JSON-RPC error; `retryable` is always there [PROTO-040, PROTO-041]."""
        data: dict[str, Any] = {
            "mhs_code": self.mhs_code,
            "retryable": self.retryable,
            "remediation": self.remediation,
        }
        if self.details is not None:
            data["details"] = self.details
        if self.current_revision is not None:
            data["current_revision"] = self.current_revision
        if self.interlocks is not None:
            data["interlocks"] = self.interlocks
        return data

    def error(self) -> dict[str, Any]:
        """The JSON-RPC error object [PROTO-040]."""
        return {"code": self.code, "message": self.message, "data": self.data()}

    def receipt_error(self) -> dict[str, Any]:
        """The `error` of a receipt: the JSON-RPC error whose data's members stand beside it too."""
        data = self.data()
        return {"code": self.code, "message": self.message, **data, "data": data}


def _first(*candidates: Any) -> Any:
    return next(candidate for candidate in candidates if candidate is not None)


class StartError(Exception):
    """The program cannot start: one line for a person, and the exit code of TPT-052.

    `exit_code` is 2 for a usage error or a missing or invalid file, 1 for what does not load or is in use,
    4 for an `MHS.AUTH.*` refusal, which `mhs_code` then names.
    """

    def __init__(self, message: str, exit_code: int = 2, mhs_code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.mhs_code = mhs_code
