"""One place builds audit events: the audit log. Domains call `AuditLog.record` with their facts."""

import ast
import re
from pathlib import Path

from tests.architecture.sources import SOURCE, classes_of, each_module, nodes_of

AUDIT = SOURCE / "audit"
# A class that writes events on its own. `CallAudit` keeps the state of calls between intent and
# outcome. It constructs its events itself, because every call pays for each step between.
WRITER = re.compile(r"(Audit|AuditRecorder|AuditWriter|Notes|Chronicle)$")
ALLOWED = {SOURCE / "gateway" / "call_audit.py": {"CallAudit"}}


@each_module
def test_only_the_audit_package_constructs_audit_events(path: Path) -> None:
    may_construct = AUDIT in path.parents or path in ALLOWED
    calls = [] if may_construct else _calls_of(path, "AuditEvent")
    assert calls == [], "call `AuditLog.record`, or `AuditLog.event` for a durable one"


@each_module
def test_no_other_package_has_a_writer_of_audit_events(path: Path) -> None:
    found = {each.name for each in classes_of(path) if WRITER.search(each.name)}
    if AUDIT not in path.parents:
        assert found == ALLOWED.get(path, set()), "call `AuditLog.record` where the thing happens"


def _calls_of(path: Path, name: str) -> list[int]:
    calls = (node for node in nodes_of(path) if isinstance(node, ast.Call))
    return [each.lineno for each in calls if _name_of(each.func) == name]


def _name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
