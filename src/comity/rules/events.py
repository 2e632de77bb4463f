"""Which events somebody wants, and when two of them are one. (MGP §13.5, D-27, D-99)

Rule 1: `*` stands for every channel, `tool.*` for every one of that family, a name for itself.
Rule 2: an event without a severity, or with one that nobody knows, is `info`.
Rule 3: two events of one server are the same if they have the same id; without one, if channel,
        time and data are the same.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from comity.wire.events import ALL, Event, Severity, Told, Wanted, is_channel, is_pattern

_ORDER: Final = {severity: place for place, severity in enumerate(Severity)}
_ALSO: Final[Mapping[str, Severity]] = {
    "notice": Severity.INFO,
    "warn": Severity.WARNING,
    "alert": Severity.CRITICAL,
    "emergency": Severity.CRITICAL,
    "fatal": Severity.CRITICAL,
}
"""How others call the same: the levels of MCP's logs and of common libraries."""


def severity_of(said: str) -> Severity:
    """What a server's word for a severity means here."""
    named = said.casefold()
    return Severity(named) if named in Severity else _ALSO.get(named, Severity.INFO)


def is_enough(severity: Severity, least: Severity) -> bool:
    """Whether something of this severity is wanted by whoever wants at least that."""
    return _ORDER[severity] >= _ORDER[least]


def covers(pattern: str, channel: str) -> bool:
    """Whether a channel is one of those that were named so."""
    if pattern in (ALL, channel):
        return True
    return is_pattern(pattern) and channel.startswith(pattern[:-1])


def wants(wanted: Wanted, channel: str) -> bool:
    return any(covers(pattern, channel) for pattern in wanted.channels)


def answered(
    wanted: Wanted, known: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...], Wanted]:
    """The channels that there are of those wanted, the names of which there is none, and what is
    followed from now on: a family also where channels of it come later."""
    there = dict.fromkeys(known)
    found = [channel for channel in there if wants(wanted, channel)]
    missing = [name for name in wanted.channels if not any(covers(name, each) for each in found)]
    kept = [name for name in wanted.channels if name not in missing or is_pattern(name)]
    return tuple(sorted(found)), tuple(missing), Wanted(tuple(kept), wanted.min_severity)


def could_be(wanted: Iterable[str]) -> tuple[str, ...]:
    """Of what is wanted all that can be the name of a channel or of several."""
    return tuple(name for name in wanted if is_channel(name) or is_pattern(name))


def id_of(told: Told) -> str:
    """By what an event is known among those of its server. (D-99)"""
    if told.id is not None:
        return told.id
    whole = [told.channel, told.timestamp, told.data]
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()[:32]


class Seen:
    """Of which events it is known that they were heard; the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ids: dict[tuple[str, str], None] = {}

    def is_new(self, event: Event) -> bool:
        """Whether it is heard for the first time, which it then was."""
        name = (event.source, event.id)
        if name in self._ids:
            return False
        self._ids[name] = None
        if len(self._ids) > self._most:
            del self._ids[next(iter(self._ids))]
        return True
