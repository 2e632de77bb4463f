"""Who may do what: from all grants and guardrails, one judgement. (design §1, MGP §5.2, S4)

Rule 1: a guardrail that covers it denies, and nothing overrides it.
Rule 2: so does a credential that is bounded, where its bounds do not cover it, or exclude it.
Rule 3: of the targets with an entry the most specific level counts alone: the offer itself, then
        its server, then everything.
Rule 4: inside that level deny comes before ask, and ask before allow; what has expired is not
        there. A pattern stands at the level of what it leaves open.
Rule 5: without any entry the server's default policy decides, and without one: deny.
Rule 6: a grant with a condition is no entry. Where a person would be asked it answers in that
        person's place; it never allows what is denied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final, Self

from comity.rules.entries import NO_ENTRIES, Entries, Guardrails
from comity.rules.patterns import Level, target_covers, verb_covers
from comity.wire.grants import CALL, EVERYBODY, PERMISSION, Effect, Forbid, Grant
from comity.wire.parties import Actor


class DefaultPolicy(StrEnum):
    """What is so without an entry. (MGP §5.5)"""

    OPT_IN = "opt-in"
    OPT_OUT = "opt-out"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What follows, and from what: a grant, a guardrail, a credential's bounds, or a default."""

    effect: Effect
    because: str
    grant: Grant | None = None
    level: Level | None = None
    forbid: Forbid | None = None

    @property
    def source(self) -> str:
        """In MGP's words. (MGP §5.4)"""
        if self.grant is None:
            return "default_policy" if self.forbid is None else "guardrail"
        return "tool_grant" if self.level is Level.OFFER else "server_grant"


STRICTNESS: Final = {Effect.ALLOW: 0, Effect.ASK: 1, Effect.DENY: 2}
LEVELS: Final = (Level.OFFER, Level.SERVER, Level.EVERYTHING)
OUR_VERBS: Final = ("admin/", "ask/", "topic/", "events/", "feature/")
"""How verbs begin that are the gateway's own, and not about what a server offers."""

CREDENTIAL: Final = "credential"
GUARDRAIL: Final = "guardrail"
GRANTED: Final = "granted"


BEYOND: Final = Judgement(Effect.DENY, CREDENTIAL)
"""What follows for everything that is outside of a credential's bounds."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What an operator wrote down beside the records: it is there whatever they hold."""

    grants: tuple[Grant, ...] = ()
    forbids: tuple[Forbid, ...] = ()
    policies: Mapping[str, DefaultPolicy] = field(default_factory=dict[str, DefaultPolicy])
    default: DefaultPolicy = DefaultPolicy.OPT_IN

    def of(self, subject: str) -> tuple[Grant, ...]:
        return tuple(grant for grant in self.grants if grant.subject == subject)


NOTHING_DECIDED: Final = Decided()


@dataclass(frozen=True, slots=True)
class Access:
    """Every grant at one moment: never changed, only replaced."""

    subjects: Mapping[str, Entries] = field(default_factory=dict[str, Entries])
    decided: Decided = NOTHING_DECIDED
    guardrails: Guardrails = field(default_factory=Guardrails)

    @classmethod
    def of(cls, grants: Iterable[Grant], decided: Decided = NOTHING_DECIDED) -> Self:
        """From what the records hold, and what stands beside them."""
        subjects: dict[str, list[Grant]] = {}
        for grant in (*decided.grants, *grants):
            subjects.setdefault(grant.subject, []).append(grant)
        laid_out = {subject: Entries.of(found) for subject, found in subjects.items()}
        return cls(laid_out, decided, Guardrails.of(decided.forbids))

    def with_subjects(self, changed: Mapping[str, Iterable[Grant]]) -> "Access":
        """The same with what the records hold for these subjects replaced by this."""
        return self.with_entries(
            {
                subject: Entries.of((*self.decided.of(subject), *grants))
                for subject, grants in changed.items()
            }
        )

    def with_entries(self, changed: Mapping[str, Entries]) -> "Access":
        """The same with all that some subjects have, laid out already, in the place of theirs."""
        subjects = {**self.subjects, **changed}
        for subject, entries in changed.items():
            if not entries.grants:
                del subjects[subject]
        return replace(self, subjects=subjects)

    def with_decided(self, decided: Decided) -> "Access":
        """The same records beside what an operator has written down anew."""
        concerned = {grant.subject for grant in (*self.decided.grants, *decided.grants)}
        fixed = set(self.decided.grants)
        kept = {
            subject: [grant for grant in self.entries(subject).grants if grant not in fixed]
            for subject in concerned
        }
        anew = Access(self.subjects, decided, Guardrails.of(decided.forbids))
        return anew.with_subjects(kept)

    def entries(self, subject: str) -> Entries:
        return self.subjects.get(subject, NO_ENTRIES)

    def of_actor(self, actor: Actor) -> tuple[Entries, Entries]:
        """What an actor was granted by name, and as one of everybody; nobody has neither."""
        if not actor.party:
            return NO_ENTRIES, NO_ENTRIES
        return self.entries(actor.party), self.entries(EVERYBODY)

    def judge(self, actor: Actor, verb: str, server: str, name: str, now: datetime) -> Judgement:
        """What this actor may do with that offer, now."""
        forbid = self.guardrails.over(actor.party, verb, server, name)
        if forbid is not None:
            return Judgement(Effect.DENY, GUARDRAIL, forbid=forbid)
        if not _is_within(actor, verb, server, name):
            return BEYOND
        own, common = self.of_actor(actor)
        for level in LEVELS:
            strictest: Grant | None = None
            for entries in (own, common):
                for grant in entries.at(level, server, name):
                    if is_in_force(grant, verb, now) and _is_stricter(grant, strictest):
                        strictest = grant
            if strictest is not None:
                return Judgement(strictest.effect, GRANTED, strictest, level)
        policy = self.policy_of(server)
        return Judgement(self.otherwise(actor, verb, server), f"default {policy}")

    def standing_answer(
        self,
        actor: Actor,
        place: tuple[str, str],
        arguments: object,
        definition: str,
        now: datetime,
    ) -> Grant | None:
        """The grant by which a call of a tool, as it is defined now, goes without being asked."""
        server, name = place
        target = f"{server}/{name}"
        for entries in self.of_actor(actor):
            for grant, condition in entries.answers.get(target, ()):
                if (
                    is_in_force(grant, CALL, now)
                    and condition.definition in ("", definition)
                    and condition.covers(arguments)
                    and self.judge(actor, CALL, server, name, now).effect is not Effect.DENY
                ):
                    return grant
        return None

    def stays(self, actor: Actor, server: str, name: str) -> bool:
        """Whether nothing that is judged by here ends by itself at some time."""
        return all(
            grant.expires_at is None
            for entries in self.of_actor(actor)
            for level in LEVELS
            for grant in entries.at(level, server, name)
        )

    def policy_of(self, server: str) -> DefaultPolicy:
        return self.decided.policies.get(server, self.decided.default)

    def otherwise(self, actor: Actor, verb: str, server: str) -> Effect:
        """The default policy is about what a server offers, never about the gateway's own verbs."""
        of_ours = verb == PERMISSION or verb.startswith(OUR_VERBS)
        opens = self.policy_of(server) is DefaultPolicy.OPT_OUT and actor.party and not of_ours
        return Effect.ALLOW if opens else Effect.DENY


def is_in_force(grant: Grant, verb: str, now: datetime) -> bool:
    """Whether an entry says anything about this verb, now."""
    return verb_covers(grant.verb, verb) and (grant.expires_at is None or grant.expires_at > now)


def _is_stricter(grant: Grant, than: Grant | None) -> bool:
    return than is None or STRICTNESS[grant.effect] > STRICTNESS[than.effect]


def _is_within(actor: Actor, verb: str, server: str, name: str) -> bool:
    if verb.startswith(actor.excluded):
        return False
    return actor.permissions is None or any(
        verb_covers(allowed, verb) and target_covers(target, server, name)
        for allowed, target in actor.permissions
    )
