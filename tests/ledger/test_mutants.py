"""The table of mutants, and what is made of it: a draw, a copy that is broken, a verdict."""

import subprocess
from pathlib import Path

import pytest

from tests.ledger.catalogue import read_deviations, read_requirements
from tests.ledger.copies import make_copy
from tests.ledger.mutants import SAMPLE, SEED, Mutant, Product, drawn, read_mutants
from tests.ledger.mutate import Outcome, files_naming, verdict

ROOT = Path(__file__).parents[2]


def test_every_mutant_of_this_project_has_one_place_and_a_row_that_is_to_be_proved() -> None:
    mutants, rows = read_mutants(ROOT), read_requirements(ROOT)
    assert [mutant.row for mutant in Product(ROOT).stale(mutants)] == []
    proved = rows.keys() - read_deviations(ROOT, rows).keys()
    assert {mutant.row for mutant in mutants} <= proved
    assert all(mutant.breaks for mutant in mutants)
    assert len({mutant.row for mutant in mutants}) >= 120


def test_no_mutant_of_this_project_fails_only_because_it_cannot_run() -> None:
    product = Product(ROOT)
    unknown = {
        f"{mutant.row}: {mutant.breaks}": product.unknown_names(mutant, place)
        for mutant in read_mutants(ROOT)
        if (place := product.place_of(mutant))
    }
    assert {where: names for where, names in unknown.items() if names} == {}


@pytest.mark.parametrize(
    ("replace", "names"),
    [
        ("return one + b.here", set[str]()),
        ("return two", {"two"}),
        ("return b.gone", {"b.gone"}),
        ("return (lambda each: other)(one)", {"other"}),
        ("return = one", {"invalid syntax (<mutant>, line 6)"}),
    ],
)
def test_a_mutant_that_names_what_is_not_there_is_found(
    tmp_path: Path, replace: str, names: set[str]
) -> None:
    package = tmp_path / "src/comity"
    package.mkdir(parents=True)
    (package / "b.py").write_text("here = 1\n", encoding="utf-8")
    place = package / "a.py"
    text = "from comity import b\n\none = 1\n\ndef f():\n    return one\n\nb.old\n"
    place.write_text(text, encoding="utf-8")
    mutant = Mutant("MCP-1-a", "breaks one", "return one", replace)
    assert Product(tmp_path).unknown_names(mutant, place) == names


def test_every_row_that_the_seed_draws_has_a_mutant() -> None:
    rows = read_requirements(ROOT)
    wanted = drawn(rows.keys() - read_deviations(ROOT, rows).keys(), SEED, SAMPLE)
    there = {mutant.row for mutant in read_mutants(ROOT)}
    assert [row for row in wanted if row not in there] == []


def test_a_draw_is_the_same_each_time_and_a_new_row_moves_at_most_one() -> None:
    rows = [f"MCP-{number}" for number in range(500)]
    first = drawn(rows, 1, 60)
    assert first == drawn(reversed(rows), 1, 60)
    assert len(set(first) - set(drawn([*rows, "MCP-new"], 1, 60))) <= 1
    assert set(first) != set(drawn(rows, 2, 60))


@pytest.mark.parametrize("found", ["", "x = 1\nx = 1\n"])
def test_a_mutant_without_its_one_place_is_stale(tmp_path: Path, found: str) -> None:
    module = tmp_path / "src/comity/a.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1\n", encoding="utf-8")
    mutant = Mutant("MCP-1-a", "breaks x", "x = 1", "x = 2")
    product = Product(tmp_path)
    assert product.place_of(mutant) == module
    assert (product.broken(mutant, module), product.whole(module)) == ("x = 2\n", "x = 1\n")
    assert list(product.stale([mutant])) == []
    module.write_text(found, encoding="utf-8")
    assert list(Product(tmp_path).stale([mutant])) == [mutant]


def test_a_row_is_looked_for_where_its_id_stands_or_is_composed(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_full.py").write_text('mark("MGP-1-a")', encoding="utf-8")
    (tests / "test_composed.py").write_text('mark(f"MGP-1-{name}")', encoding="utf-8")
    (tests / "test_other.py").write_text('mark("MGP-1-ab", f"MGP-2-{name}")', encoding="utf-8")
    assert files_naming("MGP-1-a", tmp_path) == ["tests/test_composed.py", "tests/test_full.py"]


@pytest.mark.parametrize(
    ("ends", "figures"),
    [
        ({"a": "killed", "b": "timeout"}, (2, 2, True)),
        ({"a": "killed", "b": "survived"}, (2, 1, False)),
        ({**dict.fromkeys(map(str, range(99)), "killed"), "b": "survived"}, (100, 99, True)),
        *(({"a": "killed", "b": end}, (1, 1, False)) for end in ("stale", "unsound", "missing")),
    ],
)
def test_enough_is_97_in_a_hundred_and_nothing_that_could_not_be_tried(
    ends: dict[str, str], figures: tuple[int, int, bool]
) -> None:
    assert verdict([Outcome(row, "", end) for row, end in ends.items()]) == figures


def test_a_row_with_two_mutants_is_killed_by_both_or_not_at_all() -> None:
    two = [Outcome("a", "", "killed"), Outcome("a", "", "survived")]
    assert verdict(two) == (1, 0, False)


def test_a_copy_imports_its_own_product_and_so_do_programs_that_it_starts(tmp_path: Path) -> None:
    python = make_copy(ROOT, tmp_path)
    where = "import comity, msgspec, sys; print(comity.__file__); print(msgspec.__file__)"
    told = subprocess.run(
        [python, "-c", where], cwd="/", capture_output=True, text=True, check=True
    )
    product, package = told.stdout.splitlines()
    assert Path(product).is_relative_to(tmp_path / "src")
    assert not Path(package).is_relative_to(tmp_path)
    name = tmp_path / "src/comity/__init__.py"
    name.write_text('raise SystemExit("this is the copy")\n', encoding="utf-8")
    program = python.with_name("comity")
    broken = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    assert "this is the copy" in broken.stderr
