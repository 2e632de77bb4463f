"""What a tool gave back, printed for people: its text as it is, its structure as JSON."""

import json
from collections.abc import Iterator
from typing import Any, cast

from rich.text import Text

from comity.cli.asking import members
from comity.cli.show import paragraphs, plain, show

type Result = dict[str, Any]


def show_result(result: Result) -> None:
    style = "red" if result.get("isError") else ""
    for piece in _pieces(result, style):
        show(piece)


def _pieces(result: Result, style: str) -> Iterator[Text]:
    content = result.get("content")
    items = cast("list[object]", content) if isinstance(content, list) else []
    for item in items:
        yield _piece(members(item), style)
    structured = result.get("structuredContent")
    if structured is not None and not _is_said(structured, items):
        yield paragraphs(json.dumps(structured, indent=2, ensure_ascii=False), style)


def _is_said(structured: object, items: list[object]) -> bool:
    """Servers repeat the structure as text, for clients that know no better."""
    for item in items:
        try:
            if json.loads(str(members(item).get("text"))) == structured:
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _piece(item: Result, style: str) -> Text:
    kind = item.get("type")
    if kind == "text":
        return paragraphs(str(item.get("text", "")), style)
    if kind in ("image", "audio"):
        size = len(str(item.get("data", ""))) * 3 // 4
        return plain(f"[{kind}: {item.get('mimeType', 'of no known kind')}, {size} bytes]", "dim")
    if kind == "resource_link":
        return plain(f"[resource: {item.get('name', '')} {item.get('uri', '')}]", "dim")
    resource = members(item.get("resource"))
    if kind == "resource" and isinstance(resource.get("text"), str):
        return paragraphs(resource["text"], style)
    return plain(f"[{kind}: {resource.get('uri', 'which cannot be shown here')}]", "dim")
