"""Safe display of untrusted text, timestamps, and UUID forms."""

import re
import unicodedata
from datetime import UTC, datetime
from typing import Any, Final, cast

import msgspec

_encode: Final = msgspec.json.Encoder().encode
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


# Letters and marks that draw nothing, and blanks that Unicode does not class as white space.
_INVISIBLE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
)
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_PLAIN_CONTROLS: Final = frozenset("\n\t\r")


def is_hidden(character: str) -> bool:
    """Return whether machines read a character that people do not see."""
    if character in _PLAIN_CONTROLS:
        return False
    category = unicodedata.category(character)
    if category == "Cn":
        # Unicode tables lag behind new emoji. No script uses the other unassigned characters.
        return not 0x1F000 <= ord(character) <= 0x1FBFF
    code = ord(character)
    selects = 0xFE00 <= code <= 0xFE0F or 0xE0000 <= code <= 0xE0FFF
    return category in _HIDDEN_CATEGORIES or selects or character in _INVISIBLE


def has_hidden(name: str) -> bool:
    """Return whether a name has a character that people do not see.

    Two such names look the same and are not, so neither a principal nor a group can have one.
    """
    return not name.isascii() and any(map(is_hidden, name))


def has_unsafe(text: str) -> bool:
    """Return whether `escape_unsafe` would change the text."""
    return not text.isprintable() and _UNSAFE.search(text) is not None


def escape_unsafe(text: str) -> str:
    """Return the text with unsafe characters escaped as in Python."""
    if text.isprintable():  # true for nearly every text, and much faster than the loop
        return text
    return _UNSAFE.sub(_escape_match, text)


def _escape_match(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


_MARKS_OF_A_NAME: Final = (":", "/", "_", "@")


def count_noun(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 tool`, `1,200 tools`. The default plural ends in s."""
    written = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{written} {noun if count == 1 else plural or f'{noun}s'}"


def start_sentence(words: str) -> str:
    """Return the words with a capital letter, unless they begin with an id or a name."""
    first = words.partition(" ")[0].rstrip(".,:;")
    if any(mark in first for mark in _MARKS_OF_A_NAME):
        return words
    return f"{words[:1].upper()}{words[1:]}"


def word_set(*texts: str) -> frozenset[str]:
    """Return the set of the words in the given texts."""
    return frozenset(word for text in texts for word in text.split())


def format_timestamp(at: datetime) -> str:
    """Return a time in the format of the specification: UTC with milliseconds."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    # `isoformat` is slow for a time with a zone, and each audit entry has two.
    return f"{_encode(at)[1:20].decode()}.{at.microsecond // 1000:03d}Z"


def format_sql_timestamp(at: datetime) -> str:
    """Return a time as SQLite stores it: UTC with microseconds, without a zone."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    text = _encode(at).decode()
    return f"{text[1:11]} {text[12:20]}.{at.microsecond:06d}"


def as_uuid(trace: str) -> str:
    """Return a trace id as a UUID, as MGP writes it. Other texts stay as they are."""
    if len(trace) != 32:
        return trace
    return f"{trace[:8]}-{trace[8:12]}-{trace[12:16]}-{trace[16:20]}-{trace[20:]}"


def from_uuid(trace: str) -> str:
    """Return a UUID as a trace id of 32 digits. Other texts stay as they are."""
    parts = trace.split("-")
    return "".join(parts) if [len(part) for part in parts] == [8, 4, 4, 4, 12] else trace


def object_members(value: object) -> dict[str, Any]:
    """Return the members of an object, or an empty dict for any other untrusted JSON."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
