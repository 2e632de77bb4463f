"""Counts with their nouns, and the beginnings of sentences."""

from typing import Final

_MARKS_OF_A_NAME: Final = (":", "/", "_", "@")


def count_noun(count: float, noun: str, plural: str = "") -> str:
    """A count with its noun, as `1 tool` and `1,200 tools`; the plural ends in s unless given."""
    written = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{written} {noun if count == 1 else plural or f'{noun}s'}"


def start_sentence(words: str) -> str:
    """Words with a capital at their beginning, unless they begin with an id or a name."""
    first = words.partition(" ")[0].rstrip(".,:;")
    if any(mark in first for mark in _MARKS_OF_A_NAME):
        return words
    return f"{words[:1].upper()}{words[1:]}"
