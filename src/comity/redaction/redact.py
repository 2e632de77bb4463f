"""Removes secrets from values, texts and topic messages; the audit log and the log use it."""

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final, cast

import msgspec

from comity.redaction.secrets import (
    compile_hint,
    compile_pattern,
    hide_forms,
    hint_letters,
    is_hidden,
    is_plain,
    is_secret_name,
    spellings_of,
    strip_scheme,
)
from comity.toolkit.text import escape_unsafe

MAX_TEXT_LENGTH: Final = 2000
MAX_NAME_LENGTH: Final = 200
MAX_DEPTH: Final = 16
MAX_MEMBERS: Final = 100
MAX_IN_ALL: Final = 1000
MOST_CHARACTERS: Final = 32_000
_MARGIN: Final = 4096
_MARK_DIGITS: Final = 8
_MAX_REMEMBERED_LENGTH: Final = 40
_MAX_FEW: Final = 16
_MAX_REMEMBERED: Final = 4096
_NUMBERS: Final = (int, float)
_SUSPICIOUS: Final = object()
_NAMING: Final = ("name", "key", "header", "field")


class Redactor:
    """Removes secrets, including the known secrets of this gateway.

    `key` keys the digests in the marks. It is as sensitive as the secrets themselves.
    """

    def __init__(self, known: Iterable[str] = (), key: bytes = b"") -> None:
        self._key = key
        self._plain_names: set[str] = set()
        self._spellings: dict[str, str] = {}
        self.add_known(known)

    def add_known(self, known: Iterable[str]) -> None:
        """Remove these secrets too, from now on. Another thread may redact meanwhile."""
        self._spellings = {**self._spellings, **spellings_of(known)}
        # A cut text is searched this much further, so that a secret that begins in the kept part is
        # found whole.
        self._margin = max(_MARGIN, *map(len, self._spellings), 0)
        self._pattern = compile_pattern(self._spellings)
        self._hint = compile_hint(self._spellings)
        self._hint_letters = hint_letters(self._spellings)
        self._numbers = frozenset(each for each in self._spellings if each.isdigit())
        self._plain_names.clear()

    def __repr__(self) -> str:
        return f"Redactor({len(self._spellings)} spellings)"

    def redact(self, value: object) -> object:
        """Return the value as plain JSON types, without secrets and within the size limits."""
        members: Any = value  # a cast would cost every call a call
        if members.__class__ is dict and len(members) <= _MAX_FEW and "value" not in members:
            # A few members, the usual arguments of a call, most often cannot hold a secret.
            kept = members
            for name, held in members.items():
                found = self._harmless(held) if name in self._plain_names else _SUSPICIOUS
                if found is _SUSPICIOUS:
                    break
                if found is not held:
                    kept = {**kept, name: found}
            else:
                return kept
        return _ValueWalker(self).redact(value, 0, is_secret=False)

    def _harmless(self, value: object) -> object:
        """Return a value as it is kept, or `_SUSPICIOUS` if it may hold a secret."""
        if type(value) is str:
            looked = value[: MAX_TEXT_LENGTH + self._margin]
            if not is_plain(looked) or self._may_hold_known(looked):
                return _SUSPICIOUS
            # A mark of a secret has a colon, so a plain text has none that the cut might split.
            is_long = len(value) > MAX_TEXT_LENGTH
            return self._cut(value, value[:MAX_TEXT_LENGTH]) if is_long else value
        if type(value) in _NUMBERS:
            return _SUSPICIOUS if self._numbers else value
        return value if value is None or type(value) is bool else _SUSPICIOUS

    def redact_text(self, text: str, longest: int = MAX_TEXT_LENGTH) -> str:
        """Return a text for people without secrets; a long text is cut and states its length."""
        size = len(text)
        looked = text if size <= longest else text[: longest + self._margin]
        looked = hide_forms(self._remove_known(looked), self.mark)
        if len(looked) > longest or size > longest + self._margin:
            looked = self._cut(text, _whole_marks(looked[:longest]), longest)
        return escape_unsafe(looked)

    def _cut(self, text: str, kept: str, longest: int = MAX_TEXT_LENGTH) -> str:
        return f"{kept}… [{len(text) - longest:,} more characters: {self._digest(text)}]"

    def hide(self, text: str) -> str:
        """Return a text of any length without secrets, and otherwise unchanged."""
        return hide_forms(self._remove_known(text), self.mark)

    def name(self, name: str) -> str:
        """Return a member's name without secrets.

        Names without secrets are cached, as most recur, but not those of secrets.
        """
        if name in self._plain_names:
            return name
        said = self.redact_text(name, MAX_NAME_LENGTH)
        if said == name and len(name) <= _MAX_REMEMBERED_LENGTH and not is_secret_name(name):
            if len(self._plain_names) >= _MAX_REMEMBERED:
                self._plain_names.clear()
            self._plain_names.add(name)
        return said

    def _may_hold_known(self, text: str) -> bool:
        for letter in self._hint_letters:
            if letter in text:
                return self._hint is not None and self._hint.search(text) is not None
        return False

    def _remove_known(self, text: str) -> str:
        if self._pattern is None or not self._may_hold_known(text):
            return text
        return self._pattern.sub(lambda found: self.mark(self._spellings[found[0]]), text)

    def mark(self, secret: str) -> str:
        """Return the mark that replaces a secret; equal secrets have equal marks."""
        return f"[secret:{self._digest(secret)}]"

    def is_known(self, number: float) -> bool:
        return bool(self._numbers) and repr(number) in self._numbers

    def _digest(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, data, hashlib.sha256)[: _MARK_DIGITS // 2].hex()


class _ValueWalker:
    """Walks through one value and counts how much of it may still be kept."""

    __slots__ = ("_characters", "_left", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left = MAX_IN_ALL
        self._characters = MOST_CHARACTERS

    def redact(self, value: object, depth: int, *, is_secret: bool) -> object:
        kind = type(value)
        if kind is str:
            return self._text(cast("str", value), is_secret=is_secret)
        if value is None or kind is bool:
            return value
        if kind is int or kind is float:
            number = cast("float", value)
            is_hidden = is_secret or self._redactor.is_known(number)
            return self._redactor.mark(repr(number)) if is_hidden else number
        if kind is dict and depth < MAX_DEPTH:  # checked first: by far the fastest test
            return self._members(cast("dict[object, object]", value), depth, is_secret=is_secret)
        return self._other(value, depth, is_secret=is_secret)

    def _other(self, value: object, depth: int, *, is_secret: bool) -> object:
        if isinstance(value, str | int | float):
            plain = str(value) if isinstance(value, str) else int(value)
            return self.redact(plain, depth, is_secret=is_secret)
        if isinstance(value, datetime):
            return value
        if depth >= MAX_DEPTH:
            return "[nested too deep]"
        return self._nested(value, depth, is_secret=is_secret)

    def _nested(self, value: object, depth: int, *, is_secret: bool) -> object:
        if isinstance(value, Mapping):
            members = cast("Mapping[object, object]", value)
            return self._members(members, depth, is_secret=is_secret)
        if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
            items = list(cast("Iterable[object]", value))
            return self._items(items, depth, is_secret=is_secret)
        if isinstance(value, msgspec.Raw):
            return self._raw(value, depth, is_secret=is_secret)
        return f"[{type(value).__name__}]"

    def _raw(self, value: msgspec.Raw, depth: int, *, is_secret: bool) -> object:
        try:
            decoded = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return "[no JSON]"
        return self.redact(decoded, depth, is_secret=is_secret)

    def _text(self, text: str, *, is_secret: bool) -> str:
        if is_secret and text and not is_hidden(text):
            return self._redactor.mark(strip_scheme(text))
        size = len(text)
        if size > self._characters or size > MAX_TEXT_LENGTH:
            longest = min(MAX_TEXT_LENGTH, max(self._characters, 0))
            self._characters -= longest
            return self._redactor.redact_text(text, longest)
        self._characters -= size
        return self._redactor.redact_text(text)

    def _reserve(self, there: int) -> int:
        """Return how many of `there` members can be kept, and deduct them from the limit."""
        most = min(there, MAX_MEMBERS, self._left)
        self._left -= most
        return most

    def _members(
        self, members: Mapping[object, object], depth: int, *, is_secret: bool
    ) -> dict[str, object]:
        kept: dict[str, object] = {}
        most = self._reserve(len(members))
        named = _named_value(members) if "value" in members else ""
        for name, value in islice(members.items(), most):
            said = name if type(name) is str else str(name)
            hidden = is_secret or is_secret_name(said) or said == named
            kept[self._redactor.name(said)] = self.redact(value, depth + 1, is_secret=hidden)
        if len(members) > most:
            kept["…"] = f"[{len(members) - most:,} more]"
        return kept

    def _items(self, items: Sequence[object], depth: int, *, is_secret: bool) -> list[object]:
        most = self._reserve(len(items))
        kept: list[object] = []
        follows = False
        for item in islice(items, most):
            kept.append(self.redact(item, depth + 1, is_secret=is_secret or follows))
            # As on a command line: `--password`, and then its value.
            is_option = type(item) is str and item.startswith("-") and "=" not in item
            follows = is_option and is_secret_name(cast("str", item))
        if len(items) > most:
            kept.append(f"[{len(items) - most:,} more]")
        return kept


def _named_value(members: Mapping[object, object]) -> str:
    """Return "value" if another member names it as secret, else "".

    An example is `{"name": "Authorization", "value": "..."}`.
    """
    names = (members.get(naming) for naming in _NAMING)
    is_one = any(isinstance(said, str) and is_secret_name(said) for said in names)
    return "value" if is_one else ""


def _whole_marks(text: str) -> str:
    """Return the text without a mark that the cut split in two."""
    begins = text.rfind("[secret:", -20)
    return text[:begins] if begins >= 0 and "]" not in text[begins:] else text


type Hide = Callable[[str], str]
"""Returns a text without its secrets."""

type Mark = Callable[[str], str]
"""Returns the mark for a secret that is known by its name."""


class TopicRedactor:
    """Removes secrets from one topic message; `was_needed` tells whether it found any."""

    def __init__(self, hide: Hide, mark: Mark, *, minds_names: bool) -> None:
        self._hide = hide
        self._mark = mark
        self._minds_names = minds_names
        self.was_needed = False

    def redact(self, value: object) -> object:
        return self._redact(value, is_secret=False)

    def _redact(self, value: object, *, is_secret: bool) -> object:
        if isinstance(value, str):
            return self._text(value, is_secret=is_secret)
        if isinstance(value, dict):
            return self._members(cast("dict[str, object]", value), is_secret=is_secret)
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [self._redact(item, is_secret=is_secret) for item in items]
        if is_secret and value is not None and not isinstance(value, bool):
            return self._text(repr(value), is_secret=True)
        return value

    def _members(self, members: dict[str, object], *, is_secret: bool) -> dict[str, object]:
        return {
            self._text(name, is_secret=False): self._redact(
                value, is_secret=is_secret or (self._minds_names and is_secret_name(name))
            )
            for name, value in members.items()
        }

    def _text(self, text: str, *, is_secret: bool) -> str:
        said = self._mark(text) if is_secret and text else self._hide(text)
        self.was_needed = self.was_needed or said != text
        return said
