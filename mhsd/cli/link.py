"""The connection that a command uses: `-e`, `--token-file`, `--json` and `--timeout`, and their defaults."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mhsd.cli.boundary import UsageProblem
from mhsd.cli.known import Known, is_name
from mhsd.cli.known import named as find
from mhsd.cli.terminal import note, plain
from mhsd.client.calls import DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S
from mhsd.client.client import Client, connect
from mhsd.client.endpoint import DEFAULT_ENDPOINT, StdioEndpoint, parse_endpoint
from mhsd.client.http import BadCertificates, Tls
from mhsd.client.stdio import ChildFailed
from mhsd.client.token_file import BadTokenFile, secret_in


class Link(NamedTuple):
    """What a client command was told about its endpoint."""

    endpoint: str | None = None
    token_file: str | None = None
    json: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def named(self) -> str | None:
        """The endpoint that was named: by -e, else by MHS_ENDPOINT."""
        return self.endpoint or os.environ.get("MHS_ENDPOINT") or None

    @property
    def known(self) -> Known:
        """The endpoint: the one that was named, else port 7400 of this machine."""
        text = self.named or DEFAULT_ENDPOINT
        return find(text) if is_name(text) else Known(parse_endpoint(text), text, "-e")

    @property
    def address(self) -> str:
        """The endpoint's address."""
        return self.known.url

    def outlives_command(self) -> bool:
        """Whether the endpoint goes on running after this command: not when the command started it."""
        return not isinstance(self.known.place, StdioEndpoint)

    @contextlib.contextmanager
    def client(self, token_file: str | None = None) -> Iterator[Client]:
        """A client for the block; `token_file` is used in place of the link's own.

        An endpoint that this command started and that ended badly is reported on stderr [TPT-008].
        """
        token = self.checked(token_file)
        try:
            client = connect(
                self.known.place, token=token, tls=tls_files(), timeout_s=self.timeout_s, name="mhsctl"
            )
        except BadCertificates as problem:
            raise UsageProblem(str(problem)) from None
        try:
            yield client
        finally:
            try:
                client.close()
            except ChildFailed as failure:
                note([plain(line) for line in str(failure).split("\n")])

    def checked(self, token_file: str | None = None) -> str | None:
        """The token, once the options are known to be sound: that of the option, else of the endpoint's own entry."""
        if not 0 < self.timeout_s <= LONGEST_TIMEOUT_S:
            raise UsageProblem(f"--timeout is a number of seconds above 0, at most {LONGEST_TIMEOUT_S}")
        path = token_file or self.token_file or (self.known.token_file if self.named else None)
        return read_token(Path(path)) if path is not None else None

    def words(self) -> list[str]:
        """The options that reach the same endpoint again, for a command to be shown."""
        words = ["-e", self.endpoint] if self.endpoint else []
        return [*words, "--token-file", self.token_file] if self.token_file else words


def tls_files() -> Tls:
    """Further authorities and the client's certificate, from MHS_CA_FILE, MHS_CERT_FILE and MHS_KEY_FILE."""
    return Tls.of(os.environ)


def read_token(path: Path) -> str:
    """The secret in the first line of `path`; UsageProblem where there is none."""
    try:
        found = secret_in(path)
    except BadTokenFile as problem:
        raise UsageProblem(str(problem)) from None
    if found.warning is not None:
        note(f"warning: {plain(found.warning)}")
    return found.token
