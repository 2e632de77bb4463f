"""The page of the documents that shows the matrix: its tables stand there as they were played."""

import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.interop.matrix.cells import Cell
from tests.interop.matrix.table import tables
from tests.interop.peers import ROOT

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
_PARTS = {"versions": "<!-- versions -->", "tables": "<!-- tables -->"}
_OFFICIAL = "@modelcontextprotocol/"


def write(cells: Sequence[Cell], page: Path = PAGE) -> None:
    text = page.read_text(encoding="utf-8")
    for part, content in (("versions", _versions()), ("tables", tables(cells))):
        before, _, after = _cut(text, part)
        mark = _PARTS[part]
        text = f"{before}{mark}\n\n{content}\n\n{mark}{after}"
    page.write_text(text, encoding="utf-8")


def shown(page: Path = PAGE) -> str:
    """The tables as they stand on the page."""
    return _cut(page.read_text(encoding="utf-8"), "tables")[1]


def _cut(text: str, part: str) -> tuple[str, str, str]:
    before, within, after = text.split(_PARTS[part])
    return before, within.strip(), after


def _versions() -> str:
    interop = ROOT / "tests" / "interop"
    javascript = json.loads((interop / "js" / "package.json").read_text())["dependencies"]
    lock = (interop / "python" / "sdk1.lock").read_text()
    sdk1 = re.search(r"^mcp==(\S+)", lock, flags=re.MULTILINE)
    assert sdk1 is not None
    rows = [
        ("Python SDK 1", f"`mcp` {sdk1.group(1)}"),
        ("Python SDK 2", f"`mcp` {version('mcp')}"),
        ("TypeScript SDK 1", f"`{_OFFICIAL}sdk` {javascript[_OFFICIAL + 'sdk']}"),
        ("TypeScript SDK 2", f"`{_OFFICIAL}client` {javascript[_OFFICIAL + 'client']}"),
        ("FastMCP 4", f"`fastmcp` {version('fastmcp')}"),
    ]
    for name in ("server-everything", "server-filesystem"):
        known_as = name.removeprefix("server-")
        rows.append((known_as, f"`{_OFFICIAL}{name}` {javascript[_OFFICIAL + name]}"))
    lines = ["| in the tables | is |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {what} |" for name, what in rows)])
