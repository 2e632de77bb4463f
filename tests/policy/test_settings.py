"""Grants, guardrails, rates and policies of the file, and the place of every mistake in them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from comity.errors import Misconfigured
from comity.policy.grants import Effect, Grant, GrantSource, Guardrail
from comity.policy.limits import LimitRule, Quota
from comity.policy.risk import RequireApproval, Risk, ToolPolicy
from comity.toolkit.resilience import RateLimit
from tests.support.cases import loop_over
from tests.support.writing import from_text, one

GRANTS = """
[policy]
default_policy = "allow"

[[grants]]
subject = "agent:ci"
target = "files"

[[grants]]
subject = "*"
verb = "resources/read"
target = "files/file:///docs/*"
effect = "ask"
expires = 2026-12-31T18:00:00+01:00
reason = "the docs are for everybody"

[[grants]]
subject = "agent:ci"
target = "web__fetch"
effect = "deny"
expires = "2026-12-31T18:00:00Z"

[[grants]]
subject = "server:files"
verb = "perm"
target = "network.outbound"

[[forbid]]
subject = "agent:*"
target = "*/delete_*"
reason = "it is gone then"

[[servers]]
id = "files"
command = "x"
default_policy = "deny"
"""


def of_file(subject: str, verb: str, target: str, effect: Effect = Effect.ALLOW) -> Grant:
    return Grant(subject, verb, target, effect, source=GrantSource.FILE, granted_by="operator")


CONDITIONAL = """
[[grants]]
subject = "agent:ci"
target = "files__read"
where.only = ["path", "n"]
where.paths = { "/path" = { under = "/project" }, "/n" = { in = [1, 2] } }
"""


def test_a_condition_on_arguments_is_read(tmp_path: Path) -> None:
    (grant,) = from_text(tmp_path, CONDITIONAL).grants
    assert grant.where == {
        "paths": {"/path": {"under": "/project"}, "/n": {"in": [1, 2]}},
        "only": ["path", "n"],
    }


@loop_over(
    ("before", "after", "told"),
    [
        ("/project", "/etc", "grants[0].where: the tree '/etc' is too wide"),
        ('"n"]', '"m"]', "grants[0].where: only must name those arguments"),
        ("files__read", "files", "grants[0]: a condition goes with allowing tools/call of one"),
        ('"agent:ci"', '"agent:ci"\neffect = "ask"', "grants[0]: a condition goes with allowing"),
        ('where.only = ["path", "n"]', "where = 3", "grants[0].where: a condition is a table"),
    ],
)
def test_a_condition_that_could_not_hold_is_a_mistake(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    written = CONDITIONAL.replace(before, after)
    with pytest.raises(Misconfigured) as mistakes:
        from_text(tmp_path, written.partition("where.paths")[0] if "= 3" in written else written)
    assert told in str(mistakes.value)


def test_grants_and_guardrails_are_read_in_the_form_in_which_they_are_kept(tmp_path: Path) -> None:
    settings = from_text(tmp_path, GRANTS)
    first, second, third, fourth = settings.grants
    assert first == of_file("agent:ci", "tools/call", "files/*")
    assert second.target == "files/file:///docs/*"
    assert second.effect is Effect.ASK
    assert second.expires_at == datetime(2026, 12, 31, 17, tzinfo=UTC)
    assert second.justification == "the docs are for everybody"
    assert (third.target, third.effect) == ("web/fetch", Effect.DENY)
    assert third.expires_at == datetime(2026, 12, 31, 18, tzinfo=UTC)
    assert fourth == of_file("server:files", "perm", "network.outbound")
    forbidden = Guardrail("agent:*", "tools/call", "*/delete_*", "it is gone then")
    assert settings.forbid == (forbidden,)
    assert settings.policy.default_policy == "allow"
    assert settings.servers[0].default_policy == "deny"


def test_without_a_word_nothing_is_granted_and_everything_needs_a_grant(tmp_path: Path) -> None:
    settings = from_text(tmp_path, '[[servers]]\nid = "a"\ncommand = "x"\n')
    assert (settings.grants, settings.forbid, settings.policy.default_policy) == ((), (), "deny")
    assert settings.servers[0].default_policy == "inherit"


@loop_over(
    ("written", "told"),
    [
        ('[[grants]]\nsubject = "a"', r":1: grants\[0\]: needs its target: the target"),
        ('[[grants]]\ntarget = "a"', r":1: grants\[0\]: needs its subject: the name"),
        (
            '[[grants]]\nsubject = "a*"\ntarget = "x"',
            r":2: grants\[0\].subject: .* must be one principal",
        ),
        (
            '[[grants]]\nsubject = "a"\ntarget = "x/"',
            r":3: grants\[0\].target: .* must be server/tool",
        ),
        (
            '[[grants]]\nsubject = "a"\ntarget = "x"\nverb = "*/list"',
            r":4: grants\[0\].verb: .* must be a method",
        ),
        (
            '[[grants]]\nsubject = "a"\ntarget = "x"\neffect = "maybe"',
            "effect: must be one of: allow, ask, deny",
        ),
        (
            '[[grants]]\nsubject = "a"\ntarget = "x"\nexpires = 2026-12-31T18:00:00',
            "expires: must be a time with its zone",
        ),
        (
            '[[grants]]\nsubject = "a"\ntarget = "x"\nexpires = "tomorrow"',
            "expires: must be a time with its zone",
        ),
        ('[[grants]]\nsubject = "a"\ntarget = "x"\ntool = "y"', "tool: there is no such key"),
        ('[[forbid]]\nsubject = "a"\ntarget = "x"\neffect = "allow"', "effect: there is no such"),
        ('grants = "all"', "grants: must be a list"),
        ("grants = [1]", r"grants\[0\]: must be a table"),
        ('[policy]\ndefault_policy = "open"', "policy.default_policy: must be one of: deny"),
    ],
)
def test_a_mistake_in_a_grant_is_named(tmp_path: Path, written: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, written)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    written = '[[grants]]\nsubject = ""\ntarget = "/"\n[[grants]]\nverb = "!"\n'
    with pytest.raises(Misconfigured) as refused:
        from_text(tmp_path, written)
    told = str(refused.value)
    for place in ("[0].subject", "[0].target", "[1]: needs its subject", "[1].verb"):
        assert place in told


def test_a_file_is_no_place_for_a_hundred_thousand_grants(tmp_path: Path) -> None:
    entry = '{ subject = "a", target = "x" }'
    with pytest.raises(Misconfigured, match="more than 10000"):
        from_text(tmp_path, f"grants = [{', '.join([entry] * 10_001)}]")


POLICIES = """
[policy]
require_approval = "dangerous"
on_suspicious_definition = "strict"
fallback_validators = "on"
trust_definitions = "approve"
approval_policy = "interactive"

[[servers]]
id = "files"
command = "x"

[servers.policy]
approval_policy = "config_only"
permissions = ["shell", "com.example.own"]
on_denied = "reject"
trust = "experimental"
risk = "moderate"
trust_definitions = "off"

[servers.tools.run]
risk = "dangerous"
validators = ["sandbox", "network_restricted"]
arguments = { line = "command", where = "url" }
require_approval = "always"
cost = 5
idempotent = true
max_retries = 2
fallback_tool = "files__list"

[servers.tools."drop_*"]
disabled = true
"""


def test_what_was_decided_of_a_server_and_its_tools_is_read(tmp_path: Path) -> None:
    settings = from_text(tmp_path, POLICIES)
    assert (settings.policy.require_approval, settings.policy.on_suspicious_definition) == (
        "dangerous",
        "strict",
    )
    assert (settings.policy.fallback_validators, settings.policy.trust_definitions) == (
        "on",
        "approve",
    )
    assert settings.policy.approval_policy == "interactive"
    (server,) = settings.servers
    assert server.policy == {
        "approval_policy": "config_only",
        "permissions": {"shell.execute": (), "com.example.own": ()},
        "on_denied": "reject",
        "trust": "sandboxed",
        "risk": "moderate",
        "trust_definitions": "off",
    }
    assert server.tools == {
        "run": ToolPolicy(
            Risk.DANGEROUS,
            ("sandbox", "network_restricted"),
            {"line": "command", "where": "url"},
            RequireApproval.ALWAYS,
            cost=5,
            idempotent=True,
            max_retries=2,
            fallback_tool="files__list",
        ),
        "drop_*": ToolPolicy(disabled=True),
    }


SERVER_WITH_REACH = """
[[servers]]
id = "files"
command = "files"

[servers.policy.permissions]
"""


def test_a_permission_names_the_places_that_it_is_for(tmp_path: Path) -> None:
    text = SERVER_WITH_REACH + 'filesystem = ["/srv"]\n"network.outbound" = ["a.example:443"]\n'
    (server,) = from_text(tmp_path, text).servers
    assert server.policy["permissions"] == {
        "filesystem.read": ("/srv",),
        "filesystem.write": ("/srv",),
        "network.outbound": ("a.example:443",),
    }


@loop_over(
    ("written", "told"),
    [
        ('"filesystem.read" = [""]', "must be a folder below /"),
        ('"filesystem.read" = ["/"]', "must be a folder below /"),
        ('"filesystem.write" = ["//"]', "must be a folder below /"),
        ('"filesystem.read" = "/srv"', "must be a list"),
    ],
)
def test_a_place_that_is_no_folder_is_a_mistake(tmp_path: Path, written: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, SERVER_WITH_REACH + written)


def test_the_list_of_tools_in_a_clients_own_file_is_none_of_ours(tmp_path: Path) -> None:
    assert one(tmp_path, {"command": "x", "tools": ["*"]}).tools == {}


@loop_over(
    ("entry", "told"),
    [
        ({"policy": {"trust": "best"}}, "policy.trust: must be one of"),
        ({"policy": {"permission": []}}, "did you mean 'permissions'"),
        ({"policy": {"permissions": ["a b"]}}, r"permissions\[0\]: must be written as"),
        ({"policy": {"approval_policy": "yes"}}, "approval_policy: must be one of: interactive"),
        ({"policy": {"risk": "low"}}, "risk: must be one of: safe, moderate, dangerous"),
        ({"policy": []}, "policy: must be a table"),
        (
            {"tools": {"run": {"require_approval": "sometimes"}}},
            "tools.run.require_approval: must be one of",
        ),
        ({"tools": {"run": {"arguments": {"a": "secret"}}}}, "arguments.a: must be one of"),
        ({"tools": {"run": {"retries": 2}}}, "did you mean 'max_retries'"),
        ({"tools": {"run": {"max_retries": 100}}}, "max_retries: must be between 0 and 10"),
        ({"tools": {"run": True}}, "tools.run: must be a table"),
    ],
)
def test_a_mistake_in_what_was_decided_is_named(
    tmp_path: Path, entry: dict[str, object], told: str
) -> None:
    with pytest.raises(Misconfigured, match=told):
        one(tmp_path, {"command": "x", **entry})


def read(tmp_path: Path, text: str) -> tuple[LimitRule, ...]:
    return from_text(tmp_path, f"[[limits.rates]]\n{text}").limits.rates


ALL_OF_A_LIMIT = """subject = "agent:*"
target = "files/*"
per = ["tool", "principal"]
rate = "10/s"
burst = 3
quota = "500000/mo"
"""


@loop_over(
    ("text", "expected"),
    [
        ('rate = "60/m"', LimitRule(rate=RateLimit(60, 60.0, 60))),
        ('per = []\nquota = "1/d"', LimitRule(per=(), quota=Quota(1, "day"))),
        (
            ALL_OF_A_LIMIT,
            LimitRule(
                "agent:*",
                "files/*",
                ("principal", "tool"),
                RateLimit(10, 1.0, 3),
                Quota(500_000, "month"),
            ),
        ),
    ],
)
def test_limit_of_calls_is_read(tmp_path: Path, text: str, expected: LimitRule) -> None:
    assert read(tmp_path, text) == (expected,)


@loop_over(
    ("text", "told"),
    [
        ('subject = "agent:ci"', "limits nothing; give it a rate"),
        ('rate = "60"', "must be a number in a time, as 60/m"),
        ('rate = "0/m"', "must be a number in a time, as 60/m"),
        ('quota = "5/h"', "must be a number in a time, as 10000/d"),
        ('quota = "5/d"\nburst = 2', "needs a rate"),
        ('rate = "1/s"\nburst = 0', "between 1 and"),
        ('rate = "1/s"\nper = ["user"]', "must be one of: principal, key, server, tool"),
        ('rate = "1/s"\nper = ["key", "key"]', "has a duplicate"),
        ('rate = "1/s"\ntarget = "a/b/c"', "must be server/tool"),
        ('rate = "1/s"\ntarget = "files"', "must be server/tool"),
        ('rate = "1/s"\nsubject = ""', "must be a principal"),
        ('rates = "1/s"', "did you mean 'rate'"),
    ],
)
def test_a_mistake_about_a_limit_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        read(tmp_path, text)
