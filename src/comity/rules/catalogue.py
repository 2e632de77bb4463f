"""A tool as the registry's catalogue shows it: its entry, its tags, and what is known of it. (REG)

All of it comes from the tool's own definition, which is its server's text: it is cut to size, and
nothing follows from it. (D-82)
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from comity.rules.signatures import CATALOGUE_VERSION, TAGS_KEY, Schema
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage

type Tool = Mapping[str, Any]

MOST_TAGS: Final = 12
LONGEST_TAG: Final = 40
LONGEST_WORD: Final = 128
CATEGORY_KEY: Final = "dev.comity/category"
_HINTS: Final = {
    "readOnlyHint": "read-only",
    "destructiveHint": "destructive",
    "idempotentHint": "idempotent",
    "openWorldHint": "open-world",
}
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_EMPTY_WORDS: Final = frozenset(
    {"all", "and", "any", "does", "for", "from", "get", "has", "list", "make", "new", "set", "the"}
    | {"tool", "use", "with"}
)


def read_tool(definition: bytes) -> Tool:
    """A definition as it stands on a shelf; what cannot be read there is an empty one."""
    try:
        return _table(jsonrpc.value(definition))
    except MalformedMessage:
        return {}


def entry(server: str, own_name: str, tool: Tool) -> Schema:
    """One line of the catalogue."""
    return {
        "name": _text(tool.get("name")),
        "description": _text(tool.get("description")),
        "inputSchema": tool.get("inputSchema", {}),
        "tags": tags_of(server, own_name, tool),
    }


def tags_of(server: str, own_name: str, tool: Tool) -> list[str]:
    """What a tool is about: its server, its own tags, its hints, and the words of its name."""
    own = _table(tool.get("_meta")).get(TAGS_KEY)
    hints = _table(tool.get("annotations"))
    words = (word.lower() for word in _WORDS.findall(own_name[:LONGEST_WORD]))
    found = (
        server,
        *(each for each in _list(own) if isinstance(each, str)),
        *(tag for hint, tag in _HINTS.items() if hints.get(hint) is True),
        *(word for word in words if len(word) > 2 and word not in _EMPTY_WORDS),
    )
    return _unlike(found)[:MOST_TAGS]


def metadata_of(server: str, tool: Tool, about: Tool) -> Schema:
    """What kind of tool it is, of whom, and whether it should still be used."""
    meta = _table(tool.get("_meta"))
    said = (tool, _table(tool.get("annotations")), _table(tool.get("inputSchema")))
    return {
        "category": _text(meta.get(CATEGORY_KEY))[:LONGEST_WORD] or server,
        "version": _text(about.get("version"))[:LONGEST_WORD] or CATALOGUE_VERSION,
        "deprecated": any(each.get("deprecated") is True for each in said),
        "author": _text(about.get("name"))[:LONGEST_WORD] or server,
    }


def wrapped(result: Tool) -> Schema:
    """What a tool gave, in both forms: as content, and as structured content where it is such."""
    content = _list(result.get("content"))
    structured = result.get("structuredContent")
    if structured is None:
        structured = _structure_in(content)
    elif not content:
        content = [{"type": "text", "text": jsonrpc.to_json(structured).decode()}]
    output: Schema = {"content": content}
    if structured is not None:
        output["structuredContent"] = structured
    if "_meta" in result:
        output["_meta"] = result["_meta"]
    return output


def words_in(result: Tool) -> str:
    """What a result says to a reader: its texts, one after the other."""
    blocks = (_table(block) for block in _list(result.get("content")))
    return "\n".join(text for text in (_text(block.get("text")) for block in blocks) if text)


def _structure_in(content: list[Any]) -> object:
    """The object that the only text is, where it is one."""
    text = _text(_table(content[0]).get("text")) if len(content) == 1 else ""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return jsonrpc.value(text.encode())
    except (MalformedMessage, UnicodeEncodeError, msgspec.DecodeError):
        return None


def _unlike(found: Iterable[str]) -> list[str]:
    plain = (" ".join(each.split())[:LONGEST_TAG] for each in found)
    return list(dict.fromkeys(each for each in plain if each and each.isprintable()))


def _table(said: object) -> dict[str, Any]:
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _list(said: object) -> list[Any]:
    return cast("list[Any]", said) if isinstance(said, list) else []


def _text(said: object) -> str:
    return said if isinstance(said, str) else ""
