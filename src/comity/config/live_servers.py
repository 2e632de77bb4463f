"""The table `live` of a server: what it may do beyond answering. (MCPL §6, §7, D-61, D-68)"""

from collections.abc import Mapping
from typing import Any, Final

from comity.config.kinds import TRUTH, Kind, number, one_of, table_of, texts
from comity.rules.documents import Written
from comity.rules.live_policy import BESIDE_USER, LivePolicy
from comity.wire.features import Bounds
from comity.wire.hooks import Position

type Member = tuple[Kind, str]

_SETS: Final = texts(
    r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?",
    "a feature set, as memory.retrieval, or memory.*",
)
_PATTERNS: Final = texts(r"[^\x00-\x1f]{1,500}", "a pattern, as /project/**")
_BOUNDS: Final[Mapping[str, Member]] = {
    "whitelist": (_PATTERNS, "what it may reach: * within a folder, ** across"),
    "blacklist": (_PATTERNS, "what it may not, whatever else is said"),
}


def _positions(written: Written) -> tuple[object, ...]:
    return tuple(Position(each.one_of(list(Position))) for each in written.items())


def _read(written: Written, members: Mapping[str, Member]) -> dict[str, Any]:
    for stranger in written.unknown(members):
        raise stranger
    return {name: members[name][0].read(each) for name, each in written.table().items()}


def _scopes(written: Written) -> Mapping[str, Bounds]:
    return {name: Bounds(**_read(each, _BOUNDS)) for name, each in written.table().items()}


def _pointers(written: Written) -> Mapping[str, str]:
    found = {name: each.text() for name, each in written.table().items()}
    for name, each in written.table().items():
        if not found[name].startswith("/"):
            raise each.wrong("must say where in its arguments the scope stands, as /path")
    return found


_MEMBERS: Final[Mapping[str, Member]] = {
    "enabled": (_SETS, "feature sets that it may use; none unless named"),
    "disabled": (_SETS, "feature sets that it may not, though a wildcard names them"),
    "positions": (
        Kind(_positions, {"type": "array", "items": {"enum": list(Position)}}),
        "where it may put words before a model; `system` only if named",
    ),
    "rewrites": (TRUTH, "whether it may change what a model said"),
    "on_failure": (
        one_of("open", "closed"),
        "whether words that it was to look at go out if it does not answer",
    ),
    "scopes": (
        Kind(_scopes, {"type": "object", "additionalProperties": table_of(_BOUNDS)}),
        "what a feature set may reach",
    ),
    "scope_of": (
        Kind(_pointers, {"type": "object", "additionalProperties": {"type": "string"}}),
        "where the scope of a call stands in a tool's arguments, as /path",
    ),
    "order": (number(0, 10_000), "its place among other servers; the lowest first"),
}


def _table(written: Written) -> Mapping[str, object]:
    return _read(written, _MEMBERS)


LIVE: Final = Kind(_table, table_of(_MEMBERS))


def live_policy_of(written: Mapping[str, Any]) -> LivePolicy:
    """What is decided by such a table."""
    said = dict(written)
    closed = said.pop("on_failure", "open") == "closed"
    positions = frozenset(said.pop("positions", BESIDE_USER))
    return LivePolicy(**said, positions=positions, fails_closed=closed)
