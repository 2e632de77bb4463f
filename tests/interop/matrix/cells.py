"""What came of a client at a server, through Comity and without it, and what is our fault."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.interop.matrix.parties import FEATURES, Client, Server

PASS = "pass"
KNOWN = {
    ("all servers", "everything-http", "list_changed"): (
        "this server has other lists in each of its sessions, and the merged list is what the "
        "gateway's own session is shown; the client is told of the change, and finds what is new "
        "at the server's own door"
    ),
}
"""Where Comity differs on purpose: by door, server and feature, with the reason."""

type Outcomes = dict[str, str]


@dataclass(frozen=True)
class Difference:
    """A feature that fails through Comity, and not in the same way without it."""

    feature: str
    through: str
    directly: str

    def __str__(self) -> str:
        return f"{self.feature}: {self.through!r}, and directly {self.directly!r}"


@dataclass(frozen=True)
class Cell:
    """A client at a server by one door of Comity, beside the same client straight at the server."""

    client: Client
    server: Server
    door: str
    through: Outcomes
    directly: Outcomes

    @property
    def features(self) -> list[str]:
        """Those that the server has; the others are nobody's to show."""
        return [name for name in FEATURES if name in self.directly]

    @property
    def passed(self) -> int:
        return sum(self.through[name] == PASS for name in self.features)

    @property
    def passed_directly(self) -> int:
        return sum(self.directly[name] == PASS for name in self.features)

    def better_of(self, again: "Cell") -> "Cell":
        """The same cell, with the better of two plays on either side."""
        through = max(self, again, key=lambda cell: cell.passed).through
        directly = max(self, again, key=lambda cell: cell.passed_directly).directly
        return replace(self, through=through, directly=directly)

    def failures(self) -> Iterator[Difference]:
        for name in self.features:
            if self.through[name] != PASS:
                yield Difference(name, self.through[name], self.directly[name])

    def differences(self) -> list[Difference]:
        """What is worse through Comity. What is better is no fault, and needs no excuse."""
        return [failure for failure in self._worse() if self.reason_for(failure.feature) is None]

    def reason_for(self, feature: str) -> str | None:
        """Why a feature is worse here on purpose, where it is."""
        return KNOWN.get((self.door, self.server.id, feature))

    def outdated(self) -> list[str]:
        """The features that a reason is given for, although they are not worse."""
        worse = {failure.feature for failure in self._worse()}
        return [name for name in self.features if self.reason_for(name) and name not in worse]

    def _worse(self) -> Iterator[Difference]:
        for failure in self.failures():
            if _kind(failure.through) != _kind(failure.directly):
                yield failure


def _kind(outcome: str) -> str:
    """`fail: KIND: words`. The words differ by addresses and ids, so that only kinds are compared;

    an answer that is not the expected one has no kind but itself.
    """
    kind, _, words = outcome.removeprefix("fail: ").partition(": ")
    return re.sub(r"[0-9a-f]{8}|\d+", "#", words) if kind == "wrong" else kind
