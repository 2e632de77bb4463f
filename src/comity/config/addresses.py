"""Addresses: URLs that may hold a variable, since they may hold a secret, and networks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from comity.config.kinds import Kind
from comity.rules.documents import Mistakes, Written
from comity.rules.forwarded import TrustedProxies
from comity.rules.variables import expand
from comity.wire.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Address:
    """The `url` of one table: its form, how that is said, and the variable that goes before it."""

    table: str
    variable: str
    shape: str
    rule: str

    @property
    def kind(self) -> Kind:
        return Kind(self._read, {"type": "string", "pattern": rf"{self.shape}|\$\{{"})

    def _read(self, written: Written) -> str:
        text = written.text()
        if "${" not in text and not re.search(self.shape, text):
            raise written.wrong(self.rule)
        return text

    def found(self, told: str, environ: Mapping[str, str], mistakes: Mistakes) -> str:
        """The address itself: as the environment says, or else as told, with its variables."""
        named = Written(None, self.table, ("url",))
        try:
            url = environ.get(self.variable) or expand(told, environ)
        except Misconfigured as problem:
            mistakes.note(named.wrong(str(problem)))
            return ""
        if not re.search(self.shape, url):
            mistakes.note(named.wrong(self.rule))
        return url


STORE_URL: Final = Address(
    "[store]",
    "COMITY_STORE_URL",
    r"^(sqlite:///[^?]+|postgres(ql)?://.+)?$",
    "must be as sqlite:///comity.db or postgresql://user@host:5432/database",
)
_NODE: Final = r"(nats|tls)://[^,\s]+"
CLUSTER_URL: Final = Address(
    "[cluster]",
    "COMITY_CLUSTER_URL",
    rf"^({_NODE}(,{_NODE})*)?$",
    "must be as nats://host:4222, or several of them with commas between",
)


def _networks(written: Written) -> tuple[str, ...]:
    for item in written.items():
        try:
            TrustedProxies([item.text()])
        except ValueError:
            raise item.wrong("must be written as 10.0.0.0/8, 192.0.2.7 or 2001:db8::/32") from None
    return tuple(item.text() for item in written.items())


NETWORKS: Final = Kind(
    _networks, {"type": "array", "items": {"type": "string", "pattern": "^[0-9A-Fa-f:./]+$"}}
)
