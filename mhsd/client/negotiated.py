"""What an endpoint said in its hello, by name [TPT-056]. Pure; both clients have it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


class Negotiated(ABC):
    """The names for what is in a hello."""

    @abstractmethod
    def _told(self) -> Mapping[str, Any]:
        """The endpoint's answer to mhs.hello."""

    @property
    def endpoint_id(self) -> str:
        """The endpoint's name, which its receipts carry."""
        return str(self._told().get("endpoint_id"))

    @property
    def mhs_version(self) -> str:
        """The revision of the protocol that both sides speak."""
        return str(self._told().get("mhs_version"))

    @property
    def conformance(self) -> list[dict[str, Any]]:
        """What the endpoint claims to conform to, a claim for each device or profile; empty when it claims nothing."""
        claims = self._told().get("conformance")
        return [claim for claim in claims if isinstance(claim, dict)] if isinstance(claims, list) else []

    @property
    def limits(self) -> dict[str, Any]:
        """What the endpoint takes at most: request sizes, rates, deadlines."""
        limits = self._told().get("limits")
        return dict(limits) if isinstance(limits, dict) else {}
