"""What the two ends of a link say of MGP when they meet, and where they say it. (MGP §2, D-06)

`capabilities.mgp` is where the document puts it. Some SDKs let only `experimental` through, and
2026-07-28 has a place of its own for extensions; whoever spoke there is answered there as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage

VERSION: Final = "0.3.0"
"""The text that Comity speaks: its history calls the one with §16 so. (D-01)"""

METHOD_PREFIX: Final = "mgp/"
LIST_SERVERS: Final = "mgp/discovery/list"
NOTICE_PREFIX: Final = "notifications/mgp."
EXTENSION_KEY: Final = "dev.comity/mgp"

_OWN: Final = "mgp"
_INSIDE: Final = {"experimental": _OWN, "extensions": EXTENSION_KEY}
_MOST_BYTES: Final = 64 * 1024
"""What a peer says of itself is kept as long as its link, so it is short."""


class Extension(StrEnum):
    """The standard extensions, by the names they are negotiated under. (MGP §2.2)"""

    SECURITY = "security"
    ACCESS_CONTROL = "access_control"
    AUDIT = "audit"
    CODE_SAFETY = "code_safety"
    LIFECYCLE = "lifecycle"
    STREAMING = "streaming"
    BIDIRECTIONAL = "bidirectional"
    DISCOVERY = "discovery"
    TOOL_DISCOVERY = "tool_discovery"


@dataclass(frozen=True, slots=True)
class Statement:
    """What one end said of itself; testimony, never authority."""

    version: str
    extensions: frozenset[str]
    permissions: tuple[str, ...] = ()
    trust_level: str | None = None


class _Stated(Struct):
    version: str
    extensions: list[str]
    permissions_required: list[str] = []
    server_id: str | None = None
    trust_level: str | None = None


def stated(capabilities: Raw | None) -> Statement | None:
    """What is said of MGP among these capabilities; None where nothing is, or nothing readable."""
    try:
        places = _places({} if capabilities is None else jsonrpc.members(capabilities))
        said = next(iter(places.values()), None)
        if said is None or len(said) > _MOST_BYTES:
            return None
        found = msgspec.convert(jsonrpc.value(said), _Stated)
    except (MalformedMessage, msgspec.ValidationError):
        # Whatever it was, the link is one of plain MCP.
        return None
    return Statement(
        found.version,
        frozenset(found.extensions),
        tuple(found.permissions_required),
        found.trust_level,
    )


def declare(
    capabilities: Mapping[str, Mapping[str, object]],
    said: Mapping[str, object],
    asked: Raw | None = None,
) -> dict[str, Mapping[str, object]]:
    """Capabilities that say this of MGP: as the document writes it, and where the peer spoke."""
    declared = {**capabilities, _OWN: said}
    for place in {} if asked is None else _places(jsonrpc.members(asked)):
        if place in _INSIDE:
            declared[place] = {**capabilities.get(place, {}), _INSIDE[place]: said}
    return declared


def without(capabilities: Mapping[str, Raw]) -> dict[str, Raw]:
    """The same capabilities with nothing said of MGP, in any place."""
    left = {name: raw for name, raw in capabilities.items() if name != _OWN}
    for place, key in _INSIDE.items():
        inside = _inside(left, place)
        if key in inside:
            del inside[key]
            left[place] = jsonrpc.to_raw(inside)
            if not inside:
                del left[place]
    return left


def silenced(hello: Mapping[str, Raw]) -> dict[str, Raw]:
    """What a server said of itself, for those who did not ask it about MGP. (MGP §2.4)"""
    capabilities = hello.get("capabilities")
    if capabilities is None or stated(capabilities) is None:
        return {**hello}
    return {**hello, "capabilities": jsonrpc.to_raw(without(jsonrpc.members(capabilities)))}


def _places(capabilities: Mapping[str, Raw]) -> dict[str, Raw]:
    """Where MGP is spoken of, in the order in which the places count."""
    found = {_OWN: capabilities[_OWN]} if _OWN in capabilities else {}
    for place, key in _INSIDE.items():
        inside = _inside(capabilities, place)
        if key in inside:
            found[place] = inside[key]
    return found


def _inside(capabilities: Mapping[str, Raw], place: str) -> dict[str, Raw]:
    try:
        return jsonrpc.members(capabilities[place]) if place in capabilities else {}
    except MalformedMessage:
        return {}
