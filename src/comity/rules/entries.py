"""Grants and guardrails so laid out that few of them are ever looked at for one offer.

A grant with a condition stands apart: it decides nothing, and only answers what would be asked.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Self

from comity.rules.conditions import Condition, read_or_none
from comity.rules.patterns import ANY, Level, covers, parts, verb_covers
from comity.wire.grants import CALL, Effect, Forbid, Grant

type Listed[T] = dict[str, list[T]]


@dataclass(slots=True)
class Entries:
    """What one subject was granted. `grants` are all of it, in the order in which they came."""

    grants: tuple[Grant, ...] = ()
    # By server and name, both spelt out.
    offers: dict[str, Listed[Grant]] = field(default_factory=dict[str, Listed[Grant]])
    # By server: all of it, or the names that fit a pattern.
    servers: Listed[Grant] = field(default_factory=dict[str, list[Grant]])
    some: Listed[Grant] = field(default_factory=dict[str, list[Grant]])
    # Of every server: all of it, or one name; then whatever has a pattern for servers.
    everything: list[Grant] = field(default_factory=list[Grant])
    names: Listed[Grant] = field(default_factory=dict[str, list[Grant]])
    patterns: list[Grant] = field(default_factory=list[Grant])
    # By the target that they spell out: what was answered once and for all.
    answers: dict[str, list[tuple[Grant, Condition]]] = field(
        default_factory=dict[str, list[tuple[Grant, Condition]]]
    )

    @classmethod
    def of(cls, grants: Iterable[Grant]) -> Self:
        entries = cls(tuple(grants))
        for grant in entries.grants:
            entries._place(grant)
        return entries

    def add(self, grants: Iterable[Grant]) -> None:
        """Some more, while these are not in use yet: many are not read all at once."""
        more = tuple(grants)
        self.grants += more
        for grant in more:
            self._place(grant)

    def _place(self, grant: Grant) -> None:
        if grant.where is not None:
            self._answer(grant)
            return
        server, name = parts(grant.target)
        if ANY not in server:
            if ANY not in name:
                self.offers.setdefault(server, {}).setdefault(name, []).append(grant)
            else:
                held = self.servers if name == ANY else self.some
                held.setdefault(server, []).append(grant)
        elif server != ANY or (ANY in name and name != ANY):
            self.patterns.append(grant)
        elif name == ANY:
            self.everything.append(grant)
        else:
            self.names.setdefault(name, []).append(grant)

    def _answer(self, grant: Grant) -> None:
        """Whatever has a condition that cannot be read says nothing at all."""
        condition = read_or_none(grant.where)
        is_one = grant.effect is Effect.ALLOW and grant.verb == CALL and ANY not in grant.target
        if condition is not None and is_one:
            self.answers.setdefault(grant.target, []).append((grant, condition))

    def at(self, level: Level, server: str, name: str) -> Iterator[Grant] | Iterable[Grant]:
        """Those at one level whose target is about this offer."""
        if level is Level.OFFER:
            return self.offers.get(server, _NO_NAMES).get(name, ())
        if level is Level.SERVER:
            whole = self.servers.get(server, _NONE)
            some = self.some.get(server)
            if some is None:
                return whole
            return chain(whole, (each for each in some if covers(parts(each.target)[1], name)))
        if not self.names and not self.patterns:
            return self.everything
        fitting = (each for each in self.patterns if _fits(each.target, server, name))
        return chain(self.everything, self.names.get(name, _NONE), fitting)


def _fits(target: str, server: str, name: str) -> bool:
    of_server, of_name = parts(target)
    return covers(of_server, server) and covers(of_name, name)


_NONE: Final[list[Grant]] = []
_NO_NAMES: Final[Listed[Grant]] = {}
NO_ENTRIES: Final = Entries()


@dataclass(frozen=True, slots=True)
class Guardrails:
    """What an operator forbids, by the server that it is about."""

    servers: Mapping[str, tuple[Forbid, ...]] = field(default_factory=dict[str, tuple[Forbid, ...]])
    everywhere: tuple[Forbid, ...] = ()

    @classmethod
    def of(cls, forbids: Iterable[Forbid]) -> Self:
        servers: dict[str, tuple[Forbid, ...]] = {}
        everywhere: list[Forbid] = []
        for forbid in forbids:
            server, _ = parts(forbid.target)
            if ANY in server:
                everywhere.append(forbid)
            else:
                servers[server] = (*servers.get(server, ()), forbid)
        return cls(servers, tuple(everywhere))

    def about(self, party: str, verb: str, server: str) -> Iterator[Forbid]:
        """Those that deny this party something of a server."""
        for forbid in chain(self.servers.get(server, ()), self.everywhere):
            if (
                covers(forbid.subject, party)
                and verb_covers(forbid.verb, verb)
                and covers(parts(forbid.target)[0], server)
            ):
                yield forbid

    def over(self, party: str, verb: str, server: str, name: str) -> Forbid | None:
        """One that denies this, if there is one."""
        if not self.everywhere and server not in self.servers:
            return None
        found = self.about(party, verb, server)
        return next((each for each in found if covers(parts(each.target)[1], name)), None)
