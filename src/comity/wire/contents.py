"""What people, models and servers say to each other in MCPL: blocks of content. (MCPL §10.3, B.1)

A plain text stands for one block of text. Inside, content is always a tuple of blocks. (D-75)
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

MOST_BLOCKS: Final = 256
MEDIA: Final = frozenset({"image", "audio"})


class Block(Struct, frozen=True, omit_defaults=True):
    """One piece of content; what it has follows from its type."""

    type: str
    text: str = ""
    data: str = ""
    mime: str = msgspec.field(default="", name="mimeType")
    uri: str = ""

    @property
    def size(self) -> int:
        """Characters, of whatever it holds."""
        return len(self.text) + len(self.data) + len(self.uri)


type Content = tuple[Block, ...]


def said(text: str) -> Content:
    return (Block("text", text),) if text else ()


def text_of(content: Iterable[Block]) -> str:
    """All that can be read of it; what is no text is named, so that nobody overlooks it."""
    parts = (
        block.text if block.type == "text" else f"[{block.type}: {block.uri or block.mime}]"
        for block in content
    )
    return "\n".join(parts)


def content_in(raw: Raw | None, what: str = "content") -> Content:
    """Content as a stranger wrote it. Raises MalformedMessage."""
    found = None if raw is None else jsonrpc.value(raw)
    if isinstance(found, str):
        return (Block("text", found),)
    if isinstance(found, dict):
        # MCP's sampling has one block where everybody else has a list.
        found = [cast("object", found)]
    if not isinstance(found, list):
        raise MalformedMessage(f"{what} is neither a text nor a list of blocks", INVALID_PARAMS)
    blocks = cast("Sequence[object]", found)
    if len(blocks) > MOST_BLOCKS:
        raise MalformedMessage(f"{what} has more than {MOST_BLOCKS} blocks", INVALID_PARAMS)
    return tuple(_block(each, what) for each in blocks)


def to_wire(content: Iterable[Block]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(block) for block in content]


def _block(found: object, what: str) -> Block:
    try:
        block = msgspec.convert(found, Block)
    except msgspec.ValidationError as problem:
        raise MalformedMessage(f"{what} is no content: {problem}", INVALID_PARAMS) from None
    missing = _missing(block, cast("dict[str, object]", found))
    if missing:
        raise MalformedMessage(f"{what}: {missing}", INVALID_PARAMS)
    return block


def _missing(block: Block, members: dict[str, object]) -> str:
    """What a block of its type lacks; empty for nothing. (B.1)"""
    if block.type == "text":
        return "" if "text" in members else "a text block has no text"
    if block.type == "resource":
        return "" if block.uri else "a resource block has no uri"
    if block.type not in MEDIA:
        return f"there are no blocks of type {block.type!r:.40}"
    if bool(block.uri) == bool(block.data and block.mime):
        return f"an {block.type} block has data and mimeType, or a uri"
    return ""
