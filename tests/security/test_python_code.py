"""Attack 13 of `docs/design/security.md` §1.5: Python that hides what it does."""

import pytest

from comity.rules.code_safety import UNDECIDED, Level, combined, examine
from tests.security.corpus import is_few, section

HOSTILE = section("python.toml", "hostile")
AT_STRICT = section("python.toml", "hostile-at-strict")
AT_READONLY = section("python.toml", "hostile-at-readonly")
HARMLESS = section("python.toml", "harmless")
HARMLESS_AT_STANDARD = section("python.toml", "harmless-at-standard")
LEVELS = (Level.STANDARD, Level.STRICT, Level.READONLY)


def violations(code: str, level: Level) -> tuple[str, ...]:
    return examine(code, combined(UNDECIDED, {"level": level}))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", HOSTILE)
def test_attack_13_hostile_code_passes_at_no_level(name: str, level: Level) -> None:
    assert violations(HOSTILE[name], level) != ()


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("name", AT_STRICT)
def test_attack_13_what_is_not_on_the_list_does_not_pass_strictly(name: str, level: Level) -> None:
    assert violations(AT_STRICT[name], level) != ()


@pytest.mark.parametrize("name", AT_READONLY)
def test_attack_13_what_writes_does_not_pass_where_only_reading_is_allowed(name: str) -> None:
    assert violations(AT_READONLY[name], Level.READONLY) != ()


@pytest.mark.parametrize("level", LEVELS)
def test_attack_13_harmless_code_passes(level: Level) -> None:
    cases = HARMLESS | (
        {f"standard {name}": code for name, code in HARMLESS_AT_STANDARD.items()}
        if level is Level.STANDARD
        else {}
    )
    alarms = [code for code in cases.values() if violations(code, level)]
    assert is_few(alarms, cases), alarms


@pytest.mark.parametrize("name", [*HOSTILE, *AT_STRICT])
def test_nothing_is_checked_where_nothing_is_restricted(name: str) -> None:
    assert violations((HOSTILE | AT_STRICT)[name], Level.UNRESTRICTED) == ()
