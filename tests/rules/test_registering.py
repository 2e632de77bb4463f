"""What may be registered: which commands, ids and URLs, by whom, and how many. (D-30, D-31)"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.access import CREDENTIAL, GRANTED, Judgement
from comity.rules.registering import (
    Allowed,
    Fit,
    command_fit,
    entitlement,
    id_problem,
    is_script,
    pattern_problem,
    problem,
    room_problem,
    shown,
    summary,
    url_problem,
)
from comity.wire.grants import ADMIN_WRITE, Effect, Forbid, Grant
from comity.wire.parties import NOBODY, Actor, PartyKind
from comity.wire.registration import Wanted

PATTERNS = ("python", "uvx mcp-server-*", "python3 -m weather", "tools --port ...", "/opt/one/run")


@pytest.mark.parametrize(
    ("line", "fit"),
    [
        ("python scripts/a.py", Fit.SCRIPT),
        ("uvx mcp-server-time", Fit.NAMED),
        ("python3 -m weather", Fit.NAMED),
        ("tools --port 80 --anything", Fit.NAMED),
        ("tools --port", Fit.NAMED),
        ("/opt/one/run", Fit.NAMED),
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
def test_a_command_is_held_against_the_operators_words(line: str, fit: Fit | None) -> None:
    assert command_fit(tuple(line.split()), PATTERNS) is fit


@pytest.mark.parametrize("sign", ["\0", "\n", "\r", "\x1b", "\x7f", "\u2028", "\ud800"])
def test_a_sign_that_cannot_be_seen_fits_nothing(sign: str) -> None:
    assert command_fit(("tools", "--port", f"a{sign}b"), PATTERNS) is None


def test_an_open_word_of_an_option_may_be_one() -> None:
    assert command_fit(("x", "--port=1"), ("x --port=*",)) is Fit.NAMED
    assert command_fit(("x", "--port=../1"), ("x --port=*",)) is None


@pytest.mark.parametrize(
    "pattern",
    [
        *("", " ", "*", "* -x", "... x", "-c", "a ... b", "py*"),
        *("sh", "bash -c x", "/bin/sh x", "env python", "sudo x", "xargs x", "ssh host", "BASH x"),
        *("cmd.exe /c x", "python ...", "python3.12 *", "node ...", "/usr/bin/perl *"),
    ],
)
def test_a_pattern_that_would_open_everything_is_no_pattern(pattern: str) -> None:
    assert pattern_problem(pattern) is not None


@pytest.mark.parametrize("pattern", [*PATTERNS, "node server.js", "uvx ...", "python"])
def test_a_pattern_that_names_what_runs_is_one(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@given(st.text(max_size=30))
def test_a_script_never_leads_up_or_away(word: str) -> None:
    if is_script(word):
        assert not word.startswith(("/", "-"))
        assert ".." not in word.split("/")
        assert word.isascii()


TAKEN = ("files", "dynamic.stats", "Dynamic.Other")


@pytest.mark.parametrize("id", ["dynamic.mine", "dynamic.a_b-c.d1", "dynamic.1"])
def test_an_id_of_the_namespace_is_free(id: str) -> None:
    assert id_problem(id, "dynamic", TAKEN) is None


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


def test_nothing_may_be_registered_until_something_is_named() -> None:
    assert problem(Wanted("dynamic.a", "python", ("a.py",)), Allowed()) is not None
    assert problem(Wanted("dynamic.a", code="x"), Allowed()) is not None
    assert problem(Wanted("dynamic.a", "python", ("a.py",)), Allowed(("python",))) is None
    assert problem(Wanted("dynamic.a", code="x"), Allowed(takes_code=True)) is None
    assert problem(Wanted("dynamic.a", url="https://e.example.org/"), Allowed()) is None
    assert problem(Wanted("dynamic.a", url="http://10.0.0.1/"), Allowed()) is not None


def test_there_is_room_for_so_many_of_all_and_of_each() -> None:
    allowed = Allowed(most=3, most_of_one=2)
    assert room_problem("agent:a", ["agent:a"], allowed) is None
    assert "2" in (room_problem("agent:a", ["agent:a"] * 2, allowed) or "")
    assert room_problem("agent:b", ["agent:a"] * 2, allowed) is None
    assert "3" in (room_problem("agent:b", ["agent:a", "agent:c", "agent:d"], allowed) or "")


AGENT = Actor("agent:a")
ENTRY = Grant("agent:a", ADMIN_WRITE, "*", Effect.DENY)


@pytest.mark.parametrize(
    ("actor", "judged", "effect"),
    [
        (AGENT, Judgement(Effect.ALLOW, GRANTED, ENTRY), Effect.ALLOW),
        (AGENT, Judgement(Effect.ASK, GRANTED, ENTRY), Effect.ASK),
        (AGENT, Judgement(Effect.DENY, "default opt-in"), Effect.ASK),
        (AGENT, Judgement(Effect.DENY, GRANTED, ENTRY), Effect.DENY),
        (AGENT, Judgement(Effect.DENY, CREDENTIAL), Effect.DENY),
        (AGENT, Judgement(Effect.DENY, "x", forbid=Forbid("*", "*", "*")), Effect.DENY),
        (Actor("server:x", PartyKind.SERVER), Judgement(Effect.ALLOW, GRANTED), Effect.DENY),
        (NOBODY, Judgement(Effect.ALLOW, GRANTED), Effect.DENY),
    ],
)
def test_without_a_grant_somebody_is_asked_but_not_against_one(
    actor: Actor, judged: Judgement, effect: Effect
) -> None:
    assert entitlement(actor, judged) is effect


def test_who_decides_reads_all_that_would_run() -> None:
    command = Wanted("dynamic.a", "uvx", ("x",), permissions=("network.outbound",))
    assert summary(command) == "it runs: uvx x"
    assert shown(command)["command"] == ["uvx", "x"]
    assert shown(command)["permissions_required"] == ["network.outbound"]
    assert shown(Wanted("dynamic.a", code="def f(): ..."))["code"] == "def f(): ..."
    assert "https://e.org/" in summary(Wanted("dynamic.a", url="https://e.org/"))
    assert "code" in summary(Wanted("dynamic.a", code="x"))
    assert shown(Wanted("dynamic.a", url="https://e.org/"))["url"] == "https://e.org/"
