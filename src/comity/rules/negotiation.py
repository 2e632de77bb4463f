"""What two ends of a link agree on after both have spoken of MGP. (MGP §2.4, D-01)

Rule 1: without a word from either side, or with one that cannot be read, the link is plain MCP.
Rule 2: the major versions are the same or there is no MGP; any minor will do, since what can be
        used follows from the extensions and not from the version.
Rule 3: an extension is active where both sides named it. Comity names only what it does.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Raw, UnsetType

from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import CLIENT_CAPABILITIES
from comity.wire.negotiation import VERSION, Extension, Statement, stated, without

TO_CLIENTS: Final[frozenset[str]] = frozenset(
    {
        Extension.LIFECYCLE,
        Extension.DISCOVERY,
        Extension.ACCESS_CONTROL,
        Extension.SECURITY,
        Extension.CODE_SAFETY,
        Extension.AUDIT,
        Extension.STREAMING,
        Extension.BIDIRECTIONAL,
        Extension.TOOL_DISCOVERY,
    }
)
"""What the gateway does for a client, in the place of a server."""

TO_SERVERS: Final[frozenset[str]] = frozenset(
    {
        Extension.LIFECYCLE,
        Extension.SECURITY,
        Extension.AUDIT,
        Extension.STREAMING,
        Extension.BIDIRECTIONAL,
    }
)
"""What the gateway does with a server, in the place of a client."""

_MENTION: Final = b"mgp"
_NOTHING: Final = Raw(b"{}")
_SEMVER: Final = re.compile(r"(\d{1,6})\.(\d{1,6})(\.\d{1,6})?([-+][0-9A-Za-z.+-]{0,64})?")


@dataclass(frozen=True, slots=True)
class Terms:
    """What was agreed on: the version that the other side speaks, and what both can do."""

    version: str
    extensions: frozenset[str]


def offer(extensions: Iterable[str], more: Mapping[str, object] | None = None) -> dict[str, object]:
    """How these extensions are offered, or agreed to, on the wire."""
    return {"version": VERSION, "extensions": sorted(extensions), **(more or {})}


def agree(said: Statement | None, offered: frozenset[str]) -> Terms | None:
    """The terms between what the other side said and what we offered; None is plain MCP."""
    if said is None or _major(said.version) != _major(VERSION):
        return None
    return Terms(said.version, said.extensions & offered)


def of_request(params: Raw | UnsetType) -> Terms | None:
    """The terms on which a modern request is made: its envelope says what its client can do."""
    try:
        found = {} if params is UNSET else jsonrpc.members(params)
        meta = jsonrpc.members(found["_meta"]) if "_meta" in found else {}
    except MalformedMessage:
        return None
    return agree(stated(meta.get(CLIENT_CAPABILITIES)), TO_CLIENTS)


def unsaid(frame: Frame) -> Frame:
    """A modern request for its server: what its client said of MGP was said to the gateway."""
    if frame.params is UNSET or _MENTION not in bytes(frame.params):
        return frame
    params = jsonrpc.members(frame.params)
    meta = jsonrpc.members(params.get("_meta", _NOTHING))
    capabilities = jsonrpc.members(meta.get(CLIENT_CAPABILITIES, _NOTHING))
    plain = without(capabilities)
    if plain == capabilities:
        return frame
    said = {**meta, CLIENT_CAPABILITIES: plain}
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "_meta": said}))


def remark(said: Statement | None) -> str | None:
    """What somebody should know of a version that is not ours."""
    if said is None or _minor(said.version) == _minor(VERSION):
        return None
    if _major(said.version) == _major(VERSION):
        return f"speaks MGP {said.version:.40}, which may differ from {VERSION} in details"
    return f"speaks MGP {said.version:.40} and not {VERSION}: the link is plain MCP"


def _major(version: str) -> int | None:
    found = _SEMVER.fullmatch(version)
    return None if found is None else int(found[1])


def _minor(version: str) -> tuple[int, int] | None:
    found = _SEMVER.fullmatch(version)
    return None if found is None else (int(found[1]), int(found[2]))
