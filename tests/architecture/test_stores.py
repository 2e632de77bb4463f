"""There is one implementation of each store, and only what serves loads the database."""

import ast
import subprocess
import sys

import pytest

from tests.architecture.sources import MODULES, ROOT, nodes_of

IN_PROCESS = {"src/comity/cluster/in_process.py"}
"""The bus and the leases of a single node: the product there, and no double of anything."""


def test_no_store_has_a_twin_in_memory() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in MODULES
        if str(path.relative_to(ROOT)) not in IN_PROCESS
        for node in nodes_of(path)
        if isinstance(node, ast.ClassDef)
        and node.name.lstrip("_").startswith(("Memory", "InMemory"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "module",
    [
        "comity.cli.main",
        "comity.app.processes.stdio_bridge",
        "comity.app.administration",
        "comity.sdk.agent",
    ],
)
def test_what_does_not_serve_loads_no_database(module: str) -> None:
    program = f"import sys, {module}; print('sqlalchemy' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == "False"
