"""The endpoint's signing key: an Ed25519 key in a file of the state directory, made with the first start.

Decides where the key lies and who may read it. What is signed, and when, is for others. `cryptography` takes 25 ms to
load, so it is loaded when the first signature is due and not before the endpoint is ready; a new key is the exception.
"""

import base64
import binascii
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mhsd.base.errors import StartError
from mhsd.core.heads import ALGORITHM
from mhsd.store.directories import sync_directory

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "signing-key.json"
_KEY_BYTES = 32


class Signer:
    """Signs with the key of a file. `public_key` is the raw key in base64, as bundles and the descriptor show it."""

    def __init__(self, path: Path, seed: bytes, public_key: str) -> None:
        self._path = path
        self._seed = seed
        self.public_key = public_key
        self._key: Ed25519PrivateKey | None = None

    @property
    def ready(self) -> bool:
        """Whether `sign` takes microseconds from now on."""
        return self._key is not None

    def load(self) -> None:
        """Make `sign` ready; any thread may. ValueError where the file's two keys do not belong together."""
        key = _private_key(self._seed)
        if _public_key(key) != self.public_key:
            raise ValueError(f"the public key in {self._path} is not that of its private key")
        self._key = key

    def sign(self, text: bytes) -> bytes:
        if self._key is None:
            self.load()
        assert self._key is not None
        return self._key.sign(text)


def open_signer(directory: Path) -> Signer:
    """The key of this state directory, made where there is none; StartError in one line where it cannot be used."""
    path = directory / KEY_FILE
    try:
        if not path.exists():
            _make(path)
        if path.stat().st_mode & 0o077:
            raise StartError(f"{path} is readable by others: chmod 600 {path}", 2)
        document = json.loads(path.read_bytes())
        seed, _ = (_key_bytes(document, name) for name in ("private_key", "public_key"))
    except OSError as error:
        raise StartError(f"{path} cannot be used: {error.strerror}", 2) from None
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise StartError(
            f"{path} is not a usable signing key ({error}): restore it, or move it away and a new one is made",
            2,
        ) from None
    return Signer(path, seed, document["public_key"])


def _key_bytes(document: dict[str, str], name: str) -> bytes:
    key = base64.b64decode(document[name], validate=True)
    if document["algorithm"] != ALGORITHM or len(key) != _KEY_BYTES:
        raise ValueError(f"{name} is no {ALGORITHM} key")
    return key


def _make(path: Path) -> None:
    seed = os.urandom(_KEY_BYTES)
    document = {
        "algorithm": ALGORITHM,
        "public_key": _public_key(_private_key(seed)),
        "private_key": base64.b64encode(seed).decode(),
    }
    partial = path.with_suffix(".partial")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    sync_directory(path.parent)


def _private_key(seed: bytes) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(seed)


def _public_key(key: "Ed25519PrivateKey") -> str:
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()
