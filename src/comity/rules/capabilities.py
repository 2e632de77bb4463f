"""Which kinds a member may send: patterns, matched part by part. (MCPx §4.1, D-40, S12)

Rule 1: a trailing `*` stands for any characters; one before that for any but a colon.
Rule 2: a capability that names a method covers its every context; nothing else is a prefix.
Rule 3: nothing covers what is the gateway's own.
Rule 4: what is denied in one context is denied without a context too: there it could be any.
Rule 5: no pattern takes longer than the kind is long, whoever wrote either.
"""

from collections.abc import Iterable
from typing import Final

from comity.rules.kinds import is_reserved
from comity.rules.patterns import ANY, covers

MOST_REMEMBERED: Final = 256
LONGEST: Final = 256
FULL: Final = ("mcp/*", "chat")
PROPOSE: Final = ("mcp/proposal:*", "mcp/response:*", "chat")
RESPOND: Final = ("mcp/response:*", "chat")
READ_ONLY: Final = ("mcp/request:resources/read", "mcp/request:*/list", "mcp/response:*", "chat")
TOOLS: Final = ("mcp/request:tools/*", "mcp/response:tools/*", "chat")
PROFILES: Final = {
    "full": FULL,
    "propose": PROPOSE,
    "respond": RESPOND,
    "read-only": READ_ONLY,
    "tools": TOOLS,
}
"""The document's examples, by the names that an operator may use for them."""


def is_capability(text: str) -> bool:
    """Whether it can be one: printable ASCII without white space, and of a bounded length."""
    return 0 < len(text) <= LONGEST and text.isascii() and text.isprintable() and " " not in text


def matches(capability: str, kind: str) -> bool:
    """Whether this capability lets somebody send that kind."""
    if is_reserved(kind) or not (kind.isascii() and kind.isprintable()):
        return False
    wanted, given = capability.split(":"), kind.split(":")
    if capability.endswith(ANY):
        return _begins(wanted, given)
    if len(wanted) == 2 and len(given) > 2:
        given = given[:2]
    return len(wanted) == len(given) and all(map(covers, wanted, given))


def _begins(wanted: list[str], given: list[str]) -> bool:
    """The trailing star: what comes after the part that it stands in is nobody's concern."""
    return len(given) >= len(wanted) and all(map(covers, wanted, given))


def _may_be_within(denial: str, kind: str) -> bool:
    """Whether a kind that names no context leaves open one that is denied."""
    wanted, given = denial.split(":"), kind.rstrip(":").split(":")
    return len(wanted) > len(given) == 2 and all(map(covers, wanted, given))


class Capabilities:
    """What one member may send; what was asked once is known."""

    __slots__ = ("_known", "denied", "listed")

    def __init__(self, allowed: Iterable[str], denied: Iterable[str] = ()) -> None:
        self.denied = tuple(dict.fromkeys(denied))
        # A star is a character like others here: what a denial covers as it is written, it covers
        # whatever the star stands for, and so it is not told to the member as something it has.
        self.listed = tuple(
            each
            for each in dict.fromkeys(allowed)
            if not any(denial == each or matches(denial, each) for denial in self.denied)
        )
        self._known: dict[str, bool] = {}

    def cover(self, kind: str) -> bool:
        known = self._known.get(kind)
        if known is None:
            known = any(matches(each, kind) for each in self.listed) and not any(
                matches(each, kind) or _may_be_within(each, kind) for each in self.denied
            )
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[kind] = known
        return known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Capabilities) and (self.listed, self.denied) == (
            other.listed,
            other.denied,
        )

    def __hash__(self) -> int:
        return hash((self.listed, self.denied))
