"""`comity grants export`, `diff` and `apply`: grants that a team keeps in a file."""

import pytest

from comity.errors import Misconfigured
from comity.policy.grant_files import compare_grants, read_grants
from tests.cli.program import Desk, Ran
from tests.support.cases import loop_over

STORE = 'port = 0\n[store]\nurl = "sqlite:///comity.db"\n'
WHERE = '{"paths": {"/path": {"under": "/project"}}, "only": ["path"]}'


@pytest.fixture
def kept(desk: Desk) -> Desk:
    desk.write("comity.toml", f'{STORE}[[grants]]\nsubject = "*"\ntarget = "docs"\n')
    for words in (
        ("agent:ci", "files/read", "--reason", "nightly", "--expires", "2099-01-01T00:00:00+00:00"),
        ("agent:ci", "files/write", "--ask"),
        ("agent:ci", "files/write", "--where", WHERE),
        ("agent:a", "*", "--verb", "tools/list"),
    ):
        assert grants(desk, "create", *words).status == 0
    return desk


def grants(desk: Desk, *words: str) -> Ran:
    return desk.run("grants", *words, "--offline")


def stored(desk: Desk) -> list[tuple[str, str, str]]:
    found = grants(desk, "list", "-o", "json").json["grants"]
    mine = [each for each in found if each["source"] == "records"]
    return sorted((each["subject"], each["target"], each["effect"]) for each in mine)


@pytest.mark.parametrize("form", ["toml", "json"])
def test_an_export_is_stable_and_applies_elsewhere(
    kept: Desk, tmp_path_factory: pytest.TempPathFactory, form: str
) -> None:
    words = ("export",) if form == "toml" else ("export", "-o", "json")
    written = grants(kept, *words).out
    assert written == grants(kept, *words).out
    assert "docs" not in written, "the configuration keeps its own grants"
    file = str(kept.write(f"grants.{form}", written))
    same = grants(kept, "diff", "-f", file, "--prune", "--exit-code")
    assert (same.status, same.out) == (0, "The stored grants match the file.\n"), same.err
    other = Desk(tmp_path_factory.mktemp("other"))
    other.write("comity.toml", STORE)
    assert grants(other, "apply", "-f", file).status == 0
    assert grants(other, *words).out == written


def test_the_reach_of_a_permission_is_applied_exactly_and_checked(desk: Desk) -> None:
    desk.write("comity.toml", STORE)
    text = '[[grants]]\nprincipal = "server:files"\nverb = "perm"\n'
    text += 'target = "filesystem.read"\nreach = ["{}"]\n'
    for place in ("/srv/one", "/srv/two"):
        file = str(desk.write("grants.toml", text.format(place)))
        assert grants(desk, "apply", "-f", file).status == 0
        assert f'reach = ["{place}"]' in grants(desk, "export").out
    wrong = grants(desk, "apply", "-f", str(desk.write("grants.toml", text.format("srv"))))
    assert (wrong.status, "must be an absolute path" in wrong.err) == (2, True)


def test_a_file_changes_what_is_stored_and_deletes_only_with_prune(kept: Desk) -> None:
    text = '[[grants]]\nprincipal = "agent:ci"\ntarget = "files/read"\neffect = "deny"\n'
    text += '[[grants]]\nprincipal = "agent:new"\ntarget = "web/*"\n'
    file = ("-f", str(kept.write("grants.toml", text)))
    before = stored(kept)
    planned = grants(kept, "apply", *file, "--prune", "--dry-run", "-o", "json").json
    assert [len(planned[name]) for name in ("created", "changed", "deleted")] == [1, 1, 3]
    assert stored(kept) == before
    assert grants(kept, "diff", *file, "--exit-code").status == 1
    assert grants(kept, "apply", *file).status == 0
    assert {*stored(kept)} == {*before, ("agent:new", "web/*", "allow")} ^ {
        ("agent:ci", "files/read", "allow"),
        ("agent:ci", "files/read", "deny"),
    }
    pruned = grants(kept, "apply", *file, "--prune", "--yes")
    assert pruned.status == 0, pruned.err
    assert stored(kept) == [("agent:ci", "files/read", "deny"), ("agent:new", "web/*", "allow")]


@loop_over(
    ("text", "told"),
    [
        ("grants = 1", "write the grants as"),
        ("[]", "write the grants as|Expected|expected|Invalid"),
        ("x = 1", "write the grants as"),
        ('[[grants]]\nprincipal = "a"', "needs 'target'"),
        ('[[grants]]\nprincipal = "a"\ntarget = "b"\nsubject = "c"', "unknown key 'subject'"),
        ('{"grants": [1]}', "needs 'principal'"),
        ('[[grants]]\nprincipal = "a"\ntarget = "b"\n' * 2, "twice"),
    ],
)
def test_a_file_that_is_not_valid_is_explained(text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        read_grants(text, "grants.toml")


def test_times_are_compared_and_not_their_spelling() -> None:
    (one,) = read_grants('[[grants]]\nprincipal="a"\ntarget="b"\nexpires=2030-01-01T00:00:00Z', "x")
    (same,) = read_grants(
        '[[grants]]\nprincipal="a"\ntarget="b"\nexpires="2030-01-01T01:00:00+01:00"', "x"
    )
    assert not compare_grants([one], [same], prune=True)
