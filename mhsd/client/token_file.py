"""Reads the secret that a client shows to an endpoint."""

import stat
import warnings
from os import PathLike
from pathlib import Path
from typing import NamedTuple


class BadTokenFile(ValueError):
    """The file holds no token that could be sent; a usage error."""


class Secret(NamedTuple):
    """A token as its file has it. `warning` says that others can read the file, and what mends it."""

    token: str
    warning: str | None = None


def secret_in(path: str | PathLike[str]) -> Secret:
    """The secret in the first line of a file; BadTokenFile where there is none."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise BadTokenFile(f"the token file {path} cannot be read: {reason}") from None
    token = next((line.strip() for line in lines if line.strip()), "")
    if token.startswith(("[[", "#")):
        raise BadTokenFile(
            f"{path} is the endpoint's table of tokens, which holds no secret; give a file with the token itself"
        )
    if not is_token(token):
        raise BadTokenFile(f"the first line of {path} is no token")
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and not str(path.resolve()).startswith("/run/secrets/"):
        return Secret(token, f"others can read {path}; mend it with: chmod 600 {path}")
    return Secret(token)


def is_token(text: str) -> bool:
    """Whether a text can be a token: one word that may stand in a header."""
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def read_token(path: str | PathLike[str]) -> str:
    """The secret in a file; a file that others can read is used, with a Python warning."""
    found = secret_in(path)
    if found.warning is not None:
        warnings.warn(found.warning, stacklevel=3)
    return found.token
