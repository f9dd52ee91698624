"""Every option of mhsd, once.

A field of `Config` is an option: its name is the key of `mhsd.toml`, with dashes the flag (`--state-dir`),
in capitals the environment variable (`MHSD_STATE_DIR`). Its metadata carry what a command line and the
documentation need. `sources` decides where a value comes from, `values` whether it is one; what it means to
the running daemon is the daemon's matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field

from mhsd.config import sources
from mhsd.config.values import BACKENDS, DeviceEntry, DeviceOption, Kind, Option, device_entry, refuse

__all__ = ["DEFAULT_TARGET", "OPTIONS", "Config", "DeviceEntry", "DeviceOption", "Limits", "Option"]

DEFAULT_TARGET = "conveyor-workcell"
_METADATA = "mhsd.option"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:/?#@*]+)(:[0-9]{1,5})?|[0-9a-f:.]+", re.IGNORECASE)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+/?", re.IGNORECASE)
_ENDPOINT_ID = re.compile(r"mhs://[^\s/?#]+(/[^\s/?#]+)*")


def _about(kind: Kind, group: str, text: str, **more: Any) -> dict[str, Any]:
    """The metadata of a field: its row of the option table, but for key and default."""
    return {_METADATA: {"kind": kind, "group": group, "help": text, **more}}


def _limit(text: str, *, minimum: int = 1, metavar: str = "N") -> dict[str, Any]:
    # What is beyond no system call, no date and no number of another language's JSON can carry.
    return _about("integer", "Limits", text, minimum=minimum, maximum=2**31 - 1, metavar=metavar)


def _seconds(group: str, text: str) -> dict[str, Any]:
    return _about("number", group, text, metavar="S", minimum=0.1, maximum=86400)


def _file(group: str, text: str, metavar: str = "FILE") -> dict[str, Any]:
    return _about("path", group, text, metavar=metavar)


def _list(group: str, text: str, metavar: str, **more: Any) -> dict[str, Any]:
    return _about("text", group, text, metavar=metavar, multiple=True, **more)


def _one_of(group: str, text: str, *choices: str) -> dict[str, Any]:
    return _about("text", group, text, choices=choices)


_TARGET_HELP = "A fixture's name or a driver directory; NAME:hardware and NAME@/path choose for this device"
_ARM_HELP = "Let hardware actuate: bare for every device, or the PATH of one"


@attrs.frozen(kw_only=True)
class Config:
    """The settings of one daemon. `Config.load` makes it from flags, environment and file."""

    targets: tuple[str, ...] = field(
        default=(), metadata=_list("General", _TARGET_HELP, "TARGET", positional=True)
    )
    config: Path | None = field(default=None, metadata=_file("General", "Configuration file"))
    endpoint_id: str = field(
        default="mhs://localhost:7400",
        metadata=_about("text", "General", "Identity of this endpoint", metavar="MHS-URI"),
    )

    stdio: bool = field(
        default=False,
        metadata=_about("switch", "Transport", "Serve NDJSON on stdin and stdout instead of HTTP"),
    )
    mcp: bool = field(
        default=False,
        metadata=_about("switch", "MCP", "Serve the devices as tools to an MCP client on stdin and stdout"),
    )
    endpoint: str | None = field(
        default=None,
        metadata=_about(
            "text",
            "MCP",
            "With --mcp: serve the devices of this endpoint, which runs elsewhere; --token-file holds the token for it",
            metavar="URL",
            short="-e",
        ),
    )
    mcp_config: Path | None = field(
        default=None, metadata=_file("MCP", "Host policy: what a model may do, TOML", metavar="PATH")
    )
    operator_tools: bool = field(
        default=False, metadata=_about("switch", "MCP", "Offer reset and permit to the model too")
    )
    allow_external_sessions: bool = field(
        default=False,
        metadata=_about("switch", "MCP", "Let a model name sessions that this connection did not open"),
    )
    host: str = field(
        default="127.0.0.1", metadata=_about("text", "Transport", "Address to listen on", metavar="ADDRESS")
    )
    port: int = field(
        default=7400,
        metadata=_about(
            "integer", "Transport", "Port to listen on, 0 picks one", metavar="PORT", minimum=0, maximum=65535
        ),
    )
    ws_port: int | None = field(
        default=None,
        metadata=_about(
            "integer",
            "Transport",
            "Port of a listener for WebSocket alone, 0 picks one; without it WebSocket is on --port",
            metavar="PORT",
            minimum=0,
            maximum=65535,
        ),
    )
    tls_cert: Path | None = field(default=None, metadata=_file("Transport", "Certificate chain, PEM"))
    tls_key: Path | None = field(default=None, metadata=_file("Transport", "Private key, PEM"))
    client_ca: Path | None = field(
        default=None, metadata=_file("Transport", "Authority of client certificates, PEM")
    )
    tls_terminated_upstream: bool = field(
        default=False,
        metadata=_about("switch", "Transport", "A proxy in front ends TLS; needs --public-url https://..."),
    )
    public_url: str | None = field(
        default=None,
        metadata=_about("text", "Transport", "URL by which clients reach this endpoint", metavar="URL"),
    )
    allowed_host: tuple[str, ...] = field(
        default=(), metadata=_list("Transport", "Further Host header to accept", "HOST")
    )
    allowed_origin: tuple[str, ...] = field(
        default=(), metadata=_list("Transport", "Further Origin header to accept", "ORIGIN")
    )

    socket_group: str | None = field(
        default=None,
        metadata=_about(
            "text", "Access", "Group whose members may stop by the local socket", metavar="GROUP"
        ),
    )
    token_file: Path | None = field(default=None, metadata=_file("Access", "Tokens of clients"))
    operator_token_file: Path | None = field(default=None, metadata=_file("Access", "Tokens of operators"))

    backend: str = field(
        default="fake", metadata=_one_of("Devices", "Backend of devices that name none", *BACKENDS)
    )
    allow_hardware: bool = field(
        default=False, metadata=_about("switch", "Devices", "Allow the hardware backend")
    )
    arm: bool | tuple[str, ...] = field(default=False, metadata=_list("Devices", _ARM_HELP, "PATH"))
    option: tuple[DeviceOption, ...] = field(
        default=(), metadata=_list("Devices", "Set an option of a device's driver", "PATH:NAME=VALUE")
    )
    site_limits: Path | None = field(
        default=None, metadata=_file("Devices", "Narrow the limits of devices by this file, TOML or JSON")
    )
    state_dir: Path | None = field(
        default=None,
        metadata=_file("Devices", "Keep receipts and the e-stop latch in this directory", metavar="DIR"),
    )
    stop_grace_s: float = field(
        default=10.0,
        metadata=_seconds("Devices", "Seconds that a stop may take"),
    )

    log_format: str = field(
        default="text", metadata=_one_of("Log", "Form of the log on stderr", "text", "json")
    )
    log_level: str = field(
        default="info", metadata=_one_of("Log", "Least level to log", "debug", "info", "warning", "error")
    )

    max_request_bytes: int = field(
        default=1048576, metadata=_limit("Longest message; below 1 MiB departs from TPT-006", minimum=1024)
    )
    max_batch: int = field(default=64, metadata=_limit("Most requests in one batch"))
    rate_per_s: int = field(default=50, metadata=_limit("Requests a second that a principal may send"))
    rate_burst: int = field(
        default=100, metadata=_limit("Requests that may come at once before the rate counts")
    )
    max_connections: int = field(
        default=256, metadata=_limit("Connections at one time; 16 more are accepted for an e-stop")
    )
    max_sessions: int = field(default=256, metadata=_limit("Live sessions of one principal"))
    max_subscriptions: int = field(default=64, metadata=_limit("Subscriptions of one session"))
    event_buffer: int = field(default=1024, metadata=_limit("Events that one subscription keeps"))
    max_sse_streams: int = field(default=4, metadata=_limit("Event streams of one principal"))
    max_open_operations: int = field(
        default=8, metadata=_limit("Open long-running operations of one session")
    )
    export_page: int = field(default=1000, metadata=_limit("Receipts in one page of an evidence export"))
    session_max_ttl_s: int = field(
        default=86400, metadata=_limit("Longest life of a session without a heartbeat", metavar="S")
    )
    max_command_deadline_ms: int = field(
        default=600000, metadata=_limit("Longest deadline that a request may ask for", metavar="MS")
    )
    retention_days: int = field(default=30, metadata=_limit("Days that receipts are kept", metavar="DAYS"))
    socket_timeout_s: float = field(
        default=30.0,
        metadata=_seconds("Limits", "Seconds that a connection may stall"),
    )
    max_json_items: int = field(default=20000, metadata=_limit("Containers and members in one message"))

    devices: tuple[DeviceEntry, ...] = ()
    """What to serve, from the TARGETs or the `[[device]]` tables of the file; never empty after `load`."""
    unknown_variables: tuple[str, ...] = ()
    """`MHSD_...` variables that name no option: worth a warning, a typing error is silent otherwise."""

    @classmethod
    def load(cls, flags: Mapping[str, Any], environ: Mapping[str, str], cwd: Path) -> Config:
        """The settings of a daemon started with these flags (None: not given), environment and directory.

        Raises StartError (exit code 2) with one line that names the flag, variable or file and key at fault.
        """
        file = sources.read_file(OPTIONS, flags.get("config"), environ, cwd)
        values: dict[str, Any] = {}
        for option in OPTIONS:
            found = sources.look_up(option, flags, environ, file, cwd)
            if found is not None:
                values[option.key] = found[0]
        named = tuple(device_entry(target) for target in values.get("targets", ()))
        # TARGETs given at start say all that is served; the file's tables are for starts without.
        listed = () if flags.get("targets") or environ.get("MHSD_TARGETS") else sources.file_devices(file)
        values["config"] = file.path
        values["devices"] = (named + listed) or (DeviceEntry(DEFAULT_TARGET),)
        values["unknown_variables"] = sources.unknown_variables(OPTIONS, environ)
        config = cls(**values)
        config._check()
        if config.endpoint is not None and flags.get("targets"):
            refuse("with -e the devices are those of that endpoint; leave the TARGET out")
        return config

    @property
    def on_pipes(self) -> bool:
        """Whether stdin and stdout carry a protocol, and nothing listens on the network."""
        return self.stdio or self.mcp

    @property
    def has_ws_listener(self) -> bool:
        """Whether WebSocket has a listener of its own; two ports that are to be picked are two ports."""
        return self.ws_port is not None and (self.ws_port == 0 or self.ws_port != self.port)

    def is_armed(self, path: str) -> bool:
        """Whether the device at this path may actuate hardware."""
        return self.arm is True or (isinstance(self.arm, tuple) and path in self.arm)

    def _check(self) -> None:
        """Refuse combinations that no start can make sense of."""
        if self.stdio and self.mcp:
            refuse("--stdio and --mcp both want stdin and stdout; give one of them")
        if self.endpoint is not None and not self.mcp:
            refuse("-e names the endpoint that --mcp projects, and --mcp is not given")
        if not _ENDPOINT_ID.fullmatch(self.endpoint_id):
            refuse(f"--endpoint-id {self.endpoint_id!r} is not of the form mhs://host[:port][/prefix]")
        if self.tls_key is not None and self.tls_cert is None:
            refuse("--tls-key needs --tls-cert")
        if self.client_ca is not None and self.tls_cert is None:
            refuse("--client-ca needs --tls-cert: client certificates exist only under TLS")
        if self.client_ca is not None and self.token_file is None and self.operator_token_file is None:
            refuse("--client-ca needs --token-file with [[client_cert]] entries that name the principals")
        if self.public_url is not None and not re.fullmatch(r"https?://[^\s/?#@]+/?", self.public_url):
            refuse(f"--public-url {self.public_url!r} is not of the form https://host[:port]")
        for host in self.allowed_host:
            if not _HOST.fullmatch(host):
                refuse(f"--allowed-host {host!r} is neither a host's name nor an address")
        for origin in self.allowed_origin:
            # "null" is what every page without an origin calls itself, so nobody can be meant by it [TPT-010].
            if not _ORIGIN.fullmatch(origin):
                refuse(f"--allowed-origin {origin!r} is not of the form https://host[:port]")


def _table() -> tuple[Option, ...]:
    rows = []
    for row in attrs.fields(Config):
        if _METADATA in row.metadata:
            rows.append(Option(key=row.name, default=row.default, **row.metadata[_METADATA]))
    return tuple(rows)


OPTIONS: tuple[Option, ...] = _table()
_BY_KEY: Mapping[str, Option] = {option.key: option for option in OPTIONS}


def _default(key: str) -> int:
    value = _BY_KEY[key].default
    assert isinstance(value, int)
    return value


@attrs.frozen(kw_only=True)
class Limits:
    """What hello advertises as `limits`, and what the endpoint enforces [PROTO-043, TPT-020]."""

    max_request_bytes: int = _default("max_request_bytes")
    max_batch: int = _default("max_batch")
    max_subscriptions: int = _default("max_subscriptions")
    max_rate_per_s: int = _default("rate_per_s")
    rate_burst: int = _default("rate_burst")
    max_status_rate_per_s: int = 20
    """`mhs.safety.status` has a bucket of its own, so that looking never competes with doing."""
    session_max_ttl_s: int = _default("session_max_ttl_s")
    receipt_retention_days: int = _default("retention_days")
    max_receipt_retention_s: int = _default("retention_days") * 86400
    max_command_deadline_ms: int = _default("max_command_deadline_ms")
    max_sessions: int = _default("max_sessions")
    max_connections: int = _default("max_connections")
    max_open_operations: int = _default("max_open_operations")
    max_sse_streams: int = _default("max_sse_streams")
    max_buffered_events: int = _default("event_buffer")
    max_export_receipts: int = _default("export_page")
    max_json_depth: int = 64
    max_json_items: int = _default("max_json_items")

    @classmethod
    def of(cls, config: Config) -> Limits:
        """The limits that these settings ask for."""
        return cls(
            max_request_bytes=config.max_request_bytes,
            max_batch=config.max_batch,
            max_subscriptions=config.max_subscriptions,
            max_rate_per_s=config.rate_per_s,
            rate_burst=config.rate_burst,
            session_max_ttl_s=config.session_max_ttl_s,
            receipt_retention_days=config.retention_days,
            max_receipt_retention_s=config.retention_days * 86400,
            max_command_deadline_ms=config.max_command_deadline_ms,
            max_sessions=config.max_sessions,
            max_connections=config.max_connections,
            max_open_operations=config.max_open_operations,
            max_sse_streams=config.max_sse_streams,
            max_buffered_events=config.event_buffer,
            max_export_receipts=config.export_page,
            max_json_items=config.max_json_items,
        )
