"""What a tool gave back, printed for people: its text, and as JSON what the text leaves out."""

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
    """Whether the text says it too: many servers repeat the structure for older clients."""
    found = (members(item).get("text") for item in items)
    texts = [text for text in found if isinstance(text, str)]
    parsed = [_parsed(text) for text in texts]
    said = [*texts, *parsed, texts, parsed] if texts else []
    # Some servers wrap a plain value, or a list, in an object with one member.
    values = list(members(structured).values())
    return structured in said or (len(values) == 1 and values[0] in said)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


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
