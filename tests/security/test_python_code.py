"""Attack 13 of `docs/design/security.md` §1.5: Python that hides what it does."""

from comity.validation.python_code import UNDECIDED, CodeSafetyLevel, combine_policies, examine_code
from tests.security.corpus import is_few, section
from tests.support.cases import loop_over

HOSTILE = section("python.toml", "hostile")
AT_STRICT = section("python.toml", "hostile-at-strict")
AT_READONLY = section("python.toml", "hostile-at-readonly")
HARMLESS = section("python.toml", "harmless")
HARMLESS_AT_STANDARD = section("python.toml", "harmless-at-standard")
LEVELS = (CodeSafetyLevel.STANDARD, CodeSafetyLevel.STRICT, CodeSafetyLevel.READONLY)


def violations(code: str, level: CodeSafetyLevel) -> tuple[str, ...]:
    return examine_code(code, combine_policies(UNDECIDED, {"level": level}))


@loop_over("level", LEVELS)
@loop_over("name", HOSTILE)
def test_attack_13_hostile_code_passes_at_no_level(name: str, level: CodeSafetyLevel) -> None:
    assert violations(HOSTILE[name], level) != ()


@loop_over("level", LEVELS[1:])
@loop_over("name", AT_STRICT)
def test_attack_13_what_is_not_on_the_list_does_not_pass_strictly(
    name: str, level: CodeSafetyLevel
) -> None:
    assert violations(AT_STRICT[name], level) != ()


@loop_over("name", AT_READONLY)
def test_attack_13_what_writes_does_not_pass_where_only_reading_is_allowed(name: str) -> None:
    assert violations(AT_READONLY[name], CodeSafetyLevel.READONLY) != ()


@loop_over("level", LEVELS)
def test_attack_13_harmless_code_passes(level: CodeSafetyLevel) -> None:
    cases = HARMLESS | (
        {f"standard {name}": code for name, code in HARMLESS_AT_STANDARD.items()}
        if level is CodeSafetyLevel.STANDARD
        else {}
    )
    alarms = [code for code in cases.values() if violations(code, level)]
    assert is_few(alarms, cases), alarms


@loop_over("name", [*HOSTILE, *AT_STRICT])
def test_nothing_is_checked_where_nothing_is_restricted(name: str) -> None:
    assert violations((HOSTILE | AT_STRICT)[name], CodeSafetyLevel.UNRESTRICTED) == ()
