"""`estop` and `status` on the standard library alone, so that nothing stands between a person and the stop.

typer, trio, cattrs and attrs are not imported on this path; tests/cli/test_fast_path.py forbids it.
"""

import argparse
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, NoReturn

from mhsd.cli import exits
from mhsd.cli.boundary import UsageProblem, guarded
from mhsd.cli.link import Link
from mhsd.cli.render_safety import status_lines, stop_lines
from mhsd.cli.targets import devices_of, named
from mhsd.cli.terminal import Paint, emit, say
from mhsd.client.client import DEFAULT_TIMEOUT_S, Client
from mhsd.client.errors import MHSError, OutcomeUnknown, TransportError

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
        "Stop every device of the endpoint at once: running operations are cancelled, each device is brought "
        "to its safe state and refuses to move until `reset`. Needs no session. Exit code 0 only when every "
        "device confirmed its stop.",
        f'{program} estop "smoke from the hood"\n  {program} estop --device psu',
    )
    parser.add_argument("reason", nargs="*", metavar="REASON", help="why, for the record")
    parser.add_argument("--device", metavar="DEVICE", help="stop only this device (id, path or name)")
    options = parser.parse_intermixed_args(argv)
    reason = " ".join(options.reason) or "operator's stop"
    link = _link(options)
    with link.client() as client:
        receipt = _stopped(client, reason, options.device)
    receipts = _receipts(receipt)
    if link.json:
        emit(receipt)
    else:
        say(stop_lines(receipts, Paint(sys.stdout)))
    return exits.of_devices(exits.of_receipt(each) for each in receipts)


def _stopped(client: Client, reason: str, reference: str | None) -> dict[str, Any]:
    params = {"reason": reason}
    if reference is not None:
        # A full id needs no look-up, which would be one more thing that can fail.
        known = reference.startswith("mhs://")
        device = {"device_id": reference} if known else named(devices_of(client.hello()), reference)
        params["device_id"] = str(device["device_id"])
    try:
        return client.call("mhs.safety.estop", params)
    except (TransportError, OutcomeUnknown) as problem:
        problem.remediation = problem.data["remediation"] = _OWN_STOP
        raise


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
        "Show for every device whether its e-stop is engaged and which interlocks are open. "
        "Needs no session.",
        f"{program} status\n  {program} status --device conveyor-workcell --json",
    )
    parser.add_argument("--device", metavar="DEVICE", help="show only this device (id, path or name)")
    options = parser.parse_args(argv)
    link = _link(options)
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


def _safety(client: Client, device: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """One device's safety status, or the error in its place: a broken device must not hide the others."""
    about = {name: device.get(name) for name in ("device_id", "display_name", "mode")}
    try:
        answered = client.call("mhs.safety.status", {"device_id": device["device_id"]})
    except MHSError as problem:
        return {**about, "error": problem.document()}, exits.of_error(problem.mhs_code)
    return {**about, **answered}, exits.OK


def _parser(program: str, description: str, examples: str) -> _Parser:
    parser = _Parser(
        prog=program,
        description=textwrap.fill(description, 78),
        epilog=f"Examples:\n  {examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    link = parser.add_argument_group("connection")
    link.add_argument("-e", "--endpoint", metavar="URL|stdio:CMD", help="the endpoint [MHS_ENDPOINT]")
    link.add_argument("--token-file", metavar="FILE", help="file with the token of the endpoint")
    link.add_argument("--json", action="store_true", help="print one JSON document")
    link.add_argument("--timeout", type=float, default=DEFAULT_TIMEOUT_S, metavar="S", help="seconds to wait")
    return parser


def _link(options: argparse.Namespace) -> Link:
    return Link(options.endpoint, options.token_file, options.json, options.timeout)


COMMANDS = {"estop": _estop, "status": _status}
