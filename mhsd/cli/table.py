"""The commands of `mhsctl`, once: name, what runs it, and the help with its examples."""

from collections.abc import Callable
from typing import NamedTuple

from mhsd.cli import (
    cmd_act,
    cmd_completion,
    cmd_discover,
    cmd_evidence,
    cmd_look,
    cmd_ops,
    cmd_registry,
    cmd_run,
    cmd_safety,
    cmd_session,
    cmd_token,
    cmd_validate,
    cmd_version,
    cmd_watch,
    fast,
)


class Command(NamedTuple):
    """One command; `run` is None where app.py makes the function. `text` is the help below the summary.

    With `hands_on_rest` what follows the first argument is not for the command itself.
    """

    name: str
    run: Callable[..., int] | None
    summary: str
    text: str = ""
    examples: tuple[str, ...] = ()
    alias: str | None = None
    hands_on_rest: bool = False


COMMANDS = (
    Command(
        "serve",
        None,
        "serve devices until told to stop; the same as mhsd",
        "A TARGET is the name of a reference device or a driver directory; without one the conveyor-workcell is "
        "served. Devices are simulated unless the hardware backend is asked for and allowed.",
        ("mhsctl serve", "mhsctl serve conveyor-workcell scpi-psu --port 7400 --state-dir state"),
    ),
    Command(
        "hello",
        cmd_look.hello,
        "show who serves, in which version and with which limits",
        "",
        ("mhsctl hello", "mhsctl hello -e https://bench.example:7400 --token-file token"),
    ),
    Command(
        "devices",
        cmd_look.devices,
        "list the devices, one a line",
        "",
        ("mhsctl devices", "mhsctl devices --json"),
    ),
    Command(
        "describe",
        cmd_look.describe,
        "show what a device is, can do and may not do",
        "Mode, risk class, fidelity gaps and trust come first; then the e-stop, the safe state and the interlocks; "
        "then what can be read and commanded, with limits and units.",
        (
            "mhsctl describe",
            "mhsctl describe conveyor-workcell",
            "mhsctl describe conveyor-workcell --python > workcell.py",
        ),
        alias="inspect",
    ),
    Command(
        "read",
        cmd_look.read,
        "read the current state of a resource",
        "",
        (
            "mhsctl read belt",
            "mhsctl read belt --field position_mm --json",
            "mhsctl read chamber --device replay-thermal --revision 3",
        ),
    ),
    Command(
        "watch",
        cmd_watch.watch,
        "follow values live",
        "On a terminal a table that changes; elsewhere one line an event, with --json one JSON document a line. What "
        "did not arrive is said where it is missing, and the values are read again. Ctrl-C ends it.",
        (
            "mhsctl watch",
            "mhsctl watch belt --rate 5",
            "mhsctl watch --stream progress --stream events --for 60",
            "mhsctl watch belt --stream telemetry --count 100 --json",
        ),
    ),
    Command(
        "write",
        cmd_act.write,
        "set fields of a resource and print the receipt",
        "",
        ("mhsctl write belt --patch '{\"speed_mm_s\": 120}'",),
    ),
    Command(
        "call",
        cmd_act.call,
        "run a capability of a device and print the receipt",
        "What takes long is waited for: Ctrl-C cancels it and brings the device to its safe state. Exit code 0 for "
        "a completed receipt, 1 for any other, 3 when the endpoint cannot be reached or its answer was lost.",
        (
            "mhsctl call -c cap.world.step.v1 -i '{\"ticks\": 10}'",
            'mhsctl call -c cap.motion.convey.v1 -i \'{"distance_mm": 200, "speed_mm_s": 100}\'',
        ),
    ),
    Command(
        "ops",
        cmd_ops.ops,
        "list what runs, follow an operation or cancel it",
        "Without an ID everything of yours that runs. --wait follows one to its final receipt; Ctrl-C then stops "
        "waiting and leaves it running. --cancel stops it and waits until its device is in the safe state.",
        (
            "mhsctl ops",
            "mhsctl ops op_01J8ZQ3W1B7M2N4P6R8S0T2V4Z --wait",
            "mhsctl ops op_01J8ZQ3W1B7M2N4P6R8S0T2V4Z --cancel",
        ),
    ),
    Command(
        "session open",
        cmd_session.session_open,
        "open a session and print its id",
        "It covers every command of the device unless -c or --read-only says less, and ends after --ttl seconds "
        "without a heartbeat.",
        ("mhsctl session open", "mhsctl session open --device conveyor-workcell -c 'cap.world.*' --ttl 3600"),
    ),
    Command(
        "session list",
        cmd_session.session_list,
        "list the sessions that you have left open",
        "Those that were opened by this program and this user at the endpoint, and that still live.",
        ("mhsctl session list",),
    ),
    Command(
        "session close",
        cmd_session.session_close,
        "end a session; what runs in it is stopped safely",
        "",
        ("mhsctl session close mhs_s_01J8ZQ3V6Y7M2N4P6R8S0T2V4X",),
    ),
    Command(
        "session keep",
        cmd_session.session_keep,
        "keep a session alive while you work",
        "",
        (
            "mhsctl session keep mhs_s_01J8ZQ3V6Y7M2N4P6R8S0T2V4X",
            "mhsctl session keep mhs_s_01J8ZQ3V6Y7M2N4P6R8S0T2V4X --for 600",
        ),
    ),
    Command("estop", None, fast.ESTOP_HELP),
    Command("status", None, fast.STATUS_HELP),
    Command(
        "reset",
        cmd_safety.reset,
        "release the e-stop, by a person at a terminal",
        "Look at the device first. With operators configured it takes the operator's token; on an endpoint without "
        "any it asks for the device's name. Nothing moves when the stop is released.",
        ("mhsctl reset --operator-token-file operator.token", "mhsctl reset --device conveyor-workcell"),
    ),
    Command(
        "permit",
        cmd_safety.permit,
        "approve one command with exactly this input, once",
        "Give the permit's id to `call --permit` in the same session.",
        (
            "mhsctl permit -c cap.actuation.purge.v1 -i '{\"duration_ms\": 500}' --session mhs_s_01J8ZQ3V6Y7M2N4P",
        ),
    ),
    Command(
        "evidence",
        cmd_evidence.evidence,
        "export the receipts and check that none was changed",
        "",
        (
            "mhsctl evidence",
            "mhsctl evidence --verify",
            "mhsctl evidence -o bundle.json",
            "mhsctl evidence --file bundle.json",
            "mhsctl evidence --ledger sweep.ledger.json",
        ),
    ),
    Command(
        "run",
        cmd_run.run,
        "run a code file and write its ledger",
        "A code file is a Python script that works in mhsd.lab(): it stops at the first receipt that is neither "
        "completed nor running. The ledger names every receipt that it got; `evidence --ledger` checks it. Options "
        "stand before the file, what follows it is for the file.",
        ("mhsctl run sweep.py", "mhsctl run --ledger monday.json sweep.py --from 1 --to 5"),
        hands_on_rest=True,
    ),
    Command(
        "discover",
        cmd_discover.discover,
        "list the endpoints that you know and see which answer",
        "From MHS_ENDPOINTS (addresses, with commas between) and the endpoints file, and those of this machine. "
        "Each HTTP endpoint is asked for its descriptor; a stdio: command is listed and never started. Listed does "
        "not mean trusted. A name of the file can be given after -e.",
        ("mhsctl discover", "mhsctl discover --file endpoints.json --json"),
    ),
    Command(
        "registry list",
        cmd_registry.registry_list,
        "list the drivers and devices that are known here",
        "",
        ("mhsctl registry list", "mhsctl registry list --file registry.json --json"),
    ),
    Command(
        "registry search",
        cmd_registry.registry_search,
        "find drivers and devices by words",
        "Every word must occur in the name, the summary, a tag, a capability or another text of the entry.",
        ("mhsctl registry search psu", "mhsctl registry search cap.motion simulated"),
    ),
    Command(
        "registry show",
        cmd_registry.registry_show,
        "show one entry and the command that uses it",
        "",
        ("mhsctl registry show scpi-psu",),
    ),
    Command(
        "token new",
        cmd_token.token_new,
        "mint a token, show it once, and add its hash to a token file",
        "The daemon that has this file as its --token-file lets the token in from its next request on.",
        (
            "mhsctl token new --file tokens.toml --principal human:kim --kind human",
            "mhsctl token new --file tokens.toml --principal agent:night-run --kind agent --expires 12h -o night.token",
        ),
    ),
    Command(
        "token list",
        cmd_token.token_list,
        "list who a token file lets in",
        "",
        ("mhsctl token list --file tokens.toml",),
    ),
    Command(
        "token revoke",
        cmd_token.token_revoke,
        "take tokens out of a token file; they stop working at once",
        "A session that was opened with a revoked token lives until it expires, but takes no request of it.",
        (
            "mhsctl token revoke human:kim --file tokens.toml",
            "mhsctl token revoke 3f29c1d07a55 --file tokens.toml",
        ),
    ),
    Command(
        "validate",
        cmd_validate.validate,
        "check a driver directory, or a document against its schema",
        "Nothing of the driver is run.",
        ("mhsctl validate ./my_driver", "mhsctl validate receipt.json --schema receipt"),
    ),
    Command(
        "completion",
        cmd_completion.completion,
        "print the script that completes the commands in a shell",
        "`mhsctl --install-completion` puts it where the shell finds it.",
        ("mhsctl completion bash > ~/.local/share/bash-completion/completions/mhsctl",),
    ),
    Command("version", cmd_version.version, "show the versions", "", ("mhsctl version --json",)),
)
