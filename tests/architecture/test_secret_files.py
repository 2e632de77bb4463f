"""Files with secrets are opened by `config/secret_files.py` alone."""

import ast
from collections.abc import Sequence

from tests.architecture.sources import MODULES, SOURCE, nodes_of

# Every other module that opens files, and what is in these. None of them holds a secret; the two
# that must be private (`clients/files.py`, configurations of other programs) keep their mode.
OPENED = {
    "app/checks/machine.py": "/proc",
    "app/settings_api.py": "the configuration, for the lines of its settings",
    "app/demo/service.py": "the configuration of the demo",
    "app/processes/idle_shutdown.py": "a lock",
    "app/processes/stdio_bridge.py": "a lock, the log of a gateway",
    "audit/chain_writer.py": "a lock",
    "app/processes/local_bus.py": "the port and the log of the NATS server",
    "audit/signing.py": "signed checkpoints, which are public",
    "catalog/semantic/minilm.py": "a model",
    "catalog/semantic/vectors.py": "vectors of tool descriptions",
    "catalog/token_counter.py": "a vocabulary",
    "cli/api_client.py": "/proc",
    "cli/main.py": "/dev/null",
    "clients/files.py": "configuration of MCP clients",
    "console/endpoint.py": "the built files of the console",
    "config/commands.py": "files of a project, for their digests",
    "config/loader.py": "configuration",
    "http/tls.py": "a certificate, which is public; OpenSSL opens the key",
    "sdk/commands.py": "templates and new projects",
    "sdk/functions.py": "the code of a server",
    "sdk/mgp_server_lifecycle.py": "/dev/null",
    "servers/packages/installers.py": "the lists of packages that npm and uv read and write",
    "servers/packages/lock_file.py": "the lock file, which names secrets and holds none",
    "servers/packages/package_store.py": "installed packages and their records",
    "servers/process/keeper.py": "/proc",
    "servers/process/process.py": "/proc",
    "servers/sandbox/cgroups.py": "control groups",
    "servers/sandbox/learning/trace.py": "the system calls of a server, with names of files",
    "servers/sandbox/programs.py": "programs",
    "servers/sandbox/reach.py": "folders that a server may use",
    "servers/sandbox/service.py": "the scratch folder of a server, for its socket",
    "servers/sandbox/stage.py": "folders that a server may use",
    "servers/registration/wiring.py": "the code of a generated tool",
    "servers/transports/openapi.py": "an OpenAPI document",
    "storage/sqlite.py": "the database",
    "telemetry/process.py": "/proc",
    "toolkit/folders.py": "folders, to remove what is in them",
}
METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "mkstemp", "NamedTemporaryFile"}


def is_opening(node: ast.AST) -> bool:
    """`os.open(...)`, `open(...)`, `path.open("rb")`, `path.read_text()` and the like."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id == "open"
    if not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "open":
        is_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
        modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
        return is_os or any(each.arg == "encoding" for each in node.keywords) or _is_mode(modes)
    return node.func.attr in METHODS


def _is_mode(values: Sequence[object]) -> bool:
    return any(isinstance(each, str) and set(each) <= set("rwxabt+") for each in values)


def test_no_other_module_opens_a_file_with_a_secret() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in MODULES
        if any(is_opening(node) for node in nodes_of(path))
    }
    found.discard("config/secret_files.py")
    assert found - OPENED.keys() == set(), "use config/secret_files.py, or say here what is opened"
    assert OPENED.keys() - found == set(), "these open no file any more"
