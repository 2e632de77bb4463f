"""Limits on the values that a store accepts: names, texts, times and documents."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, cast

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc

NAME_BYTES: Final = 1_024
"""The limit of a name. Two such names fit into one index entry of a database."""

WORDS_LENGTH: Final = 4_000
DOCUMENT_BYTES: Final = 4 * 1024 * 1024

DEPTH: Final = 100
TOLD_AT_ONCE: Final = 1_000

UNNAMEABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNREADABLE: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
MAX_STORED_NUMBER: Final = 2**53


def check_name(text: str, what: str) -> str:
    """Return a valid name unchanged. Raises MalformedMessage for any other text."""
    if UNNAMEABLE.search(text):
        raise refused_value(f"{what} holds a control character, or half a character")
    if not 0 < len(text.encode()) <= NAME_BYTES:
        raise refused_value(f"{what} must have 1 to {NAME_BYTES} bytes")
    return text


def is_name(text: str) -> bool:
    """Return whether a record can have this name."""
    return not UNNAMEABLE.search(text) and 0 < len(text.encode()) <= NAME_BYTES


def clean_words(text: str) -> str:
    """Return a text for people, shortened and without characters that databases refuse."""
    return _UNREADABLE.sub("\N{REPLACEMENT CHARACTER}", text[:WORDS_LENGTH])


def to_optional_utc(at: datetime | None) -> datetime | None:
    """Return the same time in UTC, or None."""
    return None if at is None else to_utc(at)


def to_utc(at: datetime) -> datetime:
    """Return the same time in UTC."""
    if at.tzinfo is None:
        raise refused_value("a time needs its zone")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise refused_value("a time must be between the years 1 and 9999") from None


def encode_document(
    entry: Mapping[str, object], what: str = "an entry", maximum: int = DOCUMENT_BYTES
) -> str:
    """Return a document as JSON. A NUL is escaped, and a long number is written as digits."""
    try:
        encoded = bytes(jsonrpc.to_raw(dict(entry)))
    except (TypeError, ValueError, RecursionError):
        raise refused_value(f"{what} must be plain JSON") from None
    if len(encoded) > maximum:
        raise refused_value(f"{what} has at most {maximum} bytes")
    return encoded.decode()


def decode_document(text: str) -> Mapping[str, object]:
    found = jsonrpc.decode_value(text.encode())
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def encode_names(names: Iterable[str], maximum: int = DOCUMENT_BYTES) -> str:
    try:
        encoded = bytes(jsonrpc.to_raw(list(names)))
    except ValueError:
        raise refused_value("a name in a list holds half a character") from None
    if len(encoded) > maximum:
        raise refused_value(f"a list has at most {maximum} bytes")
    return encoded.decode()


def read_list(text: str) -> tuple[str, ...]:
    found = jsonrpc.decode_value(text.encode())
    return tuple(map(str, cast("list[object]", found))) if isinstance(found, list) else ()


def names_of_change(whose: Iterable[str]) -> tuple[str, ...]:
    """Return the names of one change. One empty name means too many names."""
    changed = tuple(dict.fromkeys(whose))
    return changed if len(changed) <= TOLD_AT_ONCE else ("",)


def refused_value(reason: str) -> MalformedMessage:
    return MalformedMessage(reason, INVALID_PARAMS)
