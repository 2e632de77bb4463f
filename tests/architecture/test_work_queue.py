"""There is one durable work queue: no other module claims rows or keeps a lease on them."""

import ast
import re
from pathlib import Path

from tests.architecture.sources import SOURCE, each_module, nodes_of

STORE = SOURCE / "storage" / "work_queue.py"
TABLE = {STORE, SOURCE / "storage" / "migrations" / "versions" / "0001_initial.py"}
LEASES = re.compile(r"claimed_until|skip_locked|skip locked", re.IGNORECASE)
CLAIMS = {"claim", "renew", "abandon"}


@each_module
def test_only_the_work_queue_keeps_leases_on_rows(path: Path) -> None:
    if path not in TABLE:
        assert LEASES.findall(path.read_text("utf-8")) == []


@each_module
def test_only_the_work_queue_claims_rows(path: Path) -> None:
    """A store with methods of these names would be a second queue."""
    is_store = path.stem == "store" or SOURCE / "storage" in path.parents
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = {node.name for node in nodes_of(path) if isinstance(node, functions)}
    if is_store and path != STORE:
        assert named & CLAIMS == set()


def test_one_runner_asks_the_queue_for_jobs() -> None:
    """Each domain gives its handler to `WorkQueueRunner` and has no loop of its own."""
    asking = re.compile(r"\b_?(jobs|queue)\.(claim|renew|abandon)\(")
    found = {path for path in SOURCE.rglob("*.py") if asking.search(path.read_text("utf-8"))}
    assert found == {SOURCE / "toolkit" / "work_queue.py"}
