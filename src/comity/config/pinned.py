"""The entries of `[[discovery.pinned]]`: which tools are always listed, and for whom."""

from typing import Final

from comity.config.kinds import Kind
from comity.rules import granting
from comity.rules.documents import Written
from comity.rules.toolbelt import Pinned
from comity.wire.errors import MalformedMessage

MOST_ENTRIES: Final = 1000
MOST_TOOLS: Final = 100
_PARTY: Final = "for whom: a party's id or a pattern, as agent:*; everybody unless given"
_TOOLS: Final = "which tools, each as server/tool; the first ones first"
_MEMBERS: Final = ("party", "tools")


def _party(written: Written) -> str:
    try:
        return granting.subjects(written.text())
    except MalformedMessage as refused:
        raise written.wrong(str(refused)) from None


def _tool(written: Written) -> tuple[str, str]:
    server, separator, name = written.text().partition("/")
    if not (server and separator and name) or "*" in written.text() or len(written.text()) > 500:
        raise written.wrong("must name one tool, as files/read_file")
    return server, name


def _entry(written: Written) -> Pinned:
    table = written.table()
    for stranger in written.unknown(_MEMBERS):
        raise stranger
    if "tools" not in table:
        raise written.wrong("pins nothing; name tools, as files/read_file")
    tools = tuple(_tool(each) for each in table["tools"].items())
    if len(tools) > MOST_TOOLS:
        raise table["tools"].wrong(f"names more than {MOST_TOOLS}; no budget has room for them")
    return Pinned(_party(table["party"]) if "party" in table else "*", tools)


def _entries(written: Written) -> tuple[Pinned, ...]:
    items = written.items()
    if len(items) > MOST_ENTRIES:
        raise written.wrong(f"has more than {MOST_ENTRIES} entries")
    return tuple(_entry(each) for each in items)


PINNED: Final = Kind(
    _entries,
    {
        "type": "array",
        "maxItems": MOST_ENTRIES,
        "items": {
            "type": "object",
            "properties": {
                "party": {"type": "string", "description": _PARTY},
                "tools": {
                    "type": "array",
                    "maxItems": MOST_TOOLS,
                    "items": {"type": "string", "pattern": "^[^/*]+/[^*]+$"},
                    "description": _TOOLS,
                },
            },
            "required": ["tools"],
            "additionalProperties": False,
        },
    },
)
