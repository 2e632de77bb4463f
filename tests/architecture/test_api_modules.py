"""The operator API has one router: it alone reads requests and asks for permissions."""

import ast
import importlib
from pathlib import Path

from comity.http.api_input import RequestBody
from tests.architecture.sources import MODULES, SOURCE, each_module, nodes_of

ROUTER = SOURCE / "http" / "api.py"
API_MODULES = [path for path in MODULES if path.name.endswith("api.py") and path != ROUTER]
# These serve addresses outside the operator API: webhooks of others, the tool registry, and SCIM.
RAW_BODIES = {
    ("live/api.py", "read_body"),
    ("registry/api.py", "read_body"),
    ("identity/scim/api.py", "read_body"),
    ("identity/scim/api.py", "query_of"),
}
READERS = {"read_body", "read_json", "query_of", "parse_qs", "decode_body", "decode_query"}


def _names_of(path: Path) -> set[str]:
    nodes = nodes_of(path)
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.id for node in nodes if isinstance(node, ast.Name)}


def test_no_api_module_reads_a_request_by_itself() -> None:
    found = {
        (path.relative_to(SOURCE).as_posix(), name)
        for path in API_MODULES
        for name in _names_of(path) & READERS
    }
    assert found == RAW_BODIES


@each_module
def test_only_the_router_makes_requests_of_the_operator_api(path: Path) -> None:
    calls = (node.func for node in nodes_of(path) if isinstance(node, ast.Call))
    made = {func.id for func in calls if isinstance(func, ast.Name)}
    assert path == ROUTER or "ApiRequest" not in made


def test_every_body_refuses_fields_that_it_does_not_know() -> None:
    for path in API_MODULES:
        importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
    bodies = RequestBody.__subclasses__()
    assert len(bodies) > 10
    lenient = [body for body in bodies if not body.__struct_config__.forbid_unknown_fields]
    assert lenient == []
