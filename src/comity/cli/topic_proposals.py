"""The proposals of a topic as a person there knows them: by numbers, in full, and with doubts.

A number is a proposal's for good, so that nobody approves another one than was looked at.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, cast

from rich.table import Table
from rich.text import Text

from comity.cli import topic_words
from comity.rules.ask_words import ago, one_line
from comity.rules.proposals import Proposal
from comity.sdk.participant import Participant
from comity.sdk.writing import kind_of
from comity.wire.envelope import REQUEST
from comity.wire.errors import Misconfigured

MOST_NUMBERS: Final = 2_000
NO_TOOLS: Final = "it is for you to do, and you have no tools here"


class Proposals:
    """Those that were seen since this person sat down."""

    def __init__(self, me: Participant) -> None:
        self._me = me
        self._numbers: dict[str, int] = {}
        self._next = 1
        self.declined: set[str] = set()

    def number(self, id: str) -> int:
        if id not in self._numbers:
            if len(self._numbers) >= MOST_NUMBERS:
                oldest = next(iter(self._numbers))
                del self._numbers[oldest]
                self.declined.discard(oldest)
            self._numbers[id] = self._next
            self._next += 1
        return self._numbers[id]

    def undecided(self) -> list[tuple[int, Proposal]]:
        """The proposals of others that wait for somebody, by their numbers."""
        found = [
            (self.number(each.id), each)
            for each in self._me.proposals
            if each.id not in self.declined and each.proposer != self._me.id
        ]
        return sorted(found, key=lambda each: each[0])

    def get(self, number: str | int) -> tuple[int, Proposal]:
        """The proposal with this number, be it open or not. Raises Misconfigured."""
        digits = str(number).strip("[]")
        for id, known in self._numbers.items():
            found = self._me.proposal(id) if str(known) == digits else None
            if found is not None:
                return known, found
        raise Misconfigured(f"there is no proposal {digits:.20}; /proposals lists those that wait")

    def in_full(self, number: int, to: str = "") -> Table:
        """All of it; `to` is who would do it, where it was proposed to nobody."""
        _, found = self.get(number)
        whom = replace(found, target=(to,)) if to else found
        return topic_words.in_full(whom, number, datetime.now(UTC), self.doubts(whom))

    def line_of(self, number: int, proposal: Proposal) -> Text:
        """A proposal on one line, with how long it still waits."""
        what = topic_words.deed(proposal.method, proposal.params)
        found = topic_words.proposed(proposal.proposer, self._me.id, proposal.target, number, what)
        return found.append(f" ({left_of(proposal)} left)", "dim")

    def doubts(self, proposal: Proposal) -> list[str]:
        """What somebody should know who is about to approve it."""
        found: list[str] = []
        if not proposal.is_open:
            found.append(_standing(proposal))
        if self._me.id in proposal.target:
            found.append(NO_TOOLS)
        away = {*proposal.target} - {self._me.id, *self._me.others}
        if away:
            found.append(f"not here now: {one_line(', '.join(sorted(away)))}")
        dropped = self._me.reputation.get(proposal.proposer, 0)
        if dropped:
            found.append(f"of what its proposer sent, {dropped} had to be dropped")
        kind = _kind_of_doing(proposal)
        if not self._me.may_send(kind):
            found.append(way_to(self._me, kind))
        return found

    def check_open(self, number: int, proposal: Proposal) -> None:
        if not proposal.is_open or proposal.id in self.declined:
            raise Misconfigured(f"[{number}] waits no longer: {_standing(proposal)}")

    def check(self, number: int, proposal: Proposal, to: str) -> None:
        """Raises Misconfigured where this person cannot have it done."""
        if proposal.proposer == self._me.id:
            raise Misconfigured(f"[{number}] is your own; somebody else has to approve it")
        self.check_open(number, proposal)
        if not proposal.target and not to:
            way = f"/approve {number} PARTY"
            raise Misconfigured(f"[{number}] names nobody; say who is to do it: {way}")
        if self._me.id in ((to,) if to else proposal.target):
            raise Misconfigured(f"[{number}]: {NO_TOOLS}; /decline {number} says so")
        kind = _kind_of_doing(proposal)
        if not self._me.may_send(kind):
            raise Misconfigured(way_to(self._me, kind))


def way_to(me: Participant, kind: str) -> str:
    """What to do about it that we may not send a kind."""
    words = ("comity", "topic", "caps", me.topic, me.id, "--add", kind)
    return f"you may not send {one_line(kind)} here; an operator lets you: {shlex.join(words)}"


def left_of(proposal: Proposal) -> str:
    return ago(proposal.expires_at - datetime.now(UTC))


def _standing(proposal: Proposal) -> str:
    if proposal.is_open:
        return "you declined it"
    by = f" by {one_line(proposal.fulfilled_by)}" if proposal.fulfilled_by else ""
    return f"it is {proposal.status}{by}"


def _kind_of_doing(proposal: Proposal) -> str:
    params = proposal.params
    if not isinstance(params, Mapping):
        return kind_of(REQUEST, proposal.method, {})
    return kind_of(REQUEST, proposal.method, cast("Mapping[str, object]", params))
