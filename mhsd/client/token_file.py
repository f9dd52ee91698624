"""Reads the secret that a client shows to an endpoint."""

import stat
import warnings
from os import PathLike
from pathlib import Path


class BadTokenFile(ValueError):
    """The file holds no token that could be sent; a usage error."""


def read_token(path: str | PathLike[str]) -> str:
    """The secret in the first line of a file; BadTokenFile where there is none.

    A file that others can read is used, with a warning that names the command that mends it.
    """
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
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BadTokenFile(f"the first line of {path} is no token")
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and not str(path.resolve()).startswith("/run/secrets/"):
        warnings.warn(f"others can read {path}; mend it with: chmod 600 {path}", stacklevel=2)
    return token
