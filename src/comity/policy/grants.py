"""Grants and guardrails: patterns, resolution and explanation."""

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import lru_cache
from itertools import chain
from typing import Final, Protocol, Self, cast

import msgspec

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.mcp.actors import ADMIN_READ, CALL, GROUP_PREFIX, Actor
from comity.mcp.protocol import SEPARATOR
from comity.policy import conditions
from comity.policy.conditions import Condition, parse_or_none
from comity.storage.changes import PAGE
from comity.storage.values import check_name, clean_words, decode_document, to_optional_utc
from comity.toolkit.bucket_map import BucketMap
from comity.toolkit.text import has_hidden

PERMISSION_VERB: Final = "perm"
FEATURE_VERB: Final = "feature/enable"
ANY_SUBJECT: Final = "*"
ANY_TARGET: Final = "*"


type Where = Mapping[str, object] | None
"""A condition on the arguments of a call, or None."""


class Effect(StrEnum):
    """The effect of a grant. Of two grants at the same level, the stricter applies."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class GrantSource(StrEnum):
    """The origin of a grant. The API can change only grants of the store (`RECORDS`)."""

    FILE = "file"
    RECORDS = "records"
    BUILT_IN = "built_in"


@dataclass(frozen=True, slots=True)
class Grant:
    """A grant for a subject, a verb and a target. The store holds at most one for each such triple.

    A grant with `where`, a condition on arguments, is a conditional grant. A call that it covers
    needs no approval request. It never allows a call that is otherwise denied.
    `comity.policy.conditions` defines the form of a condition. One triple may have several
    conditional grants with different conditions. `reach` names the folders, hosts or programs
    that a permission of a server is for.
    """

    subject: str
    verb: str
    target: str
    effect: Effect
    id: str = ""
    source: GrantSource = GrantSource.RECORDS
    granted_by: str = ""
    justification: str = ""
    granted_at: datetime | None = None
    expires_at: datetime | None = None
    where: Where = field(default=None, hash=False)
    reach: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Guardrail:
    """A guardrail denies what it covers, and no grant overrides it. (S4)"""

    subject: str
    verb: str
    target: str
    why: str = ""


ANY: Final = "*"
TOPIC_SERVER: Final = "topic."
"""Begins the name of a topic in the place of a server, for its members, as `topic.ops`."""
_BELOW: Final = "/*"
VIEW_PREFIX: Final = "view:"
"""The beginning of a target that names a view. The id of a server has no colon."""


class TargetSpecificity(IntEnum):
    """How specific the target of a grant is. Only the grants of the highest level decide."""

    EVERYTHING = 0
    SERVER = 1
    OFFER = 2


@lru_cache(10_000)
def _split_pattern(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split(ANY))


def is_pattern_match(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern, in which `*` matches any characters."""
    if ANY not in pattern:
        return pattern == text
    if pattern == ANY:
        return True
    first, *middle, last = _split_pattern(pattern)
    end = len(text) - len(last)
    if end < len(first) or not (text.startswith(first) and text.endswith(last)):
        return False
    # The earliest match of each piece leaves the most text for the next, so there is no
    # backtracking.
    place = len(first)
    for piece in middle:
        found = text.find(piece, place, end)
        if found < 0:
            return False
        place = found + len(piece)
    return True


def verb_covers(pattern: str, verb: str) -> bool:
    """Whether the verb of a grant covers a verb."""
    if pattern in (verb, ANY):
        return True
    return pattern.endswith(_BELOW) and verb.startswith(pattern[:-1])


def split_target(target: str) -> tuple[str, str]:
    """Split a target into the server and the name."""
    if target == ANY_TARGET:
        return ANY, ANY
    server, _, name = target.partition("/")
    return server, name


def view_target(view: str) -> str:
    """Return the target of grants for a view."""
    return f"{VIEW_PREFIX}{view}"


def target_covers(target: str, server: str, name: str) -> bool:
    """Whether a target covers a catalog entry."""
    of_server, of_name = split_target(target)
    return is_pattern_match(of_server, server) and is_pattern_match(of_name, name)


def level_of(target: str) -> TargetSpecificity:
    """Return the specificity of a target. A pattern counts as the level that it leaves open.

    A view counts as a server: a dangerous tool in it still needs a grant of its own.
    """
    if target.startswith(VIEW_PREFIX):
        return TargetSpecificity.SERVER
    server, name = split_target(target)
    if ANY in server:
        return TargetSpecificity.EVERYTHING
    return TargetSpecificity.SERVER if ANY in name else TargetSpecificity.OFFER


type Listed[T] = dict[str, list[T]]


@dataclass(slots=True)
class GrantIndex:
    """The grants of one subject, indexed by target.

    `grants` holds all of them, in order of arrival.
    """

    grants: tuple[Grant, ...] = ()
    # By exact server and exact name.
    grants_by_entry: dict[str, Listed[Grant]] = field(default_factory=dict[str, Listed[Grant]])
    # By exact server: grants on the whole server, then grants on a pattern of names.
    grants_by_server: Listed[Grant] = field(default_factory=dict[str, list[Grant]])
    grants_on_some: Listed[Grant] = field(default_factory=dict[str, list[Grant]])
    # For any server: grants on everything, grants on one exact name, then grants with other
    # patterns.
    grants_on_all: list[Grant] = field(default_factory=list[Grant])
    grants_by_name: Listed[Grant] = field(default_factory=dict[str, list[Grant]])
    pattern_grants: list[Grant] = field(default_factory=list[Grant])
    # Standing answers, by exact target.
    standing_answers: dict[str, list[tuple[Grant, Condition]]] = field(
        default_factory=dict[str, list[tuple[Grant, Condition]]]
    )

    @classmethod
    def from_grants(cls, grants: Iterable[Grant]) -> Self:
        entries = cls(tuple(grants))
        for grant in entries.grants:
            entries._index_grant(grant)
        return entries

    def add(self, grants: Iterable[Grant]) -> None:
        """Add grants while the index is not in use yet, so that a large store can be read page by
        page.
        """
        more = tuple(grants)
        self.grants += more
        for grant in more:
            self._index_grant(grant)

    def _index_grant(self, grant: Grant) -> None:
        if grant.where is not None:
            self._index_answer(grant)
            return
        server, name = split_target(grant.target)
        if ANY not in server:
            if ANY not in name:
                self.grants_by_entry.setdefault(server, {}).setdefault(name, []).append(grant)
            else:
                held = self.grants_by_server if name == ANY else self.grants_on_some
                held.setdefault(server, []).append(grant)
        elif server != ANY or (ANY in name and name != ANY):
            self.pattern_grants.append(grant)
        elif name == ANY:
            self.grants_on_all.append(grant)
        else:
            self.grants_by_name.setdefault(name, []).append(grant)

    def _index_answer(self, grant: Grant) -> None:
        """Index a conditional grant. A grant with an unreadable condition has no effect."""
        condition = parse_or_none(grant.where)
        is_one = grant.effect is Effect.ALLOW and grant.verb == CALL and ANY not in grant.target
        if condition is not None and is_one:
            self.standing_answers.setdefault(grant.target, []).append((grant, condition))

    def grants_at(
        self, level: TargetSpecificity, server: str, name: str
    ) -> Iterator[Grant] | Iterable[Grant]:
        """The grants at one level whose target covers this catalog entry."""
        if level is TargetSpecificity.OFFER:
            return self.grants_by_entry.get(server, _NO_NAMES).get(name, ())
        if level is TargetSpecificity.SERVER:
            whole = self.grants_by_server.get(server, _NO_GRANTS)
            some = self.grants_on_some.get(server)
            if some is None:
                return whole
            return chain(
                whole,
                (each for each in some if is_pattern_match(split_target(each.target)[1], name)),
            )
        if not self.grants_by_name and not self.pattern_grants:
            return self.grants_on_all
        fitting = (each for each in self.pattern_grants if _covers_entry(each.target, server, name))
        return chain(self.grants_on_all, self.grants_by_name.get(name, _NO_GRANTS), fitting)


def _covers_entry(target: str, server: str, name: str) -> bool:
    of_server, of_name = split_target(target)
    return is_pattern_match(of_server, server) and is_pattern_match(of_name, name)


_NO_GRANTS: Final[list[Grant]] = []
_NO_NAMES: Final[Listed[Grant]] = {}
EMPTY_INDEX: Final = GrantIndex()


@dataclass(frozen=True, slots=True)
class Guardrails:
    """The guardrails of an operator, indexed by server."""

    servers: Mapping[str, tuple[Guardrail, ...]] = field(
        default_factory=dict[str, tuple[Guardrail, ...]]
    )
    for_all_servers: tuple[Guardrail, ...] = ()

    @classmethod
    def from_guardrails(cls, guardrails: Iterable[Guardrail]) -> Self:
        servers: dict[str, tuple[Guardrail, ...]] = {}
        everywhere: list[Guardrail] = []
        for forbid in guardrails:
            server, _ = split_target(forbid.target)
            if ANY in server:
                everywhere.append(forbid)
            else:
                servers[server] = (*servers.get(server, ()), forbid)
        return cls(servers, tuple(everywhere))

    def applying_to_server(self, actor: Actor, verb: str, server: str) -> Iterator[Guardrail]:
        """The guardrails that deny this actor a verb on some entry of a server."""
        subjects = actor.subjects
        for forbid in chain(self.servers.get(server, ()), self.for_all_servers):
            if (
                any(is_pattern_match(forbid.subject, subject) for subject in subjects)
                and verb_covers(forbid.verb, verb)
                and is_pattern_match(split_target(forbid.target)[0], server)
            ):
                yield forbid

    def find_denying(self, actor: Actor, verb: str, server: str, name: str) -> Guardrail | None:
        """Return a guardrail that denies this verb on this entry, or None."""
        if not self.for_all_servers and server not in self.servers:
            return None
        found = self.applying_to_server(actor, verb, server)
        return next(
            (each for each in found if is_pattern_match(split_target(each.target)[1], name)), None
        )


class DefaultPolicy(StrEnum):
    """The policy that applies where no grant does: opt-in and opt-out of MGP. (MGP §5.5)"""

    DENY = "deny"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Decision:
    """An effect and its cause: a grant, a guardrail, the bounds of a credential, or the default."""

    effect: Effect
    reason: str
    grant: Grant | None = None
    level: TargetSpecificity | None = None
    guardrail: Guardrail | None = None

    @property
    def is_default(self) -> bool:
        """Whether neither an entry of the policy nor the bounds of a credential decided."""
        return self.grant is None and self.guardrail is None and self.reason != CREDENTIAL_SOURCE

    @property
    def source(self) -> str:
        """The source of the decision in the terms of MGP. (MGP §5.4)"""
        if self.grant is None:
            return "default_policy" if self.guardrail is None else "guardrail"
        return "tool_grant" if self.level is TargetSpecificity.OFFER else "server_grant"


STRICTNESS_BY_EFFECT: Final = {Effect.ALLOW: 0, Effect.ASK: 1, Effect.DENY: 2}
LEVELS_BY_SPECIFICITY: Final = (
    TargetSpecificity.OFFER,
    TargetSpecificity.SERVER,
    TargetSpecificity.EVERYTHING,
)
GATEWAY_VERBS: Final = ("admin/", "approval/", "topic/", "events/", "feature/", "scim/")
"""Prefixes of the gateway's own verbs, which do not concern catalog entries of servers."""

CREDENTIAL_SOURCE: Final = "credential"
GUARDRAIL_SOURCE: Final = "guardrail"
GRANT_SOURCE: Final = "granted"


CREDENTIAL_DENIAL: Final = Decision(Effect.DENY, CREDENTIAL_SOURCE)
"""The decision for everything outside the bounds of a credential."""


@dataclass(frozen=True, slots=True)
class StaticRules:
    """The grants, guardrails and default policies of the settings file. They need no store."""

    grants: tuple[Grant, ...] = ()
    guardrails: tuple[Guardrail, ...] = ()
    policies: Mapping[str, DefaultPolicy] = field(default_factory=dict[str, DefaultPolicy])
    default: DefaultPolicy = DefaultPolicy.DENY

    def grants_of(self, subject: str) -> tuple[Grant, ...]:
        return tuple(grant for grant in self.grants if grant.subject == subject)


NO_STATIC_RULES: Final = StaticRules()

_VIEWER_VERBS: Final = (ADMIN_READ,)
_APPROVER_VERBS: Final = (*_VIEWER_VERBS, "approval/answer")
VERBS_BY_ROLE: Final[Mapping[str, tuple[str, ...]]] = {
    "viewer": _VIEWER_VERBS,
    "approver": _APPROVER_VERBS,
    "admin": tuple(f"{prefix}*" for prefix in GATEWAY_VERBS),
}
"""The verbs of each role. A role is only a name for some grants on everything."""


def role_grants(roles: Mapping[str, Iterable[str]]) -> tuple[Grant, ...]:
    """Return the grants that the roles of the settings file stand for."""
    return tuple(
        Grant(
            parse_subject(subject),
            verb,
            ANY_TARGET,
            Effect.ALLOW,
            source=GrantSource.FILE,
            justification=f"role {role}",
        )
        for role, subjects in roles.items()
        for subject in dict.fromkeys(subjects)
        for verb in VERBS_BY_ROLE[role]
    )


@dataclass(frozen=True, slots=True)
class GrantSet:
    """An immutable set of all grants at one moment. A change makes a new set."""

    subjects: BucketMap[GrantIndex] = field(default_factory=BucketMap[GrantIndex])
    static_rules: StaticRules = NO_STATIC_RULES
    guardrails: Guardrails = field(default_factory=Guardrails)

    @classmethod
    def from_grants(
        cls, grants: Iterable[Grant], static_rules: StaticRules = NO_STATIC_RULES
    ) -> Self:
        """Build the set from the grants of the store and the static rules."""
        subjects: dict[str, list[Grant]] = {}
        for grant in (*static_rules.grants, *grants):
            subjects.setdefault(grant.subject, []).append(grant)
        indexes = {subject: GrantIndex.from_grants(found) for subject, found in subjects.items()}
        return cls(
            BucketMap(indexes), static_rules, Guardrails.from_guardrails(static_rules.guardrails)
        )

    def with_subjects(self, changed: Mapping[str, Iterable[Grant]]) -> "GrantSet":
        """Return a copy in which these grants replace the stored grants of some subjects."""
        return self.with_indexes(
            {
                subject: GrantIndex.from_grants((*self.static_rules.grants_of(subject), *grants))
                for subject, grants in changed.items()
            }
        )

    def with_indexes(self, changed: Mapping[str, GrantIndex]) -> "GrantSet":
        """Return a copy in which these indexes replace all grants of some subjects."""
        items = {subject: index if index.grants else None for subject, index in changed.items()}
        return replace(self, subjects=self.subjects.changed(items))

    def with_static_rules(self, static_rules: StaticRules) -> "GrantSet":
        """Return a copy with the same stored grants and other static rules."""
        concerned = {grant.subject for grant in (*self.static_rules.grants, *static_rules.grants)}
        fixed = set(self.static_rules.grants)
        kept = {
            subject: [grant for grant in self.index_of(subject).grants if grant not in fixed]
            for subject in concerned
        }
        anew = GrantSet(
            self.subjects, static_rules, Guardrails.from_guardrails(static_rules.guardrails)
        )
        return anew.with_subjects(kept)

    def index_of(self, subject: str) -> GrantIndex:
        return self.subjects.get(subject, EMPTY_INDEX)

    def indexes_of(self, actor: Actor) -> tuple[GrantIndex, ...]:
        """Return the actor's own grants, those of its groups, and the grants of all principals.

        An unauthenticated actor has none of them.
        """
        if not actor.party:
            return EMPTY_INDEX, EMPTY_INDEX
        return *map(self.index_of, actor.subjects), self.index_of(ANY_SUBJECT)

    def authorize(self, actor: Actor, verb: str, server: str, name: str, now: datetime) -> Decision:
        """Decide what the actor may do with a catalog entry now."""
        forbid = self.guardrails.find_denying(actor, verb, server, name)
        if forbid is not None:
            return Decision(Effect.DENY, GUARDRAIL_SOURCE, guardrail=forbid)
        if not _is_within_bounds(actor, verb, server, name):
            return CREDENTIAL_DENIAL
        return self._decide_by_grants(actor, verb, server, name, now)

    def authorize_in_view(
        self, actor: Actor, verb: str, entry: tuple[str, str], view: str, now: datetime
    ) -> Decision:
        """Decide what the actor may do with a catalog entry at the endpoint of a view.

        A grant for the view replaces a missing grant on the entry, never a denial. Where both
        exist, the stricter one decides.
        """
        target = view_target(view)
        of_view = self._strictest_view_grant(actor, verb, target, now)
        forbid = self.guardrails.find_denying(actor, verb, *entry)
        forbid = forbid or self.guardrails.find_denying(actor, verb, target, "")
        if forbid is not None:
            return Decision(Effect.DENY, GUARDRAIL_SOURCE, guardrail=forbid)
        if not _is_within_bounds(actor, verb, *entry) and not (
            _has_exact_bound(actor, verb, target)
        ):
            return CREDENTIAL_DENIAL
        of_entry = self._decide_by_grants(actor, verb, *entry, now)
        is_stricter = of_entry.grant is None or (
            of_view is not None and _is_stricter(of_view, of_entry.grant)
        )
        if of_view is None or not is_stricter:
            return of_entry
        return Decision(of_view.effect, GRANT_SOURCE, of_view, TargetSpecificity.SERVER)

    def _strictest_view_grant(
        self, actor: Actor, verb: str, target: str, now: datetime
    ) -> Grant | None:
        strictest: Grant | None = None
        for entries in self.indexes_of(actor):
            for grant in entries.grants_at(TargetSpecificity.OFFER, target, ""):
                if is_in_force(grant, verb, now) and _is_stricter(grant, strictest):
                    strictest = grant
        return strictest

    def _decide_by_grants(
        self, actor: Actor, verb: str, server: str, name: str, now: datetime
    ) -> Decision:
        indexes = self.indexes_of(actor)
        for level in LEVELS_BY_SPECIFICITY:
            strictest: Grant | None = None
            for entries in indexes:
                for grant in entries.grants_at(level, server, name):
                    if is_in_force(grant, verb, now) and _is_stricter(grant, strictest):
                        strictest = grant
            if strictest is not None:
                return Decision(strictest.effect, GRANT_SOURCE, strictest, level)
        policy = self.policy_of(server)
        return Decision(self.default_effect(actor, verb, server), f"default {policy}")

    def standing_answer(
        self,
        actor: Actor,
        entry: tuple[str, str],
        arguments: object,
        definition: str,
        now: datetime,
    ) -> Grant | None:
        """Return the conditional grant that covers a call with this definition, or None."""
        server, name = entry
        target = f"{server}/{name}"
        for entries in self.indexes_of(actor):
            for grant, condition in entries.standing_answers.get(target, ()):
                if (
                    is_in_force(grant, CALL, now)
                    and condition.definition in ("", definition)
                    and condition.covers(arguments)
                    and not self.denies_call(actor, server, name, now)
                ):
                    return grant
        return None

    def never_expires(self, actor: Actor, server: str, name: str, view: str = "") -> bool:
        """Whether no grant that affects this decision ever expires."""
        of_view = view_target(view)
        return all(
            grant.expires_at is None
            for entries in self.indexes_of(actor)
            for level in LEVELS_BY_SPECIFICITY
            for grant in entries.grants_at(level, server, name)
        ) and all(
            grant.expires_at is None
            for entries in self.indexes_of(actor)
            for grant in entries.grants_at(TargetSpecificity.OFFER, of_view, "")
        )

    def denies_call(self, actor: Actor, server: str, name: str, now: datetime) -> bool:
        """Whether a call is denied, whatever a condition says of its arguments.

        A tool of a topic's member is no catalog entry. Its calls are proposed, which the topic
        allows, so that the default policy for servers does not deny them.
        """
        decision = self.authorize(actor, CALL, server, name, now)
        is_by_default = decision.source == "default_policy" and decision is not CREDENTIAL_DENIAL
        is_of_member = server.startswith(TOPIC_SERVER)
        return decision.effect is Effect.DENY and not (is_by_default and is_of_member)

    def policy_of(self, server: str) -> DefaultPolicy:
        return self.static_rules.policies.get(server, self.static_rules.default)

    def default_effect(self, actor: Actor, verb: str, server: str) -> Effect:
        """The effect of the default policy.

        The default policy covers catalog entries of servers, never the gateway's own verbs.
        """
        of_ours = verb == PERMISSION_VERB or verb.startswith(GATEWAY_VERBS)
        opens = self.policy_of(server) is DefaultPolicy.ALLOW and actor.party and not of_ours
        return Effect.ALLOW if opens else Effect.DENY


def is_in_force(grant: Grant, verb: str, now: datetime) -> bool:
    """Whether a grant covers this verb and has not expired."""
    return verb_covers(grant.verb, verb) and (grant.expires_at is None or grant.expires_at > now)


def _is_stricter(grant: Grant, other: Grant | None) -> bool:
    return other is None or STRICTNESS_BY_EFFECT[grant.effect] > STRICTNESS_BY_EFFECT[other.effect]


def _is_within_bounds(actor: Actor, verb: str, server: str, name: str) -> bool:
    if verb.startswith(actor.excluded):
        return False
    return actor.permissions is None or any(
        verb_covers(allowed, verb) and target_covers(target, server, name)
        for allowed, target in actor.permissions
    )


def _has_exact_bound(actor: Actor, verb: str, target: str) -> bool:
    """Whether the bounds of a credential name this target itself, and not by a pattern."""
    if verb.startswith(actor.excluded):
        return False
    return any(
        verb_covers(allowed, verb) and bound == target for allowed, bound in actor.permissions or ()
    )


MAX_SUBJECT_LENGTH: Final = 256
MAX_VERB_LENGTH: Final = 128
MAX_TARGET_LENGTH: Final = 1000
MAX_WILDCARDS: Final = 8
MAX_PLACES: Final = 100
VIEW_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_VIEW_PATTERN: Final = re.compile(VIEW_PREFIX + VIEW_NAME)
_SERVER_PATTERN: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9_.*-]{0,63}")
_WORD_PATTERN: Final = r"[A-Za-z][A-Za-z0-9_.-]*"
_VERB_PATTERN: Final = re.compile(rf"\*|{_WORD_PATTERN}(/{_WORD_PATTERN})*(/\*)?")
_CONTROL_PATTERN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def parse_subject(text: str) -> str:
    """Check the subject of a grant. Raises MalformedMessage."""
    if text == ANY_SUBJECT:
        return text
    if "*" in text:
        raise _malformed(
            f"the subject {text!r:.80} must be one principal, such as agent:ci, one group, such as "
            "group:sre, or * for all"
        )
    return parse_subject_pattern(text)


def parse_subject_pattern(text: str) -> str:
    """Check the subject of a guardrail, which may be a pattern. Raises MalformedMessage."""
    if (
        not text
        or text != text.strip()
        or len(text) > MAX_SUBJECT_LENGTH
        or _CONTROL_PATTERN.search(text)
        or has_hidden(text)
    ):
        raise _malformed(
            "a subject must be the id of a principal, such as agent:ci, of at most "
            f"{MAX_SUBJECT_LENGTH} characters, without invisible ones"
        )
    if text.startswith(GROUP_PREFIX):
        # The names of groups are stored in this form.
        text = unicodedata.normalize("NFC", text)
    return _check_stars(text)


def parse_verb(text: str) -> str:
    """Check the verb of a grant. Raises MalformedMessage."""
    if len(text) > MAX_VERB_LENGTH or not _VERB_PATTERN.fullmatch(text):
        raise _malformed(
            f"the verb {text!r:.80} must be a method as tools/call, all of a family as tools/*, "
            "or *"
        )
    return text


def parse_target(text: str, verb: str = "tools/call") -> str:
    """Return the target of a grant in its stored form. Raises MalformedMessage."""
    if len(text) > MAX_TARGET_LENGTH or _CONTROL_PATTERN.search(text):
        raise _malformed(
            f"a target has at most {MAX_TARGET_LENGTH} characters, none of them a control"
        )
    if verb in (PERMISSION_VERB, FEATURE_VERB):
        return _check_name(text)
    if text in (ANY_TARGET, "*/*"):
        return ANY_TARGET
    if text.startswith(VIEW_PREFIX):
        if not _VIEW_PATTERN.fullmatch(text):
            raise _malformed(
                f"the target {text!r:.80} must name one view, as view:payments; a name has 1 to "
                "64 of A-Z a-z 0-9 _ -"
            )
        return text
    server, slash, name = text.partition("/")
    if not slash:
        server, separator, name = text.partition(SEPARATOR)
        name = name if separator else "*"
    if not _SERVER_PATTERN.fullmatch(server) or not name:
        raise _malformed(
            f"the target {text!r:.80} must be server/tool, server/*, view:name, or *; a server's "
            "id has 1 to 64 of A-Z a-z 0-9 _ . -"
        )
    return _check_stars(f"{server}/{name}")


def normalise_condition(grant: Grant) -> Mapping[str, object] | None:
    """Return the condition of a grant in its stored form. Raises MalformedMessage."""
    if grant.where is None:
        return None
    is_one_call = grant.verb == CALL and "*" not in grant.target and "/" in grant.target
    if not is_one_call or grant.effect is not Effect.ALLOW:
        raise _malformed("a condition goes with allowing tools/call of one tool, as files/read")
    conditions.parse_condition(grant.where)
    return cast(
        "Mapping[str, object]", msgspec.json.decode(conditions.canonical_condition(grant.where))
    )


def check_reach(grant: Grant) -> None:
    """Raise MalformedMessage unless the places of a grant can be stored with it."""
    if not grant.reach:
        return
    if grant.verb != PERMISSION_VERB or grant.effect is not Effect.ALLOW:
        raise _malformed("only an approved permission of a server has a reach")
    if len(grant.reach) > MAX_PLACES:
        raise _malformed(f"the reach of a permission has at most {MAX_PLACES} places")
    for place in grant.reach:
        check_name(place, "a place of a reach")


def extended_grant(grant: Grant, current: Grant | None) -> Grant:
    """Return a grant of a permission that has the places of the current grant too.

    A place that is added without a time of its own expires with the others.
    """
    if current is None or current.effect is not Effect.ALLOW:
        return grant
    ends, now = current.expires_at, grant.granted_at
    if ends is not None and (now is None or ends <= now):
        return grant
    expires_at = grant.expires_at or (current.expires_at if grant.reach else None)
    reach = tuple(dict.fromkeys((*current.reach, *grant.reach)))
    return replace(grant, reach=reach, expires_at=expires_at)


def _check_name(text: str) -> str:
    """Check the name of a server permission or a feature set."""
    if not text or text != text.strip():
        raise _malformed("a permission or a feature set is a name, as network.outbound, or *")
    return _check_stars(text)


def _check_stars(text: str) -> str:
    if text.count("*") > MAX_WILDCARDS:
        raise _malformed(f"{text!r:.80} has more than {MAX_WILDCARDS} stars; write several entries")
    return text


def _malformed(reason: str) -> MalformedMessage:
    return MalformedMessage(reason, INVALID_PARAMS)


class GrantStore(Protocol):
    """Store of grants: at most one for each subject, verb, target and condition."""

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        """Write grants and replace those with the same key. Returns the grants with their ids."""
        ...

    async def extend(self, grant: Grant) -> Grant:
        """Write the grant of a permission. It keeps the places of the grant that it replaces."""
        ...

    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool:
        """Delete a grant, and return whether it existed."""
        ...

    async def get(
        self, subject: str, verb: str, target: str, where: Where = None
    ) -> Grant | None: ...

    async def page(
        self, after: str = "", limit: int = PAGE, subjects: Collection[str] | None = None
    ) -> Sequence[Grant]:
        """Return grants in order of id, beginning after `after`, of all or of some subjects."""
        ...


def checked_grant(grant: Grant) -> Grant:
    """Return a grant with checked fields and its id, which is the same in every store."""
    check_name(grant.subject, "a grant's subject")
    check_name(grant.verb, "a grant's verb")
    check_name(grant.target, "a grant's target")
    where = normalise_condition(grant)
    check_reach(grant)
    return replace(
        grant,
        id=grant_id(grant.subject, grant.verb, grant.target, where),
        where=where,
        source=GrantSource.RECORDS,
        granted_by=clean_words(grant.granted_by),
        justification=clean_words(grant.justification),
        granted_at=to_optional_utc(grant.granted_at),
        expires_at=to_optional_utc(grant.expires_at),
    )


def grant_id(subject: str, verb: str, target: str, where: Where = None) -> str:
    """Derive the id of a grant from its key.

    The id is a digest, because a database index cannot hold three long names.
    """
    # No name contains a NUL, so two different keys never encode to the same bytes.
    named = f"{subject}\0{verb}\0{target}".encode(errors="surrogatepass")
    if where is not None:
        named += b"\0" + conditions.canonical_condition(where)
    return hashlib.sha256(named).hexdigest()[:40]


def condition_text(where: Where) -> str | None:
    """The stored form of a condition."""
    return None if where is None else conditions.canonical_condition(where).decode()


def read_condition(text: str | None) -> Where:
    """Read a stored condition.

    An unreadable condition becomes an empty one, which covers nothing. The grant then allows
    nothing.
    """
    try:
        return None if text is None else decode_document(text)
    except MalformedMessage:
        return {}
