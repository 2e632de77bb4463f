"""Real servers with the permissions that `comity servers learn` proposes, and with one less.

The table in docs/how-to/learn-permissions.md has the outcome of these runs.
"""

import json
import re
import shutil
import sys
import sysconfig
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from comity.servers.sandbox.learning.commands import put_permissions
from comity.servers.sandbox.learning.trace import trace_problem
from comity.servers.sandbox.model import SandboxLevel
from tests.cli.program import Desk
from tests.interop.peers import ROOT, node, package
from tests.interop.processes import comity
from tests.servers.sandbox.levels import skip_without
from tests.servers.sandbox.test_confined_gateway import Confined, a_site

pytestmark = [
    pytest.mark.integration,
    # The first of these tests to run may have to install the JavaScript servers.
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
    pytest.mark.skipif(trace_problem() is not None, reason="strace does not work here"),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed"),
]

PAGE = ROOT / "docs" / "how-to" / "learn-permissions.md"
HERE = Path(__file__).parent
# How the table names the folder and the host of a test.
FOLDER, HOST = "/srv/{name}", "api.example.com:443"

type Arguments = Mapping[str, Any]
type Permissions = dict[str, list[str]]


@dataclass(frozen=True)
class RealServer:
    """A server, its calls in a folder, and the permission that a test takes away."""

    name: str
    title: str
    command: Callable[[Path, int], list[str]]
    calls: Callable[[Path], list[tuple[str, Arguments]]]
    without: str = ""
    reduced: Callable[[Permissions], Permissions] = field(default=lambda _: {})
    env: Callable[[Path], dict[str, str]] = field(default=lambda _: {})


def by_node(name: str, *arguments: str) -> list[str]:
    return [node(), package(f"@modelcontextprotocol/{name}", "dist/index.js"), *arguments]


def by_python(script: str, *arguments: str) -> list[str]:
    """Return a command without `site`: it reads no folder of an editable package."""
    return [sys.executable, "-S", str(HERE / script), *arguments]


def python_packages(_: Path) -> dict[str, str]:
    return {"PYTHONPATH": sysconfig.get_path("purelib")}


ENTITY = {"name": "Comity", "entityType": "program", "observations": ["It runs."]}
SERVERS = (
    RealServer(
        "files",
        "`@modelcontextprotocol/server-filesystem`",
        lambda folder, _: by_node("server-filesystem", str(folder)),
        lambda folder: [
            ("list_directory", {"path": str(folder)}),
            ("read_text_file", {"path": str(folder / "file")}),
            ("write_file", {"path": str(folder / "new"), "content": "x"}),
        ],
        "filesystem.write",
        lambda learned: {"filesystem.read": learned["filesystem.write"]},
    ),
    RealServer(
        "everything",
        "`@modelcontextprotocol/server-everything`",
        lambda _, __: by_node("server-everything", "stdio"),
        lambda _: [("echo", {"message": "hi"}), ("get-sum", {"a": 1, "b": 2}), ("get-env", {})],
    ),
    RealServer(
        "memory",
        "`@modelcontextprotocol/server-memory`",
        lambda _, __: by_node("server-memory"),
        lambda _: [("create_entities", {"entities": [ENTITY]}), ("read_graph", {})],
        "filesystem.write",
        env=lambda folder: {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
    ),
    RealServer(
        "weather",
        "A FastMCP server that asks one host",
        lambda _, port: by_python("weather_server.py", f"http://127.0.0.1:{port}/"),
        lambda _: [("forecast", {})],
        "network.outbound",
        # Without any host there is no proxy that could name the permission.
        lambda _: {"network.outbound": ["127.0.0.1:9"]},
        python_packages,
    ),
    RealServer(
        "notes",
        "A Python server with an SQLite database",
        lambda folder, _: by_python("notes_server.py", str(folder / "notes.db")),
        lambda _: [("add", {"text": "the note"}), ("find", {})],
        "filesystem.write",
        env=python_packages,
    ),
)


def names_missing_permission(text: str, permission: str, place: str) -> bool:
    """Whether a refusal says which permission is missing, and for which folder or host."""
    return permission in text and place in text


def learned_rows() -> dict[str, list[str]]:
    """Return the cells of each server in the table of the page."""
    rows = re.findall(r"^\| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    cells = [row.split(" | ") for row in rows]
    return {row[0]: row[1:] for row in cells}


def table_cell(permissions: Permissions) -> str:
    words = [
        f'`"{permission}" = {json.dumps(places)}`' for permission, places in permissions.items()
    ]
    return "<br>".join(words) or "none"


def write_config(desk: Desk, server: RealServer, folder: Path, port: int) -> Path:
    command, *arguments = server.command(folder, port)
    env = ", ".join(f"{name} = {json.dumps(each)}" for name, each in server.env(folder).items())
    return desk.write(
        "comity.toml",
        f"""
[store]
url = "sqlite:///{desk.folder / "store.db"}"

[[servers]]
id = "confined"
command = {json.dumps(command)}
args = {json.dumps(arguments)}
env = {{ {env} }}

[servers.policy]
trust = "sandboxed"
""",
    )


def learn(desk: Desk, calls: list[tuple[str, Arguments]]) -> Permissions:
    lines = [json.dumps({"tool": tool, "arguments": arguments}) for tool, arguments in calls]
    desk.write("calls.jsonl", "\n".join(lines))
    words = ("servers", "learn", "confined", "--calls", "calls.jsonl", "--write", "--yes")
    ran = desk.run(*words, "-o", "json")
    assert ran.status == 0, ran.out + ran.err
    assert ran.json["notes"] == []
    return ran.json["permissions"]


@contextmanager
def confined(config: Path) -> Generator[Confined]:
    with comity(config) as origin:
        yield Confined(origin, config)


def is_failure(answer: str) -> bool:
    said: Any = json.loads(answer)
    return "error" in said or said.get("isError") is True


@pytest.mark.requirement("MGP-3.2-filesystem.write", "MGP-3.2-network.outbound")
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
def test_a_real_server_works_with_what_was_learned_and_fails_with_less(
    server: RealServer, tmp_path: Path
) -> None:
    skip_without(SandboxLevel.BUBBLEWRAP)
    folder, desk = tmp_path / server.name, Desk(tmp_path)
    folder.mkdir()
    (folder / "file").write_text("the file")
    calls = server.calls(folder)
    with a_site() as port:
        config = write_config(desk, server, folder, port)
        learned = learn(desk, calls)
        with confined(config) as gateway:
            assert gateway.server()["sandbox"] == "bubblewrap"
            for tool, arguments in calls:
                answer = gateway.call(tool, **arguments)
                assert not is_failure(answer), answer
        names = {str(folder): FOLDER.format(name=server.name), f"127.0.0.1:{port}": HOST}
        shown = {
            name: [names.get(place, place) for place in places] for name, places in learned.items()
        }
        assert learned_rows()[server.title][-1] == table_cell(shown)
        if not server.without:
            assert learned == {}
            return
        reduced = server.reduced(learned)
        config.write_text(put_permissions(config.read_text(), "confined", reduced))
        with confined(config) as gateway:
            answers = [gateway.call(tool, **arguments) for tool, arguments in calls]
    refusals = [answer for answer in answers if is_failure(answer)]
    assert refusals, answers
    (place,) = learned[server.without]
    assert names_missing_permission(refusals[0], server.without, place), refusals


def test_the_table_has_exactly_these_servers() -> None:
    titles = [title for title in learned_rows() if title not in ("server", "---")]
    assert titles[: len(SERVERS)] == [server.title for server in SERVERS]
