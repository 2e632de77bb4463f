"""What a definition hides from the person who reads it. (attacks 1 and 4)

A model reads every character of a description; a person sees only some of them. What only one of
the two can see has no place in a definition. Characters that scripts and emoji need are let be.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

LONGEST_TEXT: Final = 16_384
LONGEST_NAME: Final = 256
LONGEST_GAP: Final = 200
"""White space in one piece, by which the rest of a text is moved out of sight."""

MOST_FINDINGS: Final = 20

_FLAGS: Final = ("gbeng", "gbsct", "gbwls")
_TAG_FLAG: Final = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in name) + "\U000e007f"
    for name in _FLAGS
)
_PICTURE: Final = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_SKIN: Final = "[\U0001f3fb-\U0001f3ff]"
_EMOJI: Final = rf"{_PICTURE}{_SKIN}?[\ufe0e\ufe0f]?"
# What is drawn as one picture: joined ones, keycaps, and the three flags that are spelt in tags.
_SEQUENCES: Final = re.compile(rf"{_TAG_FLAG}|{_EMOJI}(?:\u200d{_EMOJI})*|[0-9#*]\ufe0f\u20e3")
# Persian and its kin write words with a non-joiner inside; so, after a virama, do Indic scripts.
_ARABIC: Final = "[\u0620-\u064a\u066e-\u06d3\u06fa-\u06ff\u0750-\u077f\u08a0-\u08c9]"
_VIRAMA: Final = (
    "[\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d3b\u0d3c\u0d4d\u0dca\u1039\u17d2]"
)
_JOINERS: Final = re.compile(rf"(?<={_ARABIC})\u200c(?={_ARABIC})|(?<={_VIRAMA})[\u200c\u200d]")
# Letters and marks that draw nothing, and blanks that are none to a machine.
_INVISIBLE: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
)
_HIDING: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
_PLAIN_CONTROLS: Final = frozenset("\n\t\r")
_GAP: Final = re.compile(rf"\s{{{LONGEST_GAP},}}")
_SURELY_PLAIN: Final = re.compile(r"[\n\t\r\x20-\x7e\u00a1-\u00ac\u00ae-\u02ff]*")


_RESERVED: Final = "mgp."
_CONFUSABLE_ALPHABETS: Final = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})


class Look(StrEnum):
    """In which way a definition may deceive."""

    HIDDEN = "hidden characters"
    LONG = "too long to be read"
    NAME = "an odd name"
    LOOKALIKE = "looks like another"
    SHADOW = "shares its name"
    MENTION = "speaks of another"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should look at before the tool is used."""

    look: Look
    where: str
    what: str


def is_hidden(character: str) -> bool:
    """Whether a character, by itself, is read by machines and not seen by people."""
    if character in _PLAIN_CONTROLS:
        return False
    category = unicodedata.category(character)
    if category == "Cn":
        # New emoji are not in everybody's tables yet; other gaps of Unicode are nobody's letters.
        return not 0x1F000 <= ord(character) <= 0x1FBFF
    code = ord(character)
    selects = 0xFE00 <= code <= 0xFE0F or 0xE0000 <= code <= 0xE0FFF
    return category in _HIDING or selects or character in _INVISIBLE


def hidden_in(text: str) -> str:
    """The hidden characters of a text, without those that its emoji and its script need."""
    if text.isascii() and text.isprintable():
        return ""
    if _SURELY_PLAIN.fullmatch(text):
        return ""
    rest = _JOINERS.sub("", _SEQUENCES.sub("", text))
    return "".join(each for each in rest if is_hidden(each))


def revealed(text: str) -> str:
    """A text with everything in it that is hidden spelt out."""
    if not hidden_in(text):
        return text
    spelt = (_spelt(each) if is_hidden(each) else each for each in text)
    return "".join(spelt)


def finding_of_name(name: str) -> Finding | None:
    """Why a name, taken by itself, deceives or cannot be spoken of; None for an honest one."""
    because = ""
    if hidden_in(name) or name != name.strip() or any(each in name for each in "\n\r\t"):
        because = f"it holds what nobody sees: {revealed(name)!r:.100}"
    elif len(name) > LONGEST_NAME:
        because = f"{len(name)} characters"
    elif "*" in name or ".." in name:
        because = "it would be a pattern, or a path, where names are written"
    elif name.casefold().startswith(_RESERVED):
        because = f"names that begin with {_RESERVED!r} are the gateway's own"
    elif unicodedata.normalize("NFKC", name) != unicodedata.normalize("NFC", name):
        because = "some of its letters are other characters dressed up as letters"
    elif len(_alphabets(name)) > 1:
        because = f"it mixes letters of {' and '.join(sorted(_alphabets(name)))}"
    return Finding(Look.NAME, "/name", because) if because else None


def findings_in(definition: Mapping[str, object]) -> tuple[Finding, ...]:
    """What a definition hides, anywhere in it: keys, descriptions, defaults, examples."""
    found: list[Finding] = []
    for where, text in _texts("", definition):
        found += _found_in(where, text)
        if len(found) >= MOST_FINDINGS:
            break
    return tuple(found[:MOST_FINDINGS])


def _found_in(where: str, text: str) -> Iterator[Finding]:
    hidden = hidden_in(text)
    if hidden:
        some = " ".join(dict.fromkeys(_spelt(each) for each in hidden))
        yield Finding(Look.HIDDEN, where, f"{len(hidden)} of them: {some:.100}")
    if len(text) > LONGEST_TEXT:
        yield Finding(Look.LONG, where, f"{len(text)} characters, more than {LONGEST_TEXT}")
    elif len(text) > LONGEST_GAP and _GAP.search(text):
        yield Finding(Look.HIDDEN, where, f"a gap of {LONGEST_GAP} or more blanks before the rest")


def _alphabets(name: str) -> set[str]:
    """Of the alphabets whose letters look alike, those that are used."""
    first = (unicodedata.name(each, "").partition(" ")[0] for each in name if each.isalpha())
    return {alphabet for alphabet in first if alphabet in _CONFUSABLE_ALPHABETS}


def _spelt(character: str) -> str:
    return f"\\u{{{ord(character):x}}}"


def _texts(pointer: str, value: object) -> Iterator[tuple[str, str]]:
    """Every text of a document with the pointer to it; a key is a text too."""
    if isinstance(value, str):
        yield pointer, value
    elif isinstance(value, dict):
        for key, each in cast("dict[str, object]", value).items():
            escaped = revealed(key).replace("~", "~0").replace("/", "~1")
            yield f"{pointer}/{escaped}", key
            yield from _texts(f"{pointer}/{escaped}", each)
    elif isinstance(value, list):
        for number, each in enumerate(cast("list[object]", value)):
            yield from _texts(f"{pointer}/{number}", each)
