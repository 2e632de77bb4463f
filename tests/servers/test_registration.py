"""Registration of servers at run time: requests, rules, settings and names."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import INVALID_PARAMS, MalformedMessage, Misconfigured
from comity.mcp import jsonrpc
from comity.mcp.actors import ADMIN_WRITE, ANONYMOUS, Actor, PrincipalKind
from comity.policy.grants import CREDENTIAL_SOURCE, GRANT_SOURCE, Decision, Effect, Grant, Guardrail
from comity.servers.registration import rules
from comity.servers.registration.rules import (
    MAX_CODE_BYTES,
    CommandMatch,
    RegistrationRequest,
    decide_entitlement,
    decode_deregistration,
    decode_registration,
    describe_request,
    id_problem,
    is_script,
    limit_problem,
    match_command,
    pattern_problem,
    refusal_reason,
    summarize_request,
    url_problem,
)
from comity.servers.registration.service import MAX_NAMES_PER_PRINCIPAL, ServerNameRegistry
from tests.support.cases import loop_over
from tests.support.inline_store import inline_records
from tests.support.writing import from_text

EXAMPLE: dict[str, Any] = {
    "id": "night.almanac",
    "command": "python",
    "args": ["almanac.py"],
    "transport": "stdio",
    "mgp": {
        "extensions": ["security"],
        "permissions_required": ["system.info"],
        "trust_level": "sandboxed",
    },
    "created_by": "agent.night_watch",
    "justification": "Tides are not told by any server here",
}


def raw(said: dict[str, Any]) -> dict[str, Any]:
    return {name: jsonrpc.to_raw(value) for name, value in said.items()}


def test_a_whole_registration_is_read() -> None:
    found = decode_registration(raw(EXAMPLE))
    assert found.command_line == ("python", "almanac.py")
    assert (found.transport, found.id) == ("stdio", "night.almanac")
    assert (found.claimed_by, found.claimed_trust) == ("agent.night_watch", "sandboxed")
    assert (found.permissions, found.extensions) == (("system.info",), ("security",))


def test_a_url_is_http_and_code_is_a_program() -> None:
    url = "https://tools.example.org/mcp"
    assert (
        decode_registration(raw({"id": "a", "transport": "http", "url": url})).transport == "http"
    )
    assert decode_registration(raw({"id": "a", "code": "def f(): ..."})).transport == "stdio"


def test_what_belongs_to_every_request_is_no_part_of_the_wish() -> None:
    said = {"id": "a", "command": "x", "_meta": {"progressToken": 1}}
    assert decode_registration(raw(said)) == RegistrationRequest("a", "x")


@loop_over(
    "said",
    [
        {},
        {"id": "a"},
        {"id": "", "command": "x"},
        {"id": "a" * 65, "command": "x"},
        {"id": 1, "command": "x"},
        {"id": "a", "command": ["x"]},
        {"id": "a", "command": "x", "code": "y"},
        {"id": "a", "command": "x", "url": "https://e.org"},
        {"id": "a", "command": "x", "transport": "http"},
        {"id": "a", "url": "https://e.org"},
        {"id": "a", "transport": "sse", "url": "https://e.org"},
        {"id": "a", "args": ["y"], "code": "x"},
        {"id": "a", "command": "x", "args": "y"},
        {"id": "a", "command": "x", "args": [1]},
        {"id": "a", "command": "x", "args": ["y"] * 65},
        {"id": "a", "command": "x", "args": ["y" * 2049]},
        {"id": "a", "command": "x", "args": ["y" * 2048] * 9},
        {"id": "a", "code": "x" * (MAX_CODE_BYTES + 1)},
        {"id": "a", "command": "x", "env": {"LD_PRELOAD": "/tmp/x.so"}},
        {"id": "a", "command": "x", "cwd": "/"},
        {"id": "a", "command": "x", "mgp": {"trust": "trusted"}},
        {"id": "a", "command": "x", "mgp": {"permissions_required": ["p"] * 65}},
        {"id": "a", "command": "x", "justification": "y" * 2001},
    ],
    ids=lambda said: str(said)[:60],
)
def test_anything_else_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as refused:
        decode_registration(raw(said))
    assert refused.value.fault is INVALID_PARAMS
    assert len(str(refused.value)) <= 300


def test_what_is_to_go_is_named_with_a_reason() -> None:
    found = decode_deregistration(raw({"id": "night.almanac", "reason": "no_longer_needed"}))
    assert (found.id, found.reason) == ("night.almanac", "no_longer_needed")
    for said in ({}, {"id": ""}, {"id": "a", "force": True}, {"id": "a", "reason": 1}):
        with pytest.raises(MalformedMessage):
            decode_deregistration(raw(said))


def test_what_is_kept_is_read_again_without_what_was_only_claimed() -> None:
    wish = decode_registration(raw(EXAMPLE))
    again = rules.request_of_entry(wish.id, rules.to_entry(wish))
    assert again.command_line == wish.command_line
    assert again.permissions == wish.permissions
    assert again.claimed_by == again.claimed_trust == ""
    with pytest.raises(MalformedMessage):
        rules.request_of_entry("a", {"args": 1})


COMMANDS = ("python", "uvx mcp-server-*", "python3 -m weather", "tools --port ...", "/opt/one/run")


@loop_over(
    ("line", "fit"),
    [
        ("python scripts/a.py", CommandMatch.SCRIPT),
        ("uvx mcp-server-time", CommandMatch.NAMED),
        ("python3 -m weather", CommandMatch.NAMED),
        ("tools --port 80 --anything", CommandMatch.NAMED),
        ("tools --port", CommandMatch.NAMED),
        ("/opt/one/run", CommandMatch.NAMED),
        ("python", None),
        ("python -c print(1)", None),
        ("python -m http.server", None),
        ("python a.py b", None),
        ("python -i a.py", None),
        ("python /etc/a.py", None),
        ("python ../a.py", None),
        ("python a/../../b.py", None),
        ("python a.pyc", None),
        ("python a.py;id", None),
        ("python $(id).py", None),
        ("python3 -m", None),
        ("python3 -m weather --more", None),
        ("python3 -m os", None),
        ("uvx mcp-server-time extra", None),
        ("uvx --from=evil", None),
        ("uvx evil", None),
        ("uvx mcp-server-../x", None),
        ("uvx mcp-server-x@git+https://evil.example/x", None),
        ("uvx mcp-server-x==1", None),
        ("/tmp/python scripts/a.py", None),
        ("./python scripts/a.py", None),
        ("Python scripts/a.py", None),
        ("python;id scripts/a.py", None),
        ("run", None),
        ("", None),
        ("sh -c id", None),
    ],
)
def test_a_command_is_held_against_the_operators_words(line: str, fit: CommandMatch | None) -> None:
    assert match_command(tuple(line.split()), COMMANDS) is fit


@loop_over("sign", ["\0", "\n", "\r", "\x1b", "\x7f", "\u2028", "\ud800"])
def test_a_sign_that_cannot_be_seen_fits_nothing(sign: str) -> None:
    assert match_command(("tools", "--port", f"a{sign}b"), COMMANDS) is None


def test_an_open_word_of_an_option_may_be_one() -> None:
    assert match_command(("x", "--port=1"), ("x --port=*",)) is CommandMatch.NAMED
    assert match_command(("x", "--port=../1"), ("x --port=*",)) is None


@loop_over(
    "pattern",
    [
        *("", " ", "*", "* -x", "... x", "-c", "a ... b", "py*"),
        *("sh", "bash -c x", "/bin/sh x", "env python", "sudo x", "xargs x", "ssh host", "BASH x"),
        *("cmd.exe /c x", "python ...", "python3.12 *", "node ...", "/usr/bin/perl *"),
    ],
)
def test_a_pattern_that_would_open_everything_is_no_pattern(pattern: str) -> None:
    assert pattern_problem(pattern) is not None


@loop_over("pattern", [*COMMANDS, "node server.js", "uvx ...", "python"])
def test_a_pattern_that_names_what_runs_is_one(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@given(st.text(max_size=30))
def test_a_script_never_leads_up_or_away(word: str) -> None:
    if is_script(word):
        assert not word.startswith(("/", "-"))
        assert ".." not in word.split("/")
        assert word.isascii()


TAKEN = ("files", "dynamic.stats", "Dynamic.Other")


@loop_over("id", ["dynamic.mine", "dynamic.a_b-c.d1", "dynamic.1"])
def test_an_id_of_the_namespace_is_free(id: str) -> None:
    assert id_problem(id, "dynamic", TAKEN) is None


@loop_over(
    "id",
    [
        *("files", "mine", "dynamic", "dynamic.", ".mine", "dynamicx.mine", "system.gateway"),
        *("dynamic.stats", "dynamic.Stats", "dynamic.STATS", "dynamic.st\u0430ts", "dynamic.5tats"),
        *("dynamic.other", "dynamic-stats", "dynamic._x", "dynamic.x_", "dynamic.a__b"),
        *("dynamic.a/b", "dynamic.a b", "dynamic.*", "dynamic.a\n", "dynamic.\u202ex"),
        *("dynamic..a", "dynamic.../a", "\uff44ynamic.mine"),
    ],
)
def test_an_id_that_is_none_or_looks_like_another_is_refused(id: str) -> None:
    assert id_problem(id, "dynamic", TAKEN) is not None


@loop_over(
    "url",
    [
        *("http://127.0.0.1/mcp", "http://localhost/", "http://[::1]/", "http://169.254.169.254/"),
        *("http://2130706433/", "http://0x7f.1/", "http://10.0.0.8/", "http://metadata/"),
        *("ftp://example.org/", "https://u:p@example.org/", "https:///mcp", "https://e.org:0/"),
        *("https://example.org/#x", "https://exa mple.org/", "https://example.org\\@10.0.0.1/"),
        *("file:///etc/passwd", "https://example.org:x/", "https://127.0.0.1.nip.io/", "//e.org"),
        "https://ex\u0430mple.org/",
    ],
)
def test_a_url_that_leads_inside_or_is_not_plain_is_refused(url: str) -> None:
    assert url_problem(url, frozenset())[0] is not None


def test_a_public_url_has_a_name_to_look_up_and_a_named_host_has_none() -> None:
    assert url_problem("https://tools.example.org/mcp", frozenset()) == (None, "tools.example.org")
    assert url_problem("http://10.0.0.8:80/mcp", frozenset({"10.0.0.8"})) == (None, "")


def why_not(wish: RegistrationRequest, *commands: str, takes_code: bool = False) -> str | None:
    return refusal_reason(wish, commands, frozenset(), takes_code=takes_code)


def test_nothing_may_be_registered_until_something_is_named() -> None:
    script = RegistrationRequest("dynamic.a", "python", ("a.py",))
    code = RegistrationRequest("dynamic.a", code="x")
    public = RegistrationRequest("dynamic.a", url="https://e.example.org/")
    private = RegistrationRequest("dynamic.a", url="http://10.0.0.1/")
    assert why_not(script) is not None
    assert why_not(code) is not None
    assert why_not(script, "python") is None
    assert why_not(code, takes_code=True) is None
    assert why_not(public) is None
    assert why_not(private) is not None


def test_there_is_room_for_so_many_of_all_and_of_each() -> None:
    allowed = (3, 2)
    assert limit_problem("agent:a", ["agent:a"], *allowed) is None
    assert "2" in (limit_problem("agent:a", ["agent:a"] * 2, *allowed) or "")
    assert limit_problem("agent:b", ["agent:a"] * 2, *allowed) is None
    assert "3" in (limit_problem("agent:b", ["agent:a", "agent:c", "agent:d"], *allowed) or "")


AGENT = Actor("agent:a")

ENTRY = Grant("agent:a", ADMIN_WRITE, "*", Effect.DENY)


@loop_over(
    ("actor", "judged", "effect"),
    [
        (AGENT, Decision(Effect.ALLOW, GRANT_SOURCE, ENTRY), Effect.ALLOW),
        (AGENT, Decision(Effect.ASK, GRANT_SOURCE, ENTRY), Effect.ASK),
        (AGENT, Decision(Effect.DENY, "default deny"), Effect.ASK),
        (AGENT, Decision(Effect.DENY, GRANT_SOURCE, ENTRY), Effect.DENY),
        (AGENT, Decision(Effect.DENY, CREDENTIAL_SOURCE), Effect.DENY),
        (AGENT, Decision(Effect.DENY, "x", guardrail=Guardrail("*", "*", "*")), Effect.DENY),
        (
            Actor("server:x", PrincipalKind.SERVER),
            Decision(Effect.ALLOW, GRANT_SOURCE),
            Effect.DENY,
        ),
        (ANONYMOUS, Decision(Effect.ALLOW, GRANT_SOURCE), Effect.DENY),
    ],
)
def test_without_a_grant_somebody_is_asked_but_not_against_one(
    actor: Actor, judged: Decision, effect: Effect
) -> None:
    assert decide_entitlement(actor, judged) is effect


def test_description_of_a_request_shows_all_that_would_run() -> None:
    command = RegistrationRequest("dynamic.a", "uvx", ("x",), permissions=("network.outbound",))
    code = RegistrationRequest("dynamic.a", code="def f(): ...")
    url = RegistrationRequest("dynamic.a", url="https://e.org/")
    assert summarize_request(command) == "it runs: uvx x"
    assert describe_request(command)["command"] == ["uvx", "x"]
    assert describe_request(command)["permissions_required"] == ["network.outbound"]
    assert "code" in summarize_request(code)
    assert describe_request(code)["code"] == "def f(): ..."
    assert "https://e.org/" in summarize_request(url)
    assert describe_request(url)["url"] == "https://e.org/"


class Ticking:
    """A clock of which every look is a second later."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


async def test_a_name_outlives_its_server_and_who_reads_anew_knows_it() -> None:
    records = inline_records().registrations
    names = ServerNameRegistry(records, Ticking())
    await names.reserve(RegistrationRequest("dynamic.a", "x"), "agent:a", is_kept=False)
    await names.mark_ended("dynamic.a", "agent:a")
    again = ServerNameRegistry(records)
    assert not again.is_loaded
    (found,) = await again.load()
    assert (found.entry, again.owners) == ({}, {"dynamic.a": "agent:a"})
    await again.release("dynamic.a")
    assert await records.all() == []


async def test_whoever_takes_many_names_loses_its_own_oldest_and_nobody_elses() -> None:
    names = ServerNameRegistry(inline_records().registrations, Ticking())
    await names.reserve(RegistrationRequest("dynamic.first", "x"), "agent:quiet", is_kept=False)
    for number in range(MAX_NAMES_PER_PRINCIPAL + 3):
        await names.reserve(
            RegistrationRequest(f"dynamic.n{number}", "x"), "agent:busy", is_kept=False
        )
    own = [id for id, owner in names.owners.items() if owner == "agent:busy"]
    assert own == [f"dynamic.n{number}" for number in range(3, MAX_NAMES_PER_PRINCIPAL + 3)]
    assert names.owners["dynamic.first"] == "agent:quiet"
    await names.reload()
    assert len(names.owners) == MAX_NAMES_PER_PRINCIPAL + 1


def test_what_may_be_registered_is_read_word_by_word(tmp_path: Path) -> None:
    text = """
    [registration]
    commands = ["python", "uvx mcp-server-*"]
    folders = ["/srv/scripts", "~/scripts"]
    hosts = ["10.0.0.8", ".tools.example.org"]
    namespace = "made"
    lifetime = "deregistered"
    persist = true
    """
    found = from_text(tmp_path, text)
    assert found.registration.commands == ("python", "uvx mcp-server-*")
    assert found.registration.folders == ("/srv/scripts", "~/scripts")
    assert (found.registration.namespace, found.registration.lifetime) == ("made", "deregistered")
    assert found.registration.persist
    assert found.registration.sandbox


@loop_over(
    ("written", "told"),
    [
        ('commands = ["bash -c x"]', "bash"),
        ('commands = ["python ..."]', "every argument"),
        ('commands = ["*"]', "name of a program"),
        ('commands = "python"', "commands"),
        ('folders = ["scripts"]', "a folder"),
        ('namespace = "My.Own"', "small letters"),
        ('lifetime = "for ever"', "session"),
        ("max_servers = 0", "1"),
    ],
)
def test_what_would_open_too_much_is_told_at_the_start(
    tmp_path: Path, written: str, told: str
) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, f"[registration]\n{written}")
