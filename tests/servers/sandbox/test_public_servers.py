"""Eight public servers, taken over from the files of two clients: with permissions, and without.

npm and uv download them, so only the full tier runs this. `test_real_servers.py` and
`tests/cli/test_permission_proposals.py` hold the same with what the lock has.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from comity.config.files import STATE_VARIABLE
from comity.servers.sandbox.model import SandboxLevel
from comity.toolkit.folders import remove_folder
from tests.cli.program import Desk, Terminal
from tests.interop.processes import comity
from tests.servers.sandbox.levels import skip_without
from tests.servers.sandbox.test_confined_gateway import Confined, a_site

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed"),
    pytest.mark.skipif(not shutil.which("uv"), reason="uv is not installed"),
    pytest.mark.skipif(not shutil.which("git"), reason="git is not installed"),
]

DOWNLOAD_SECONDS = 900.0
NPM = "@modelcontextprotocol/server-"
QUESTION = "Grant all of this? [y/N]"
NAMES = ("files", "memory", "everything", "thinking", "git", "sqlite", "fetch", "time")
ENTITY = {"name": "Comity", "entityType": "program", "observations": ["It runs."]}


@dataclass
class Laptop:
    """A fresh home with the files of two clients."""

    desk: Desk
    documents: Path
    repository: Path

    def gateway_environment(self) -> dict[str, str]:
        # The tests otherwise switch the sandbox off, and no person answers here.
        return {**self.desk.env, "COMITY_POLICY_REQUIRE_APPROVAL": "never"}


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> Generator[Laptop]:
    """A home outside of the temporary folder, in which a confined server has its scratch folder."""
    skip_without(SandboxLevel.BUBBLEWRAP)
    root = Path(tempfile.mkdtemp(prefix="comity-laptop-", dir="/var/tmp"))
    try:
        made = make_laptop(root)
        # The operator of the test finds the token of the gateway there.
        monkeypatch.setenv(STATE_VARIABLE, made.desk.env[STATE_VARIABLE])
        yield made
    finally:
        # The package store makes its files read-only.
        remove_folder(root)


def make_laptop(root: Path) -> Laptop:
    desk = Desk(root)
    desk.env[STATE_VARIABLE] = str(desk.home / ".local" / "state" / "comity")
    desk.env["COMITY_POLICY_SANDBOX"] = "auto"
    documents, repository = desk.home / "Documents", desk.home / "src" / "project"
    for folder in (documents, repository):
        folder.mkdir(parents=True)
    author = ("-c", "user.name=Author", "-c", "user.email=author@example.org")
    for words in (("init", "-q"), (*author, "commit", "-q", "--allow-empty", "-m", "The start.")):
        subprocess.run(["git", *words], cwd=repository, check=True, timeout=60)
    memory = {"MEMORY_FILE_PATH": str(documents / "memory.jsonl")}
    database = str(desk.home / "data" / "notes.db")
    # The published server uses an interface that version 2 of the package `mcp` removed.
    sqlite = ["--with", "mcp<2", "mcp-server-sqlite", "--db-path", database]
    cursor = {
        "files": npx("filesystem", str(documents)),
        "memory": {**npx("memory"), "env": memory},
        "everything": npx("everything"),
        "thinking": npx("sequential-thinking"),
    }
    claude = {
        "git": uvx("mcp-server-git", "--repository", str(repository)),
        "sqlite": uvx(*sqlite),
        "fetch": uvx("mcp-server-fetch", "--allow-private-ips"),
        "time": uvx("mcp-server-time"),
    }
    desk.write("~/.cursor/mcp.json", {"mcpServers": cursor})
    desk.write("~/.config/Claude/claude_desktop_config.json", {"mcpServers": claude})
    return Laptop(desk, documents, repository)


def npx(name: str, *arguments: str) -> dict[str, Any]:
    return {"command": "npx", "args": ["-y", f"{NPM}{name}", *arguments]}


def uvx(*words: str) -> dict[str, Any]:
    return {"command": "uvx", "args": [*words]}


def take_over(laptop: Laptop, answer: str, *options: str) -> None:
    """Run `comity init` at a terminal, and give the one answer that it asks for."""
    with Terminal(laptop.desk, "init", *options) as terminal:
        terminal.until(QUESTION)
        terminal.type(f"{answer}\n")
        assert terminal.end() == 0, terminal.seen
        assert QUESTION not in terminal.seen


@contextmanager
def serving(laptop: Laptop) -> Generator[Confined]:
    config = laptop.desk.folder / "comity.toml"
    text = config.read_text()
    if "start_timeout" not in text:
        config.write_text(f"{text}\n[limits]\nstart_timeout = {DOWNLOAD_SECONDS:g}\n")
    with comity(config, laptop.gateway_environment(), "/health") as origin:
        yield Confined(origin, config)


def wait_until_tried(gateway: Confined) -> Mapping[str, Mapping[str, Any]]:
    """Return the servers by name once each is connected or has failed."""
    deadline = time.monotonic() + DOWNLOAD_SECONDS
    while True:
        servers = {each["id"]: each for each in gateway.ask("/api/servers")["servers"]}
        settled = [each for each in servers.values() if is_tried(each)]
        if len(settled) == len(NAMES):
            return servers
        assert time.monotonic() < deadline, servers
        time.sleep(0.5)


def is_tried(server: Mapping[str, Any]) -> bool:
    return server["state"] == "connected" or bool(server["reason"])


def call(gateway: Confined, tool: str, **arguments: object) -> str:
    return json.dumps(gateway.ask(f"/tools/{tool}", arguments))


def expect(gateway: Confined, tool: str, words: str, **arguments: object) -> None:
    """Call until the answer has these words: a server may be restarting with a new grant."""
    deadline = time.monotonic() + 120
    while words not in (answer := call(gateway, tool, **arguments)):
        assert time.monotonic() < deadline, (tool, answer)
        time.sleep(0.5)


def use_every_server(gateway: Confined, laptop: Laptop, port: int) -> None:
    """Let each server do its job once."""
    repository, note = str(laptop.repository), str(laptop.documents / "note.txt")
    expect(gateway, "git__git_log", "The start.", repo_path=repository)
    expect(gateway, "files__write_file", "Successfully", path=note, content="a note")
    expect(gateway, "files__read_text_file", "a note", path=note)
    expect(gateway, "memory__create_entities", "It runs.", entities=[ENTITY])
    expect(gateway, "memory__read_graph", "It runs.")
    expect(gateway, "sqlite__create_table", "created", query="CREATE TABLE notes (text TEXT)")
    expect(
        gateway, "sqlite__write_query", "affected_rows", query="INSERT INTO notes VALUES ('one')"
    )
    expect(gateway, "sqlite__read_query", "one", query="SELECT * FROM notes")
    expect(gateway, "time__get_current_time", "UTC", timezone="UTC")
    thought = {"thought": "x", "thoughtNumber": 1, "totalThoughts": 1, "nextThoughtNeeded": False}
    expect(gateway, "thinking__sequentialthinking", "thoughtNumber", **thought)
    expect(gateway, "everything__echo", "hello", message="hello")
    # No server reaches an address of this machine before a person names exactly that address.
    url = f"http://127.0.0.1:{port}/"
    refused = call(gateway, "fetch__fetch", url=url)
    approve = "comity servers permissions approve"
    assert f"{approve} fetch network.outbound --reach 127.0.0.1:{port}" in refused, refused
    gateway.run(f"{approve} fetch network.outbound --reach 127.0.0.1:{port}")
    expect(gateway, "fetch__fetch", "the word", url=url)


def test_every_server_does_its_job_after_one_yes_and_names_its_grant_after_a_no(
    laptop: Laptop,
) -> None:
    take_over(laptop, "y")
    with a_site() as port, serving(laptop) as gateway:
        servers = wait_until_tried(gateway)
        states = {name: (each["state"], each["sandbox"]) for name, each in servers.items()}
        assert states == dict.fromkeys(NAMES, ("connected", "bubblewrap")), servers
        use_every_server(gateway, laptop, port)
    assert "It runs." in (laptop.documents / "memory.jsonl").read_text()
    remove_folder(laptop.desk.home / "data")
    take_over(laptop, "n", "--force")
    with serving(laptop) as gateway:
        servers = wait_until_tried(gateway)
        check_refusals(gateway, laptop, servers)


def check_refusals(
    gateway: Confined, laptop: Laptop, servers: Mapping[str, Mapping[str, Any]]
) -> None:
    """Each failure names the sandbox and the whole command that mends it."""
    approve = "comity servers permissions approve"
    for name in ("everything", "thinking", "time"):
        assert servers[name]["state"] == "connected", servers[name]
    commands = {
        "git": f"{approve} git shell.execute --reach /usr/bin/git",
        "files": f"{approve} files filesystem.write --reach {laptop.documents}",
        "sqlite": f"{approve} sqlite filesystem.write --reach {laptop.desk.home / 'data'}",
    }
    for name, command in commands.items():
        assert "is confined" in servers[name]["reason"], servers[name]
        assert command in servers[name]["reason"], servers[name]
    assert commands["git"] in call(gateway, "git__git_log", repo_path=str(laptop.repository))
    diagnosis = laptop.desk.run("doctor")
    assert diagnosis.status == 1
    assert commands["git"] in " ".join(diagnosis.out.split())
    answer = call(gateway, "memory__create_entities", entities=[ENTITY])
    assert f"{approve} memory filesystem.write --reach {laptop.documents}" in answer, answer
    answer = call(gateway, "fetch__fetch", url="http://example.com/")
    assert f"{approve} fetch network.outbound --reach example.com:80" in answer, answer
