"""The corpus is as large as was promised, and no case stands in it twice."""

from tests.security.corpus import CASES, document, section
from tests.support.cases import loop_over

FILES = sorted(path.name for path in CASES.iterdir())
HARMLESS = "harmless"
NO_CASES = {"answers", "scope"}


def kinds(file: str, harmless: bool) -> list[str]:
    names = [name for name in document(file) if name not in NO_CASES]
    return [name for name in names if name.startswith(HARMLESS) == harmless]


def count(harmless: bool) -> int:
    return sum(len(document(file)[kind]) for file in FILES for kind in kinds(file, harmless))


def test_there_are_hostile_cases_and_harmless_lookalikes_enough() -> None:
    assert count(harmless=False) >= 1000
    assert count(harmless=True) >= 350


@loop_over(
    ("file", "least"),
    [
        ("shell.toml", 120),
        ("python.toml", 120),
        ("network.toml", 90),
        ("paths.toml", 90),
        ("schemas.json", 60),
    ],
)
def test_each_kind_of_attack_has_its_share(file: str, least: int) -> None:
    assert sum(len(section(file, kind)) for kind in kinds(file, harmless=False)) >= least


@loop_over("file", [name for name in FILES if name.endswith(".toml")])
def test_no_case_stands_there_twice(file: str) -> None:
    for kind in [*kinds(file, harmless=False), *kinds(file, harmless=True)]:
        texts = [repr(each) for each in section(file, kind).values()]
        assert sorted({each for each in texts if texts.count(each) > 1}) == []
