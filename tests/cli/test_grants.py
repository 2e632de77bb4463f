"""`comity grants`: in a store alone, and at a gateway that runs."""

from pathlib import Path

import pytest

from tests.cli.program import COMITY, Desk, Ran
from tests.interop.processes import answers, running

STORE = 'port = 0\n[store]\nurl = "sqlite:///comity.db"\n'
DECIDED = """
[[grants]]
subject = "*"
target = "docs"
why = "for everybody"

[[forbid]]
subject = "agent:*"
target = "*/delete_*"
why = "it is gone then"
"""
# Every command is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def kept(desk: Desk) -> Desk:
    desk.write("comity.toml", STORE + DECIDED)
    return desk


def run(desk: Desk, *words: str) -> Ran:
    return desk.run("grants", *words, "--offline")


def test_grants_are_added_listed_and_removed_in_the_store(kept: Desk) -> None:
    added = run(kept, "add", "agent:ci", "files__read", "--why", "nightly", "--expires", "8h")
    assert added.status == 0, added.err
    assert "files/read" in added.out
    listed = run(kept)
    for said in ("agent:ci", "nightly", "person:local", "the file", "for everybody", "opt-in"):
        assert said in listed.out
    assert "it is gone then" in listed.out
    found = run(kept, "--subject", "agent:ci", "--json").json["grants"]
    assert [grant["target"] for grant in found] == ["files/read"]
    assert run(kept, "remove", "agent:ci", "files/read").status == 0
    assert run(kept, "remove", "agent:ci", "files/read").status == 1


def test_a_grant_with_a_condition_is_shown_with_it_and_removed_by_itself(kept: Desk) -> None:
    where = '{"paths": {"/path": {"under": "/project"}}, "only": ["path"]}'
    run(kept, "add", "agent:ci", "files__read", "--ask")
    added = run(kept, "add", "agent:ci", "files__read", "--where", where)
    assert added.status == 0, added.err
    assert "ONLY" in added.out
    assert "under /project" in run(kept).out
    told = run(kept, "explain", "agent:ci", "files__read").out
    assert "standing answer" in told
    assert "under /project" in told
    left = run(kept, "remove", "agent:ci", "files/read")
    assert "Standing answers about it: 1" in left.out
    assert run(kept, "remove", "agent:ci", "files/read", "--standing").status == 0
    assert run(kept, "remove", "agent:ci", "files/read", "--standing").status == 1
    assert "is no JSON" in run(kept, "add", "agent:ci", "files/read", "--where", "x").err


def test_what_the_file_grants_is_only_changed_there(kept: Desk) -> None:
    ran = run(kept, "remove", "*", "docs")
    assert ran.status == 1
    assert "take it out there" in ran.out


def test_an_explanation_names_what_decides_in_a_sentence(kept: Desk) -> None:
    run(kept, "add", "agent:ci", "files", "--deny")
    run(kept, "add", "agent:ci", "files/read")
    told = run(kept, "explain", "agent:ci", "files__read")
    assert told.lines[0].startswith("agent:ci may call files/read: an entry about this very offer")
    assert "less specific" in told.out
    assert "may not call files/write: an entry about its server (files/*) says deny" in (
        run(kept, "explain", "agent:ci", "files/write").out
    )
    assert "a guardrail forbids tools/call on */delete_* to agent:* (it is gone then)." in (
        run(kept, "explain", "agent:ci", "files/delete_all").out
    )
    assert "no entry is about it, and the default policy of web is opt-in" in (
        run(kept, "explain", "agent:ci", "web/get").out
    )


def test_an_explanation_reckons_with_the_bounds_of_a_key(kept: Desk) -> None:
    made = kept.run(
        *("keys", "create", "agent:ci", "--permission", "ToolInvoke(docs/read)", "--json"),
        "--offline",
    ).json
    with_key = ("explain", "agent:ci", "docs/write", "--key", made["id"])
    assert "outside of its bounds" in run(kept, *with_key).out
    assert run(kept, "explain", "agent:ci", "docs/write").out.startswith("agent:ci may call")
    assert "has no key" in run(kept, *with_key[:-1], "nope").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "agent:*", "files"), "must be one party"),
        (("add", "agent:ci", "fi les"), "must be server/tool"),
        (("add", "agent:ci", "files", "--verb", "*/list"), "must be a method"),
        (("add", "agent:ci", "files", "--expires", "2020-01-01"), "in the past"),
        (("explain", "agent:ci", "read"), "say of which server"),
    ],
)
def test_a_mistake_is_told_with_what_would_do(
    kept: Desk, words: tuple[str, ...], told: str
) -> None:
    ran = run(kept, *words)
    assert ran.status == 2
    assert told in ran.err


def test_a_running_gateway_is_asked_and_has_it_in_force(kept: Desk, tmp_path: Path) -> None:
    server = f'[[servers]]\nid = "ex"\ncommand = "{COMITY}"\nargs = ["example"]\n'
    kept.write("comity.toml", STORE + DECIDED + server)
    command = [str(COMITY), "serve", str(kept.folder / "comity.toml"), "--port", "0"]
    here = {"COMITY_STORE_URL": f"sqlite:///{kept.folder}/comity.db"}
    with running(command, here) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        at = {"COMITY_URL": origin}
        assert kept.run("grants", "add", "agent:ci", "ex__echo", **at).status == 0
        # By its bare name, which only a gateway can tell.
        told = kept.run("grants", "explain", "agent:ci", "echo", **at)
        assert told.lines[0].startswith("agent:ci may call ex/echo")
        assert "agent:ci" in kept.run("grants", **at).out
    assert "files" not in run(kept, "--subject", "agent:ci").out
