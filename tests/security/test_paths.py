"""Attack 11 of `docs/design/security.md` §1.5: paths that lead out of a scope."""

from hypothesis import given
from hypothesis import strategies as st

from comity.errors import VALIDATION_BLOCKED
from comity.validation import service
from comity.validation.arguments import ToolDefinition
from comity.validation.paths import PathScope, collapse_slashes, path_problem
from comity.validation.rules import ValidationRules, Verdict
from comity.validation.shell_parser import is_glob_match
from tests.security.corpus import document, is_few, section
from tests.support.cases import loop_over

SCOPE = document("paths.toml")["scope"]
RULES = ValidationRules(paths=PathScope(tuple(SCOPE["allowed"]), tuple(SCOPE["denied"])))
HOSTILE = section("paths.toml", "hostile")
HARMLESS = section("paths.toml", "harmless")


def examined(arguments: dict[str, object]) -> Verdict:
    return service.paths_refusal_reason(
        ToolDefinition("files", "read"), arguments, RULES, is_glob_match
    )


@loop_over("name", HOSTILE)
def test_attack_11_a_path_out_of_the_scope_is_blocked(name: str) -> None:
    verdict = examined({"path": HOSTILE[name]})
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED


@loop_over("name", HOSTILE)
def test_attack_11_it_is_blocked_in_a_list_too(name: str) -> None:
    assert examined({"files": ["/project/x", HOSTILE[name]]}) is not None


def test_attack_11_harmless_paths_pass() -> None:
    alarms = [path for path in HARMLESS.values() if examined({"path": path}) is not None]
    assert is_few(alarms, HARMLESS), alarms


@given(st.text("a./\\%2eE~ \u2024\uff0e", max_size=20))
def test_no_path_that_is_read_in_one_way_leads_up(text: str) -> None:
    path = f"/project/{text}"
    if path_problem(path) is None:
        assert collapse_slashes(path).startswith("/project")
        assert ".." not in collapse_slashes(path).split("/")
