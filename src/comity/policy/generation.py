"""The number that voids cached decisions, and what each change of it concerns."""

from collections.abc import Iterable
from typing import Final

MAX_SUBJECTS: Final = 10_000
"""The most subjects whose last change is remembered. One more voids everything instead."""


class PolicyGeneration:
    """A number that grows with every change of what decides about calls.

    A cache of decisions keeps the number with each decision. While the number is the same, nothing
    has changed, which costs a call one comparison. Once it has grown, the decision is made again,
    unless `is_unchanged_since` says that none of the subjects behind it has changed.

    Grants, guardrails, keys, principals, definitions, permissions, policies, limits and feature
    sets all advance the same number. A source that does not name the subjects of its change voids
    every decision, so a new source is safe before it is precise.
    """

    __slots__ = ("_all_changed_at", "_changed_at", "number")

    def __init__(self) -> None:
        self.number = 0
        # The numbers of the last change of everything, and of each subject that changed after it.
        self._all_changed_at = 0
        self._changed_at: dict[str, int] = {}

    def advance(self, *_: object) -> None:
        """Void what was decided before. It takes any arguments, so that it can be a watcher."""
        self.number += 1
        self._all_changed_at = self.number
        # Whatever is older than the change of everything is void by that alone.
        self._changed_at = {}

    def advance_for(self, subjects: Iterable[str]) -> None:
        """Void what was decided before and depends on one of these subjects of grants.

        A change of a server or of its tools is one of that server's subject.
        """
        self.number += 1
        self._changed_at.update(dict.fromkeys(subjects, self.number))
        if len(self._changed_at) > MAX_SUBJECTS:
            self.advance()

    def is_unchanged_since(self, number: int, subjects: Iterable[str]) -> bool:
        """Whether no change after this number concerns one of these subjects."""
        if number < self._all_changed_at:
            return False
        changed_at = self._changed_at
        return all(changed_at.get(subject, 0) <= number for subject in subjects)
