"""The topics of `[[topics.rooms]]`: what holds in one of them, where it is other than usual."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from comity.config.kinds import Kind, number, one_of, table_of, texts
from comity.rules.capabilities import is_capability
from comity.rules.documents import Written
from comity.rules.topics import is_topic

_SHAPE: Final = "[!-~]{1,256}"


@dataclass(frozen=True, slots=True)
class RoomSettings:
    """One topic; what is None is as usual. `mounts` are servers that are members of it."""

    name: str
    access: str | None = None
    capabilities: tuple[str, ...] | None = None
    members: int | None = None
    history: int | None = None
    kinds: str | None = None
    mounts: tuple[str, ...] = ()
    asks: bool = False


def _name(written: Written) -> str:
    if not is_topic(written.text()):
        raise written.wrong("must be 1 to 64 of A-Z a-z 0-9 _ . -")
    return written.text()


def _capabilities(written: Written) -> tuple[str, ...]:
    for item in written.items():
        if not is_capability(item.text()):
            raise item.wrong("must be a capability, as mcp/proposal:* or chat")
    return tuple(item.text() for item in written.items())


CAPABILITIES: Final = Kind(
    _capabilities, {"type": "array", "items": {"type": "string", "pattern": f"^{_SHAPE}$"}}
)
ACCESS: Final = one_of("public", "restricted", "private")
KINDS: Final = one_of("strict", "later")
_MEMBERS: Final[Mapping[str, tuple[Kind, str]]] = {
    "name": (Kind(_name, {"type": "string"}), "the topic"),
    "access": (ACCESS, "who may join: everybody known, or who was granted something in it"),
    "capabilities": (CAPABILITIES, "what somebody may send who was granted nothing"),
    "members": (number(1, 1_000_000), "how many members it has at most"),
    "history": (number(0, 10_000), "how many envelopes whoever joins is given first"),
    "kinds": (KINDS, "`later`: with mcp/reject and mcp/withdraw of later versions"),
    "mounts": (texts(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a server's id"), "servers in it"),
    "asks": (Kind(Written.truth, {"type": "boolean"}), "whether asks of the gateway are put here"),
}


def _room(entry: Written) -> RoomSettings:
    table = entry.table()
    for stranger in entry.unknown(_MEMBERS):
        raise stranger
    if "name" not in table:
        raise entry.wrong("has no name; give it the topic's")
    said: dict[str, Any] = {name: _MEMBERS[name][0].read(each) for name, each in table.items()}
    return RoomSettings(**said)


def _rooms(written: Written) -> tuple[RoomSettings, ...]:
    found = tuple(_room(entry) for entry in written.items())
    if len({room.name for room in found}) < len(found):
        raise written.wrong("names one topic twice; keep one")
    return found


ROOMS: Final = Kind(_rooms, {"type": "array", "items": table_of(_MEMBERS, required=["name"])})
