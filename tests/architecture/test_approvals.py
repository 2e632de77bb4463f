"""There is one approval mechanism: `comity.approvals`, with a table of kinds."""

import ast
from collections.abc import Callable
from pathlib import Path

from comity.approvals.kinds import RULES_BY_KIND
from comity.approvals.model import ApprovalKind
from tests.architecture.sources import MODULES, SOURCE, nodes_of

APPROVALS = SOURCE / "approvals"
SERVICE = APPROVALS / "service.py"
STORE_CHANGES = {"open", "answer", "consume", "release", "end", "expire", "erase_content"}


def _constructs_request(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    made = node.func
    name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
    return name == "ApprovalRequest"


def _changes_store(node: ast.AST) -> bool:
    """Calls such as `approvals.store.open(…)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    store = node.func.value
    return (
        node.func.attr in STORE_CHANGES
        and isinstance(store, ast.Attribute)
        and store.attr in ("store", "approval_requests")
    )


def _waits_for_answer(node: ast.AST) -> bool:
    """A loop that waits while a request is open; `ApprovalService.wait` is that loop."""
    if not isinstance(node, ast.While):
        return False
    condition = [each.attr for each in ast.walk(node.test) if isinstance(each, ast.Attribute)]
    return "is_open" in condition


def _imports_approvals(path: Path) -> bool:
    froms = (node for node in nodes_of(path) if isinstance(node, ast.ImportFrom))
    return any((node.module or "").startswith("comity.approvals") for node in froms)


def _modules_outside(folder: Path) -> list[Path]:
    return [path for path in MODULES if path != folder and folder not in path.parents]


def _places(paths: list[Path], is_second: Callable[[ast.AST], bool]) -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}"
        for path in paths
        for node in nodes_of(path)
        if is_second(node)
    ]


def test_every_kind_of_request_has_a_row() -> None:
    assert RULES_BY_KIND.keys() == set(ApprovalKind)


def test_only_the_approvals_package_makes_requests() -> None:
    assert _places(_modules_outside(APPROVALS), _constructs_request) == []


def test_only_the_approval_service_changes_the_store_of_requests() -> None:
    """Other stores are called `store` too, so only modules that know requests are looked at."""
    knowing = [path for path in _modules_outside(SERVICE) if _imports_approvals(path)]
    assert _places(knowing, _changes_store) == []


def test_only_the_approval_service_waits_for_answers() -> None:
    """Connections have `is_open` too, so only modules that know requests are looked at."""
    knowing = [path for path in _modules_outside(SERVICE) if _imports_approvals(path)]
    assert _places(knowing, _waits_for_answer) == []


def test_the_service_has_the_only_waiting_loop() -> None:
    """Otherwise the rule above would find nothing because it looks for the wrong thing."""
    assert len(_places([SERVICE], _waits_for_answer)) == 1
    assert _places([SERVICE], _changes_store) != []
    assert _places([SERVICE], _constructs_request) != []
