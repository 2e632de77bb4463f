"""What a server may do itself: the names of permissions, and how each is decided. (MGP §3)

Rule 1: what an operator wrote down decides: a guardrail, a grant to `server:<id>`, the file.
Rule 2: without a word from an operator the server's policy decides; a name that nobody knows is
        never approved by it. (D-09)
Rule 3: nothing that a server says approves anything. (D-08, S1)
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from comity.rules.access import Judgement
from comity.wire.grants import PERMISSION, Effect
from comity.wire.security import Decision, Risk

STANDARD: Final[Mapping[str, Risk]] = {
    "filesystem.read": Risk.MODERATE,
    "filesystem.write": Risk.DANGEROUS,
    "network.outbound": Risk.MODERATE,
    "network.listen": Risk.DANGEROUS,
    "shell.execute": Risk.DANGEROUS,
    "code_execution": Risk.DANGEROUS,
    "memory.read": Risk.SAFE,
    "memory.write": Risk.MODERATE,
    "system.info": Risk.SAFE,
    "camera": Risk.DANGEROUS,
    "notification": Risk.SAFE,
}
MEANINGS: Final[Mapping[str, str]] = {
    "filesystem.read": "read files of the machine that it runs on",
    "filesystem.write": "write and delete files of the machine that it runs on",
    "network.outbound": "reach other machines over the network",
    "network.listen": "be reached from other machines over the network",
    "shell.execute": "run commands in a shell",
    "code_execution": "run code that it is given",
    "memory.read": "read what was remembered for later",
    "memory.write": "change what is remembered for later",
    "system.info": "learn about the machine that it runs on",
    "camera": "see through a camera",
    "notification": "show notices to people",
}
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "shell": ("shell.execute",),
    "network": ("network.outbound",),
    "filesystem": ("filesystem.read", "filesystem.write"),
}
"""Short names that MGP's own examples use for what its table calls otherwise. (D-09)"""

_REVERSE_DOMAIN: Final = re.compile(r"[a-z][a-z0-9-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*){2,}")
_TAKEN: Final = frozenset(name.partition(".")[0] for name in STANDARD)
_UNWRITABLE: Final = re.compile(r"[^\x21-\x7e]|[*/]")
SUBJECT: Final = "server:"
"""How the subject of a server's permissions begins."""


class ApprovalPolicy(StrEnum):
    """What becomes of a permission that no operator said anything of. (MGP §3.3)"""

    INTERACTIVE = "interactive"
    AUTO_APPROVE = "auto_approve"
    DENY_ALL = "deny_all"
    CONFIG_ONLY = "config_only"


@dataclass(frozen=True, slots=True)
class Decided:
    """How one permission stands, by whose word, and until when."""

    decision: Decision
    by: str
    because: str
    expires_at: datetime | None = None


def full_names(names: Iterable[str]) -> tuple[str, ...]:
    """The permissions meant: each alias by what it stands for, and none twice."""
    return tuple(dict.fromkeys(each for name in names for each in ALIASES.get(name, (name,))))


def is_custom(name: str) -> bool:
    """Whether it is a permission of somebody's own, by a domain of theirs. (MGP §3.2)"""
    plain = _REVERSE_DOMAIN.fullmatch(name) is not None
    return plain and name.partition(".")[0] not in _TAKEN


def is_known(name: str) -> bool:
    return name in STANDARD or is_custom(name)


def is_writable(name: str) -> bool:
    """Whether it can stand as the target of a grant, and means itself alone there."""
    return 0 < len(name) <= 200 and not _UNWRITABLE.search(name)


def risk_of(name: str) -> Risk:
    """What a permission is worth to an attacker; one that nobody knows counts as the worst."""
    return STANDARD.get(name, Risk.DANGEROUS)


def meaning_of(name: str) -> str:
    """What a server could do with a permission, in words for whoever decides."""
    own = "do what only its own documentation explains" if is_custom(name) else ""
    return MEANINGS.get(name, own or "do what nobody here knows by this name")


def decide(
    name: str, judged: Judgement | None, policy: ApprovalPolicy, configured: Collection[str]
) -> Decided:
    """How a permission stands, given what is written of it and the policy for the rest."""
    written = None if judged is None else _written(judged)
    if written is not None:
        return written
    if name in configured:
        return Decided(Decision.APPROVED, "configuration", "the configuration lists it")
    if policy is ApprovalPolicy.AUTO_APPROVE and is_known(name) and is_writable(name):
        return Decided(Decision.APPROVED, f"policy {policy}", "its server's policy approves")
    if policy in (ApprovalPolicy.AUTO_APPROVE, ApprovalPolicy.INTERACTIVE):
        because = "an operator has to decide" if is_known(name) else "nobody knows this name"
        return Decided(Decision.DEFERRED, f"policy {policy}", because)
    return Decided(Decision.DENIED, f"policy {policy}", "no operator has approved it")


def _written(judged: Judgement) -> Decided | None:
    """What an operator wrote of a permission, if anything."""
    if judged.forbid is not None:
        return Decided(Decision.DENIED, "guardrail", judged.forbid.why or "a guardrail forbids it")
    grant = judged.grant
    if grant is None:
        return None
    if judged.effect is Effect.ALLOW and grant.verb != PERMISSION:
        # Whoever let somebody do everything spoke of calls, and not of what servers do.
        return None
    decision = {
        Effect.ALLOW: Decision.APPROVED,
        Effect.ASK: Decision.DEFERRED,
        Effect.DENY: Decision.DENIED,
    }[judged.effect]
    by = grant.granted_by or str(grant.source)
    return Decided(decision, by, grant.justification or "an operator said so", grant.expires_at)
