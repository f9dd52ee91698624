"""`estop` and `status` on the standard library alone, so that nothing stands between a person and the stop.

typer, trio, cattrs and attrs are not imported on this path; tests/cli/test_fast_path.py forbids it.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from mhsd.cli import exits
from mhsd.cli.advice import advice
from mhsd.cli.boundary import UsageProblem, guarded
from mhsd.cli.everywhere import Ask, Found, ask_everywhere
from mhsd.cli.link import Link
from mhsd.cli.render_safety import status_lines, stop_lines
from mhsd.cli.targets import named
from mhsd.cli.terminal import Paint, emit, plain, say, value
from mhsd.client.calls import DEFAULT_TIMEOUT_S
from mhsd.client.client import Client
from mhsd.client.errors import MHSError, OutcomeUnknown, TransportError, error
from mhsd.client.naming import devices_of, listed, matching

ESTOP_HELP = "stop every device now and keep it stopped"
STATUS_HELP = "show the e-stop and the interlocks of every device"

_OWN_STOP = "Use the instrument's own emergency stop now, then look at it and at `mhsctl status`."


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as every other command does."""

    def error(self, message: str) -> NoReturn:
        raise UsageProblem(f"{message}; nothing was sent")


def main(program: str, argv: list[str]) -> int:
    """Runs `estop` or `status`, whichever is the first word of `argv`."""
    return guarded(program, argv, lambda: COMMANDS[argv[0]](program, argv[1:]))


def _estop(program: str, argv: list[str]) -> int:
    parser = _parser(
        f"{program} estop",
        "Stop every device at once: running operations are cancelled, each device is brought to its safe state "
        "and refuses to move until `reset`. Without -e and MHS_ENDPOINT this stops every endpoint of this "
        "machine that can be reached: by its local socket or on port 7400. Needs no session. Exit code 0 only "
        "when every device confirmed its stop.",
        f'{program} estop "smoke from the hood"\n  {program} estop --device psu',
    )
    parser.add_argument("reason", nargs="*", metavar="REASON", help="why, for the record")
    parser.add_argument("--device", metavar="DEVICE", help="stop only this device (id, path or name)")
    # parse_intermixed_args knows no "--".
    end = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_intermixed_args(argv[:end])
    words = [*options.reason, *argv[end + 1 :]]
    # A stop is sent whatever the terminal's encoding made of the reason.
    reason = os.fsencode(" ".join(words)).decode(errors="backslashreplace") or "operator's stop"
    link = _link(options)
    if link.named is None:
        return _everywhere(
            link, options.device, lambda client: _stops(client, reason, options.device), _STOPS
        )
    with link.client() as client:
        devices = None if options.device is None else [_named(client, options.device)]
        receipt = _stopped(client, reason, None if devices is None else str(devices[0]["device_id"]))
    receipts = _receipts(receipt)
    if link.json:
        emit(receipt)
    else:
        say(stop_lines(receipts, Paint(sys.stdout)))
    return exits.of_devices(exits.of_receipt(each) for each in receipts)


def _named(client: Client, reference: str) -> Mapping[str, Any]:
    """The device of this name; a full id needs no look-up, which would be one more thing that can fail."""
    if reference.startswith("mhs://"):
        return {"device_id": reference}
    return named(devices_of(client.hello()), reference)


def _stopped(client: Client, reason: str, device_id: str | None) -> dict[str, Any]:
    params = {"reason": reason} if device_id is None else {"reason": reason, "device_id": device_id}
    try:
        return client.call("mhs.safety.estop", params)
    except (TransportError, OutcomeUnknown) as problem:
        problem.remediation = problem.data["remediation"] = _OWN_STOP
        raise
    except MHSError as problem:
        problem.remediation = problem.data["remediation"] = f"{_OWN_STOP} {problem.remediation}".rstrip()
        raise


def _stops(client: Client, reason: str, reference: str | None) -> tuple[list[Mapping[str, Any]], list[int]]:
    """The receipts of a stop of one of several endpoints; none where it does not have the device."""
    if reference is None:
        receipts = _receipts(_stopped(client, reason, None))
    else:
        known = reference.startswith("mhs://")
        devices = [{"device_id": reference}] if known else matching(devices_of(client.hello()), reference)
        try:
            receipts = [_stopped(client, reason, str(device["device_id"])) for device in devices]
        except MHSError as problem:
            if problem.mhs_code != "MHS.DEVICE.UNKNOWN":
                raise
            receipts = []
    return receipts, [exits.of_receipt(each) for each in receipts]


def _receipts(receipt: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The receipt of every device that the stop covered."""
    vendor = receipt.get("x-vendor")
    estop = vendor.get("estop") if isinstance(vendor, dict) else None
    devices = estop.get("devices") if isinstance(estop, dict) else None
    if isinstance(devices, list) and devices and all(isinstance(each, dict) for each in devices):
        return devices
    return [receipt]


def _status(program: str, argv: list[str]) -> int:
    parser = _parser(
        f"{program} status",
        "Show for every device whether its e-stop is engaged and which interlocks are open. Without -e and "
        "MHS_ENDPOINT this asks every endpoint of this machine that can be reached: by its local socket or on "
        "port 7400. Needs no session.",
        f"{program} status\n  {program} status --device conveyor-workcell --json",
    )
    parser.add_argument("--device", metavar="DEVICE", help="show only this device (id, path or name)")
    options = parser.parse_args(argv)
    link = _link(options)
    if link.named is None:
        return _everywhere(link, options.device, lambda client: _states(client, options.device), _STATES)
    with link.client() as client:
        devices = devices_of(client.hello())
        if options.device is not None:
            devices = [dict(named(devices, options.device))]
        answers = [_safety(client, device) for device in devices]
    entries = [entry for entry, _ in answers]
    if link.json:
        emit({"endpoint_id": client.hello().get("endpoint_id"), "devices": entries})
    else:
        say(status_lines(entries, Paint(sys.stdout)) or "the endpoint serves no device")
    return exits.of_devices(code for _, code in answers)


def _states(client: Client, reference: str | None) -> tuple[list[Mapping[str, Any]], list[int]]:
    devices: Sequence[Mapping[str, Any]] = devices_of(client.hello())
    answers = [
        _safety(client, device) for device in (devices if reference is None else matching(devices, reference))
    ]
    return [entry for entry, _ in answers], [code for _, code in answers]


def _safety(client: Client, device: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """One device's safety status, or the error in its place: a broken device must not hide the others."""
    about = {name: device.get(name) for name in ("device_id", "display_name", "mode")}
    try:
        answered = client.call("mhs.safety.status", {"device_id": device["device_id"]})
    except MHSError as problem:
        return {**about, "error": problem.document()}, exits.of_error(problem.mhs_code)
    return {**about, **answered}, exits.OK


class _Shown(NamedTuple):
    """How the answers of several endpoints are shown: the name of their list, its lines, and what a failure means."""

    member: str
    lines: Callable[[list[Mapping[str, Any]], Paint], list[str]]
    failed: str
    remediation: str


_STOPS = _Shown("receipts", stop_lines, "NOT CONFIRMED", _OWN_STOP)
_STATES = _Shown("devices", status_lines, "NOT KNOWN", "Start mhsd, or name the endpoint with -e.")


def _everywhere(link: Link, reference: str | None, ask: Ask, shown: _Shown) -> int:
    """Ask every endpoint of this machine, show each as soon as it has answered, and judge all of them together."""
    paint = Paint(sys.stdout)
    answers: list[Found] = []
    without: list[Mapping[str, Any]] = []
    for found in ask_everywhere(ask, token=link.checked(), timeout_s=link.timeout_s):
        if reference is not None and found.error is None and not found.entries:
            without += found.devices
            continue
        if not link.json:
            say(_lines(found, shown, paint, first=not answers))
        answers.append(found)
    if not answers:
        raise _nobody(reference, without, shown)
    if link.json:
        emit({"endpoints": [_document(found, shown) for found in answers]})
    return exits.of_devices(
        code
        for found in answers
        for code in (found.codes if found.error is None else [exits.of_error(found.error.mhs_code)])
    )


def _nobody(reference: str | None, without: list[Mapping[str, Any]], shown: _Shown) -> MHSError:
    if reference is not None and without:
        return error(
            "MHS.DEVICE.UNKNOWN",
            f"no endpoint of this machine has a device {reference}; they have: {listed(without)}",
            "Name one of these devices with --device.",
        )
    return error(
        "MHS.TRANSPORT.UNAVAILABLE",
        "no endpoint of this machine was found: nobody serves at a local socket or on port 7400; nothing was sent",
        shown.remediation,
    )


def _lines(found: Found, shown: _Shown, paint: Paint, *, first: bool) -> list[str]:
    socket = found.place.socket
    owner = f", user {plain(socket.owner)}" if socket is not None else ""
    name = value(found.hello.get("endpoint_id", "endpoint"))
    head = [*([] if first else [""]), paint("dim", f"{name} at {plain(found.place.name)}{owner}")]
    if found.error is None:
        return [*head, *(shown.lines(found.entries, paint) or ["it serves no device"])]
    problem = found.error
    return [
        *head,
        f"{paint('bad', shown.failed)}  {value(problem.mhs_code)}: {value(problem.message)}",
        *([f"  {advice(problem.remediation)}"] if problem.remediation else []),
    ]


def _document(found: Found, shown: _Shown) -> dict[str, Any]:
    socket = found.place.socket
    about: dict[str, Any] = {"endpoint": found.place.name, "endpoint_id": found.hello.get("endpoint_id")}
    if socket is not None:
        about["user"] = socket.owner
    if found.error is not None:
        return {**about, "error": found.error.document()}
    return {**about, shown.member: found.entries}


def _parser(program: str, description: str, examples: str) -> _Parser:
    parser = _Parser(
        prog=program,
        description=textwrap.fill(description, 78),
        epilog=f"Examples:\n  {examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    link = parser.add_argument_group("connection")
    link.add_argument(
        "-e", "--endpoint", metavar="URL|NAME|unix:PATH|stdio:CMD", help="the endpoint [MHS_ENDPOINT]"
    )
    link.add_argument("--token-file", metavar="FILE", help="file with the token of the endpoint")
    link.add_argument("--json", action="store_true", help="print one JSON document")
    link.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="seconds to wait")
    return parser


def _link(options: argparse.Namespace) -> Link:
    return Link(options.endpoint, options.token_file, options.json, options.timeout)


COMMANDS = {"estop": _estop, "status": _status}
