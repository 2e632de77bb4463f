"""Entries of lists of tables: their members read by name, and amounts of money."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from comity.config.kinds import Kind
from comity.rules.documents import Mistakes, Written
from comity.wire.errors import Misconfigured


def amount(at_most: float) -> Kind:
    """An amount of money, or of anything else that has parts."""

    def read(written: Written) -> Any:
        said = written.value
        if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= at_most:
            raise written.wrong(f"must be a number between 0 and {at_most:g}")
        return float(said)

    return Kind(read, {"type": "number", "minimum": 0, "maximum": at_most})


def members_of(
    entry: Written, known: Mapping[str, tuple[Kind, str]], needed: Iterable[str] = ()
) -> dict[str, Any]:
    """What an entry says; raises with all that is wrong in it."""
    mistakes = Mistakes()
    table = entry.table()
    mistakes.note(*entry.unknown(known))
    for name in needed:
        if name not in table:
            mistakes.note(entry.wrong(f"needs its {name}: {known[name][1]}"))
    said: dict[str, Any] = {}
    for name, written in table.items():
        if name in known:
            kind = known[name][0]
            said[name] = mistakes.read(lambda kind=kind, it=written: kind.read(it), None)
    if mistakes.found:
        raise Misconfigured(mistakes)
    return said


def shaped(shape: str, example: str) -> Kind:
    """A text that has this shape."""

    def read(written: Written) -> str:
        if not re.fullmatch(shape, written.text()):
            raise written.wrong(f"must be written as {example}")
        return written.text()

    return Kind(read, {"type": "string", "pattern": f"^({shape})$"})


def all_of[T](read: Callable[[Written], T], most: int) -> Callable[[Written], tuple[T, ...]]:
    """A list of entries, each read so; raises with all that is wrong in it."""

    def read_all(written: Written) -> tuple[T, ...]:
        entries = written.items()
        if len(entries) > most:
            raise written.wrong(f"holds more than {most}")
        mistakes = Mistakes()
        found = [mistakes.read(lambda each=each: read(each), None) for each in entries]
        if mistakes.found:
            raise Misconfigured(mistakes)
        return tuple(each for each in found if each is not None)

    return read_all
