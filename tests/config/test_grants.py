"""Grants and guardrails of the file are read, and every mistake in them is named by its line."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from comity.wire.errors import Misconfigured
from comity.wire.grants import Effect, Forbid, Grant, Source
from tests.config.writing import from_text

WRITTEN = """
[policy]
default_policy = "opt-out"

[[grants]]
subject = "agent:ci"
target = "files"

[[grants]]
subject = "*"
verb = "resources/read"
target = "files/file:///docs/*"
effect = "ask"
expires = 2026-12-31T18:00:00+01:00
why = "the docs are for everybody"

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
why = "it is gone then"

[[servers]]
id = "files"
command = "x"
default_policy = "opt-in"
"""


def of_file(subject: str, verb: str, target: str, effect: Effect = Effect.ALLOW) -> Grant:
    return Grant(subject, verb, target, effect, source=Source.FILE, granted_by="operator")


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


@pytest.mark.parametrize(
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
    settings = from_text(tmp_path, WRITTEN)
    first, second, third, fourth = settings.grants
    assert first == of_file("agent:ci", "tools/call", "files/*")
    assert second.target == "files/file:///docs/*"
    assert second.effect is Effect.ASK
    assert second.expires_at == datetime(2026, 12, 31, 17, tzinfo=UTC)
    assert second.justification == "the docs are for everybody"
    assert (third.target, third.effect) == ("web/fetch", Effect.DENY)
    assert third.expires_at == datetime(2026, 12, 31, 18, tzinfo=UTC)
    assert fourth == of_file("server:files", "perm", "network.outbound")
    forbidden = Forbid("agent:*", "tools/call", "*/delete_*", "it is gone then")
    assert settings.forbid == (forbidden,)
    assert settings.default_policy == "opt-out"
    assert settings.servers[0].default_policy == "opt-in"


def test_without_a_word_nothing_is_granted_and_everything_needs_a_grant(tmp_path: Path) -> None:
    settings = from_text(tmp_path, '[[servers]]\nid = "a"\ncommand = "x"\n')
    assert (settings.grants, settings.forbid, settings.default_policy) == ((), (), "opt-in")
    assert settings.servers[0].default_policy == "inherit"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('[[grants]]\nsubject = "a"', r":1: grants\[0\]: needs its target: with what"),
        ('[[grants]]\ntarget = "a"', r":1: grants\[0\]: needs its subject: who"),
        (
            '[[grants]]\nsubject = "a*"\ntarget = "x"',
            r":2: grants\[0\].subject: .* must be one party",
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
        ('[policy]\ndefault_policy = "open"', "policy.default_policy: must be one of: opt-in"),
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
