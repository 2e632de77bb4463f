"""What goes into the journal, an ask or a log, without the secrets that came with it.

Rule 1: a value that the gateway knows to be a secret is never written, however it is spelled.
Rule 2: nor is what stands under a secret's name, nor what looks like a secret.
Rule 3: equal secrets leave equal marks, by an HMAC, so that two uses of one can be connected by
        whoever has both marks, and by nobody to the secret itself.
Rule 4: what is written is bounded in depth, length and number, and safe for databases and
        terminals; looking through it takes time in proportion to what is written, not to what came.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, cast

import msgspec

from comity.rules.known_secrets import hint, pattern, spellings
from comity.rules.safe_text import safe
from comity.rules.secret_forms import bare, hide_forms, is_hidden
from comity.rules.secret_names import is_secret_name

LONGEST_TEXT: Final = 2000
LONGEST_NAME: Final = 200
DEEPEST: Final = 16
MOST_MEMBERS: Final = 100
MOST_IN_ALL: Final = 1000
MOST_CHARACTERS: Final = 32_000
_MARGIN: Final = 4096
_MARK_DIGITS: Final = 8
_LONGEST_REMEMBERED: Final = 40
_MOST_REMEMBERED: Final = 4096
_NAMING: Final = ("name", "key", "header", "field")


class Redactor:
    """Knows this gateway's secrets. `key` is for the marks, and as secret as they are."""

    def __init__(self, known: Iterable[str] = (), key: bytes = b"") -> None:
        self._key = key
        self._spellings = spellings(known)
        self._pattern = pattern(self._spellings)
        # As far as a text is looked through: a secret that begins in what is kept ends in it.
        self._margin = max(_MARGIN, *map(len, self._spellings), 0)
        self._hint = hint(self._spellings)
        self._plain_names: set[str] = set()
        self._numbers = frozenset(each for each in self._spellings if each.isdigit())

    def __repr__(self) -> str:
        return f"Redactor({len(self._spellings)} spellings)"

    def redact(self, value: object) -> object:
        """The value as JSON has it, with nothing in it that is nobody's to read."""
        return _Walk(self).of(value, 0, is_secret=False)

    def words(self, text: str, longest: int = LONGEST_TEXT) -> str:
        """A text for people, without secrets; what is too long is cut, and told how much it was."""
        size = len(text)
        looked = text if size <= longest else text[: longest + self._margin]
        looked = hide_forms(self._without_known(looked), self.mark)
        if len(looked) > longest or size > longest + self._margin:
            kept = _whole_marks(looked[:longest])
            looked = f"{kept}… [{size - longest:,} more characters: {self._digest(text)}]"
        return safe(looked)

    def hide(self, text: str) -> str:
        """A text of any length without secrets, and otherwise as it is."""
        return hide_forms(self._without_known(text), self.mark)

    def name(self, name: str) -> str:
        """A member's name; those that hold no secret are remembered, as most come again."""
        if name in self._plain_names:
            return name
        said = self.words(name, LONGEST_NAME)
        if said == name and len(name) <= _LONGEST_REMEMBERED:
            if len(self._plain_names) >= _MOST_REMEMBERED:
                self._plain_names.clear()
            self._plain_names.add(name)
        return said

    def _without_known(self, text: str) -> str:
        if self._hint is None or self._pattern is None or self._hint.search(text) is None:
            return text
        return self._pattern.sub(lambda found: self.mark(self._spellings[found[0]]), text)

    def mark(self, secret: str) -> str:
        """What stands in the place of a secret."""
        return f"[secret:{self._digest(secret)}]"

    def is_known(self, number: float) -> bool:
        return bool(self._numbers) and repr(number) in self._numbers

    def _digest(self, text: str) -> str:
        data = text.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, data, hashlib.sha256)[: _MARK_DIGITS // 2].hex()


class _Walk:
    """One value being gone through, and how much of it may still be kept."""

    __slots__ = ("_characters", "_left", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left = MOST_IN_ALL
        self._characters = MOST_CHARACTERS

    def of(self, value: object, depth: int, *, is_secret: bool) -> object:
        kind = type(value)
        if kind is str:
            return self._text(cast("str", value), is_secret=is_secret)
        if value is None or kind is bool:
            return value
        if kind is int or kind is float:
            number = cast("float", value)
            is_hidden = is_secret or self._redactor.is_known(number)
            return self._redactor.mark(repr(number)) if is_hidden else number
        if kind is dict and depth < DEEPEST:  # asked first, as it is by far the quickest question
            return self._members(cast("dict[object, object]", value), depth, is_secret=is_secret)
        return self._other(value, depth, is_secret=is_secret)

    def _other(self, value: object, depth: int, *, is_secret: bool) -> object:
        if isinstance(value, str | int | float):
            plain = str(value) if isinstance(value, str) else int(value)
            return self.of(plain, depth, is_secret=is_secret)
        if isinstance(value, datetime):
            return value
        if depth >= DEEPEST:
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
        return self.of(decoded, depth, is_secret=is_secret)

    def _text(self, text: str, *, is_secret: bool) -> str:
        if is_secret and text and not is_hidden(text):
            return self._redactor.mark(bare(text))
        size = len(text)
        if size > self._characters or size > LONGEST_TEXT:
            longest = min(LONGEST_TEXT, max(self._characters, 0))
            self._characters -= longest
            return self._redactor.words(text, longest)
        self._characters -= size
        return self._redactor.words(text)

    def _take(self, there: int) -> int:
        """How many of the members that there are can be kept."""
        most = min(there, MOST_MEMBERS, self._left)
        self._left -= most
        return most

    def _members(
        self, members: Mapping[object, object], depth: int, *, is_secret: bool
    ) -> dict[str, object]:
        kept: dict[str, object] = {}
        most = self._take(len(members))
        named = _named_value(members) if "value" in members else ""
        for name, value in islice(members.items(), most):
            said = name if type(name) is str else str(name)
            hidden = is_secret or is_secret_name(said) or said == named
            kept[self._redactor.name(said)] = self.of(value, depth + 1, is_secret=hidden)
        if len(members) > most:
            kept["…"] = f"[{len(members) - most:,} more]"
        return kept

    def _items(self, items: Sequence[object], depth: int, *, is_secret: bool) -> list[object]:
        most = self._take(len(items))
        kept: list[object] = []
        follows = False
        for item in islice(items, most):
            kept.append(self.of(item, depth + 1, is_secret=is_secret or follows))
            # As programs are started: `--password`, and then what it is.
            is_option = type(item) is str and item.startswith("-") and "=" not in item
            follows = is_option and is_secret_name(cast("str", item))
        if len(items) > most:
            kept.append(f"[{len(items) - most:,} more]")
        return kept


def _named_value(members: Mapping[object, object]) -> str:
    """Where one member is the name of another: `{"name": "Authorization", "value": "..."}`."""
    names = (members.get(naming) for naming in _NAMING)
    is_one = any(isinstance(said, str) and is_secret_name(said) for said in names)
    return "value" if is_one else ""


def _whole_marks(text: str) -> str:
    """Without a mark that was cut in two."""
    begins = text.rfind("[secret:", -20)
    return text[:begins] if begins >= 0 and "]" not in text[begins:] else text
