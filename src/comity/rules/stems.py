"""English words cut down to what their forms have in common. (the Snowball project's Porter 2)

Words of other languages pass through it: what it cuts from them, it cuts from a query as well.
"""

import re
from collections.abc import Callable
from typing import Final

_VOWELS: Final = "aeiouy"
_R1: Final = re.compile(r"^(?:gener|commun|arsen)|^.*?[aeiouy][^aeiouy]")
_REGION: Final = re.compile(r".*?[aeiouy][^aeiouy]")
_SHORT_END: Final = re.compile(r"(?:[^aeiouy][aeiouy][^aeiouywxY]|^[aeiouy][^aeiouy])$")
_HAS_VOWEL: Final = re.compile(r"[aeiouy]")
_DOUBLE: Final = re.compile(r"(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)$")

_AS_THEY_ARE: Final = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "only": "onli",
    "singly": "singl",
    "sky": "sky",
    "news": "news",
    "atlas": "atlas",
    "bias": "bias",
    "proceed": "proceed",
    "exceed": "exceed",
    "succeed": "succeed",
}
_STEP_2: Final = (
    ("ization", "ize"),
    ("ational", "ate"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("iveness", "ive"),
    ("tional", "tion"),
    ("biliti", "ble"),
    ("lessli", "less"),
    ("entli", "ent"),
    ("ation", "ate"),
    ("alism", "al"),
    ("aliti", "al"),
    ("ousli", "ous"),
    ("iviti", "ive"),
    ("fulli", "ful"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("abli", "able"),
    ("izer", "ize"),
    ("ator", "ate"),
    ("alli", "al"),
    ("bli", "ble"),
)
_STEP_3: Final = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("alize", "al"),
    ("icate", "ic"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ness", ""),
    ("ful", ""),
)
_STEP_4: Final = (
    *("ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti"),
    *("ous", "ive", "ize", "al", "er", "ic"),
)


def stem(word: str) -> str:
    """The stem of a word in small letters."""
    if len(word) <= 2 or not word.isascii():
        return word
    if word in _AS_THEY_ARE:
        return _AS_THEY_ARE[word]
    marked = _with_consonant_y(word)
    found = _R1.match(marked)
    first = found.end() if found else len(marked)
    further = _REGION.match(marked, first)
    second = further.end() if further else len(marked)
    for step in _STEPS:
        marked = step(marked, first, second)
    return marked.replace("Y", "y")


def _with_consonant_y(word: str) -> str:
    if "y" not in word:
        return word
    letters = list(word)
    for at, letter in enumerate(letters):
        if letter == "y" and (at == 0 or letters[at - 1] in _VOWELS):
            letters[at] = "Y"
    return "".join(letters)


def _plural(word: str, first: int, second: int) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _HAS_VOWEL.search(word[:-2]):
        return word[:-1]
    return word


def _past(word: str, first: int, second: int) -> str:
    for end in ("eedly", "eed"):
        if word.endswith(end):
            return word[: -len(end)] + "ee" if len(word) - len(end) >= first else word
    for end in ("ingly", "edly", "ing", "ed"):
        if word.endswith(end):
            kept = word[: -len(end)]
            return _mended(kept, first) if _HAS_VOWEL.search(kept) else word
    return word


def _mended(kept: str, first: int) -> str:
    if kept.endswith(("at", "bl", "iz")):
        return kept + "e"
    if _DOUBLE.search(kept):
        return kept[:-1]
    is_short = first >= len(kept) and _SHORT_END.search(kept) is not None
    return kept + "e" if is_short else kept


def _final_y(word: str, first: int, second: int) -> str:
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
        return word[:-1] + "i"
    return word


def _long_ends(word: str, first: int, second: int) -> str:
    for end, instead in _STEP_2:
        if word.endswith(end):
            return word[: -len(end)] + instead if len(word) - len(end) >= first else word
    if word.endswith("logi") and len(word) - 3 >= first:
        return word[:-1]
    if word.endswith("li") and len(word) - 2 >= first and word[-3:-2] in tuple("cdeghkmnrt"):
        return word[:-2]
    return word


def _middle_ends(word: str, first: int, second: int) -> str:
    for end, instead in _STEP_3:
        if word.endswith(end):
            return word[: -len(end)] + instead if len(word) - len(end) >= first else word
    if word.endswith("ative") and len(word) - 5 >= second:
        return word[:-5]
    return word


def _short_ends(word: str, first: int, second: int) -> str:
    for end in _STEP_4:
        if word.endswith(end):
            return word[: -len(end)] if len(word) - len(end) >= second else word
    if word.endswith(("sion", "tion")) and len(word) - 3 >= second:
        return word[:-3]
    return word


def _last_letter(word: str, first: int, second: int) -> str:
    if word.endswith("e"):
        at = len(word) - 1
        is_loose = at >= first and not _SHORT_END.search(word[:-1])
        return word[:-1] if at >= second or is_loose else word
    return word[:-1] if word.endswith("ll") and len(word) - 1 >= second else word


_STEPS: Final[tuple[Callable[[str, int, int], str], ...]] = (
    *(_plural, _past, _final_y, _long_ends, _middle_ends, _short_ends, _last_letter),
)
