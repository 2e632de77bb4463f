"""What a server answers, before everybody in a topic reads it: without secrets. (D-101)

Rule 1: it is the same value where it holds no secret; nothing is cut, whatever its length.
Rule 2: what stands under a secret's name is hidden as well, but not in a list of what there is to
        call: there a name says what an argument is for, and what stands under it is a description.
"""

from collections.abc import Callable
from typing import cast

from comity.rules.secret_names import is_secret_name

type Hide = Callable[[str], str]
"""A text without its secrets."""

type Mark = Callable[[str], str]
"""What stands in the place of one that is known by its name."""


class Moderation:
    """Goes through one value; `was_needed` says whether anything was hidden."""

    def __init__(self, hide: Hide, mark: Mark, *, minds_names: bool) -> None:
        self._hide = hide
        self._mark = mark
        self._minds_names = minds_names
        self.was_needed = False

    def of(self, value: object) -> object:
        return self._of(value, is_secret=False)

    def _of(self, value: object, *, is_secret: bool) -> object:
        if isinstance(value, str):
            return self._text(value, is_secret=is_secret)
        if isinstance(value, dict):
            return self._members(cast("dict[str, object]", value), is_secret=is_secret)
        if isinstance(value, list):
            items = cast("list[object]", value)
            return [self._of(item, is_secret=is_secret) for item in items]
        if is_secret and value is not None and not isinstance(value, bool):
            return self._text(repr(value), is_secret=True)
        return value

    def _members(self, members: dict[str, object], *, is_secret: bool) -> dict[str, object]:
        return {
            self._text(name, is_secret=False): self._of(
                value, is_secret=is_secret or (self._minds_names and is_secret_name(name))
            )
            for name, value in members.items()
        }

    def _text(self, text: str, *, is_secret: bool) -> str:
        said = self._mark(text) if is_secret and text else self._hide(text)
        self.was_needed = self.was_needed or said != text
        return said
