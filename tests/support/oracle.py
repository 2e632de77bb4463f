"""Grant resolution as design §1 says it, with no thought of speed: what the engine is held to."""

import re
from collections.abc import Iterable
from datetime import datetime

from comity.mcp.actors import Actor
from comity.policy.grants import DefaultPolicy, Effect, Grant, StaticRules


def fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


def verb_fits(pattern: str, verb: str) -> bool:
    return pattern in ("*", verb) or (pattern[-2:] == "/*" and fits(pattern, verb))


def target_fits(target: str, server: str, name: str) -> bool:
    of_server, _, of_name = ("*/*" if target == "*" else target).partition("/")
    return fits(of_server, server) and fits(of_name, name)


def level(target: str) -> int:
    server, _, name = ("*/*" if target == "*" else target).partition("/")
    return 0 if "*" in server else 1 if "*" in name else 2


def verdict(
    grants: Iterable[Grant],
    decided: StaticRules,
    actor: Actor,
    asked: tuple[str, str, str, datetime],
) -> Effect:
    verb, server, name, now = asked
    for forbid in decided.guardrails:
        if (
            fits(forbid.subject, actor.party)
            and verb_fits(forbid.verb, verb)
            and target_fits(forbid.target, server, name)
        ):
            return Effect.DENY
    if actor.permissions is not None and not any(
        verb_fits(allowed, verb) and target_fits(target, server, name)
        for allowed, target in actor.permissions
    ):
        return Effect.DENY
    entries = [
        grant
        for grant in (*decided.grants, *grants)
        if actor.party
        and grant.subject in ("*", actor.party)
        and verb_fits(grant.verb, verb)
        and target_fits(grant.target, server, name)
        and (grant.expires_at is None or now < grant.expires_at)
    ]
    if entries:
        most = max(level(grant.target) for grant in entries)
        effects = {grant.effect for grant in entries if level(grant.target) == most}
        return next(each for each in (Effect.DENY, Effect.ASK, Effect.ALLOW) if each in effects)
    policy = decided.policies.get(server, decided.default)
    of_ours = verb == "perm" or verb.split("/")[0] in ("admin", "approval")
    is_open = actor.party and policy is DefaultPolicy.ALLOW and not of_ours
    return Effect.ALLOW if is_open else Effect.DENY
