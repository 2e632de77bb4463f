"""Removes from messages of servers the `_meta` keys by which Comity itself speaks to clients.

A client takes `_meta["dev.comity/refusal"]` for the word of the gateway, so no server may write it.
"""

import re
from collections.abc import Collection
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET

from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import ExtendedFrame, Frame

RESERVED_PREFIX: Final = "dev.comity/"
DEFINITION_KEYS: Final = frozenset(
    RESERVED_PREFIX + name for name in ("tags", "keywords", "category", "security")
)
"""The keys that servers write in their definitions, for search and risk."""

HINT: Final = b"dev.comity"
ESCAPE_HINT: Final = b"\\u00"
# A letter, or the dot, of the prefix as an escape sequence. Few servers escape these.
ESCAPED_HINT: Final = re.compile(rb"\\u00(?:2[eE]|6[34569dDfF]|7[469])")
"""A message with none of these holds no reserved key. A caller can look before it calls."""

_META: Final = "_meta"
_LIST_OF_METHOD: Final = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
_OPAQUE: Final = frozenset({"structuredContent"})
"""Members whose content is the server's own data, in which `_meta` has no meaning."""


def may_hold_reserved_keys(data: bytes) -> bool:
    """Whether a message may hold a reserved key. False for almost all messages, at little cost."""
    return HINT in data or (ESCAPE_HINT in data and ESCAPED_HINT.search(data) is not None)


def without_reserved_keys(frame: Frame, method: str = "", kept: Collection[str] = ()) -> Frame:
    """Return a message of a server without reserved keys in any `_meta`, or in an error's data.

    `method` is that of the request, if the message is an answer. In the answer to a list request
    each definition may have its keys. Keys in `kept` stay in the `_meta` of the result itself.
    Raises MalformedMessage.
    """
    changed: dict[str, Any] = {}
    for name in ("params", "result", "error"):
        raw = getattr(frame, name)
        if raw is not UNSET and may_hold_reserved_keys(bytes(raw)):
            value = jsonrpc.decode_value(raw)
            if _clean(name, value, method, kept):
                changed[name] = jsonrpc.to_raw(value)
    if type(frame) is ExtendedFrame and _META in frame.members:
        changed["members"] = {name: raw for name, raw in frame.members.items() if name != _META}
    return msgspec.structs.replace(frame, **changed) if changed else frame


def _clean(name: str, value: object, method: str, kept: Collection[str]) -> bool:
    """Remove the reserved keys from a decoded member, and return whether there were any."""
    if not isinstance(value, dict):
        return False
    members = cast("dict[str, Any]", value)
    if name == "error":
        return _clean_value(members) | _drop_keys(members.get("data"))
    if name == "params":
        return _clean_value(members)
    listed = _elements(members.get(_LIST_OF_METHOD.get(method, "")))
    found = _drop_keys(members.get(_META), kept)
    for each in listed:
        found |= _drop_keys(each.get(_META), DEFINITION_KEYS)
    skipped = {id(each.get(_META)) for each in (members, *listed)}
    return _clean_value(members, skipped) | found


def _elements(value: object) -> list[dict[str, Any]]:
    elements = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in elements if isinstance(each, dict)]


def _clean_value(value: object, skipped: Collection[int] = ()) -> bool:
    """Remove the reserved keys from each `_meta` at any depth, except those in `skipped`."""
    found = False
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting.extend(cast("list[object]", each))
        elif isinstance(each, dict):
            members = cast("dict[str, object]", each)
            meta = members.get(_META)
            if meta is not None and id(meta) not in skipped:
                found |= _drop_keys(meta)
            waiting.extend(inner for name, inner in members.items() if name not in _OPAQUE)
    return found


def _drop_keys(value: object, kept: Collection[str] = ()) -> bool:
    if not isinstance(value, dict):
        return False
    members = cast("dict[str, object]", value)
    reserved = [name for name in members if name.startswith(RESERVED_PREFIX) and name not in kept]
    for name in reserved:
        del members[name]
    return bool(reserved)
