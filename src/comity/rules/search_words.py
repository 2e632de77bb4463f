"""The words of a text as they are searched by, and what each of them weighs in a tool. (BM25F)

Rule 1: a name is its words: `readFile`, `read_file` and `read-file` are the same two.
Rule 2: a word weighs by the field in which it stands, and less in a long field. What a field's
        length is held against is fixed, so that a tool weighs the same whoever else there is.
Rule 3: a server's text is testimony and may be stuffed: no more than so much of it is read, and a
        word that is repeated counts no more than a few times.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final

from comity.rules.stems import stem

MOST_TERMS: Final = 256
"""Different words that are kept of one tool."""

LONGEST_WORD: Final = 40
MOST_REPEATED: Final = 3
"""A word counts no more often than this in one field."""

SATURATION: Final = 1.2
"""BM25's k1: how soon more of the same word adds nothing."""

MOST_REMEMBERED: Final = 65_536
SCALE: Final = 16_384
"""Impacts are whole numbers, the same on every machine: so much is 1."""

_PARTS: Final = re.compile(
    r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+|[^\W\dA-Za-z_]+", re.UNICODE
)
_UNSPACED: Final = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_COMMONEST: Final = (
    "a an and are as at be by can do does for from had has have i if in into is it its me my of "
    "on or our out so such than that the their them then there these they this to was we were "
    "what when where which who will with would you your"
)
_EMPTY: Final = frozenset(_COMMONEST.split())


class Field(Enum):
    """Where a word stands: its weight, the usual length there, and how far length counts."""

    NAME = (3.0, 3.0, 0.4, 200)
    TITLE = (1.0, 3.0, 0.5, 200)
    DESCRIPTION = (1.5, 20.0, 0.6, 2_000)
    KEYWORDS = (1.0, 5.0, 0.5, 800)
    PARAMETERS = (0.5, 6.0, 0.5, 2_000)
    PARAMETER_TEXTS = (0.3, 40.0, 0.6, 4_000)
    SERVER_TITLE = (1.0, 3.0, 0.4, 200)
    SERVER_TEXT = (0.3, 20.0, 0.6, 1_000)

    def __init__(self, weight: float, usual: float, slope: float, most: int) -> None:
        self.weight = weight
        self.usual = usual
        self.slope = slope
        # So many letters of it are read.
        self.most = most


def words(text: str) -> list[str]:
    """The words of a text, as stems, in order; the commonest of English are left out."""
    if not text.isascii():
        text = _without_marks(text)
    found: list[str] = []
    for part in _PARTS.findall(text):
        word = _word(part)
        if word:
            found.append(word)
        elif word is None:
            found.extend(_pairs(part.casefold()))
    return found


@lru_cache(maxsize=MOST_REMEMBERED)
def _word(part: str) -> str | None:
    """The stem of a part of a text; empty for the commonest, None where it has no spaces."""
    word = part.casefold()
    if not word.isascii() and _UNSPACED.search(word):
        return None
    return "" if word in _EMPTY else stem(word[:LONGEST_WORD])


def apart(name: str) -> str:
    """A name with its words set apart, as people write them: `readFile` is `read file`."""
    return " ".join(_PARTS.findall(name)).casefold()


def impacts(fields: Iterable[tuple[Field, str]]) -> dict[str, int]:
    """What each word of a tool weighs in it, by all the fields in which it stands."""
    weights: dict[str, float] = {}
    for field, text in fields:
        counts: dict[str, int] = {}
        said = words(text[: field.most])
        for word in said:
            counts[word] = counts.get(word, 0) + 1
        # A long field says less with each of its words.
        length = 1 - field.slope + field.slope * len(said) / field.usual
        for word, count in counts.items():
            weight = field.weight * min(count, MOST_REPEATED) / length
            weights[word] = weights.get(word, 0.0) + weight
    if len(weights) > MOST_TERMS:
        weights = dict(sorted(weights.items(), key=_heaviest)[:MOST_TERMS])
    return {word: saturated(weight) for word, weight in weights.items()}


def saturated(weight: float) -> int:
    """What a word of that weight adds to a score; never more than the most of an impact."""
    return max(1, round(SCALE * weight * (SATURATION + 1) / (SATURATION + weight)))


MOST_IMPACT: Final = round(SCALE * (SATURATION + 1))


def one_word(text: str) -> str:
    """A name without what only sets its words apart, to tell whether two are the same."""
    text = text if text.isascii() else _without_marks(text)
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _heaviest(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]


def _without_marks(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    if not plain.isascii():
        plain = "".join(each for each in plain if not unicodedata.combining(each))
        # Hangul falls into its letters above, and is put together again.
        plain = unicodedata.normalize("NFC", plain)
    return plain


def _pairs(run: str) -> Iterable[str]:
    """A script without spaces is searched by every two signs that stand together."""
    return (run[at : at + 2] for at in range(max(1, len(run) - 1)))


type Impacts = Mapping[str, int]
