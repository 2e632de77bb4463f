"""Finds and removes one entry of `[[servers]]` in the text of a comity.toml."""

import re
import tomllib
from dataclasses import dataclass
from typing import Any, Final, cast

from comity.errors import Misconfigured

_ENTRY: Final = re.compile(r"\s*\[\[\s*servers\s*\]\]")
_PART: Final = re.compile(r"\s*\[\[?\s*servers\s*\.")
_HEADER: Final = re.compile(r"\s*\[")


@dataclass(frozen=True, slots=True)
class ServerTable:
    """The lines of a text, and the range of those that are the entry of one server."""

    lines: list[str]
    first: int
    end: int
    # Its place among the entries of the file.
    number: int


def by_hand_error(id: str) -> Misconfigured:
    return Misconfigured(
        f"the entry of server {id!r:.80} has a form that cannot be edited; change it by hand"
    )


def find_server_table(text: str, id: str) -> ServerTable:
    """Return where a server is written. Raises Misconfigured if it is no table of its own."""
    entries = cast("list[dict[str, Any]]", _parse(text).get("servers", []))
    number = next((at for at, each in enumerate(entries) if each.get("id") == id), None)
    lines = text.splitlines(keepends=True)
    begins = [at for at, line in enumerate(lines) if _ENTRY.match(line)]
    if number is None or len(begins) != len(entries):
        raise by_hand_error(id)
    first = begins[number]
    end = next((at for at in range(first + 1, len(lines)) if _ends_entry(lines[at])), len(lines))
    # Comments above the next entry belong to it.
    while end > first + 1 and _is_blank_or_comment(lines[end - 1]):
        end -= 1
    return ServerTable(lines, first, end, number)


def remove_server_table(text: str, id: str) -> str:
    """Return the text without a server and the comment right above it. All other lines stay.

    Raises Misconfigured if the edit of lines would change the meaning of anything else.
    """
    table = find_server_table(text, id)
    lines, first = table.lines, table.first
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    rest = lines[table.end :]
    if not rest or not rest[0].strip():
        # The empty line above goes too, because adding an entry wrote one.
        while first and not lines[first - 1].strip():
            first -= 1
    edited = "".join([*lines[:first], *rest])
    document = _parse(text)
    del document["servers"][table.number]
    if not document["servers"]:
        del document["servers"]
    if not has_meaning(edited, document):
        raise by_hand_error(id)
    return edited


def has_meaning(text: str, document: dict[str, Any]) -> bool:
    """Return whether a text is TOML and says exactly this."""
    try:
        return _parse(text) == document
    except tomllib.TOMLDecodeError:
        return False


def _parse(text: str) -> dict[str, Any]:
    return tomllib.loads(text.removeprefix("\ufeff"))


def _ends_entry(line: str) -> bool:
    return _HEADER.match(line) is not None and _PART.match(line) is None


def _is_blank_or_comment(line: str) -> bool:
    bare = line.strip()
    return not bare or bare.startswith("#")
