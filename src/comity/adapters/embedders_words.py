"""Texts as the numbers that MiniLM reads: BERT's WordPiece, without case and accents.

Written here, in place of a package: the usual one brings a client of a model hub with it. The
tests hold both beside each other.
"""

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from comity.wire.errors import Misconfigured

_UNKNOWN, _BEGIN, _END = "[UNK]", "[CLS]", "[SEP]"
# A word that is longer is no word, and splitting it would take the square of its length.
_LONGEST_WORD: Final = 100
# What has no number yet is kept: a newer Unicode than ours may know it.
_CONTROLS: Final = ("Cc", "Cf", "Co", "Cs")
# Scripts that write no spaces: each sign is a word.
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPieces:
    """A vocabulary, and the numbers of its pieces in a text."""

    def __init__(self, vocabulary: str, most: int) -> None:
        self._numbers = {piece: at for at, piece in enumerate(vocabulary.splitlines())}
        try:
            self._unknown, self._begin, self._end = (
                self._numbers[each] for each in (_UNKNOWN, _BEGIN, _END)
            )
        except KeyError as missing:
            raise Misconfigured(f"the vocabulary has no {missing}") from None
        self._most = most - 2
        self._of_word = lru_cache(maxsize=50_000)(self._pieces)

    def __call__(self, text: str) -> list[int]:
        """At most as many as the model reads; what is beyond is not looked at."""
        found: list[int] = []
        for word in _words(text):
            # What is long is not remembered, so that strangers' texts fill no memory.
            found += (self._unknown,) if len(word) > _LONGEST_WORD else self._of_word(word)
            if len(found) >= self._most:
                break
        return [self._begin, *found[: self._most], self._end]

    def _pieces(self, word: str) -> tuple[int, ...]:
        """The longest piece that fits, again and again."""
        found: list[int] = []
        start = 0
        while start < len(word):
            end = len(word)
            number = None
            while start < end:
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    break
                end -= 1
            if number is None:
                return (self._unknown,)
            found.append(number)
            start = end
        return tuple(found)


def _words(text: str) -> Iterator[str]:
    """One after the other, so that a long text costs no more than is read of it."""
    for chunk in _cleaned(text).split():
        if chunk.isalnum() and chunk.isascii():
            yield chunk.lower()
        else:
            yield from _split(_plain(chunk))


def _cleaned(text: str) -> str:
    return text if text.isprintable() and text.isascii() else "".join(map(_clean, text))


@lru_cache(maxsize=10_000)
def _clean(sign: str) -> str:
    if sign in "\t\n\r" or unicodedata.category(sign) == "Zs":
        return " "
    if sign in "\0\ufffd" or unicodedata.category(sign) in _CONTROLS:
        return ""
    return f" {sign} " if any(low <= ord(sign) <= high for low, high in _IDEOGRAPHS) else sign


def _plain(chunk: str) -> str:
    """Without accents and case."""
    if not chunk.isascii():
        apart = unicodedata.normalize("NFD", chunk)
        chunk = "".join(sign for sign in apart if unicodedata.category(sign) != "Mn")
    return chunk.lower()


def _split(chunk: str) -> Iterator[str]:
    """Each mark of punctuation is a word by itself."""
    start = 0
    for at, sign in enumerate(chunk):
        if _is_mark(sign):
            if start < at:
                yield chunk[start:at]
            yield sign
            start = at + 1
    if start < len(chunk):
        yield chunk[start:]


@lru_cache(maxsize=10_000)
def _is_mark(sign: str) -> bool:
    if sign.isascii():
        return sign.isprintable() and not sign.isalnum() and sign != " "
    return unicodedata.category(sign).startswith("P")
