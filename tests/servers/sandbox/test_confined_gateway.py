"""Real gateways whose servers try to do what they were not granted."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import comity as comity_package
from comity.app.settings_reader import ConfigSource
from comity.sdk.agent import Agent
from comity.sdk.agent_results import AgentRefusal
from comity.servers.sandbox.model import LEVEL_BY_LABEL, SandboxLevel
from comity.servers.sandbox.reach import write_problem
from tests.cli.program import Desk
from tests.interop.processes import comity, operator_headers, operator_token
from tests.servers.sandbox.levels import skip_without

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]

SERVER = Path(__file__).with_name("confined_server.py")
LEVELS = pytest.mark.parametrize("level", ["bubblewrap", "landlock"])


class Confined:
    """A running gateway with one confined server, and its operator."""

    def __init__(self, origin: str, config: Path) -> None:
        self.origin, self.config = origin, config
        self._headers = {"Content-Type": "application/json", **operator_headers(origin)}

    def ask(self, path: str, body: Mapping[str, object] | None = None) -> Any:
        """Return the answer as JSON, also that of an error."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.origin + path, data, self._headers)  # noqa: S310
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            return json.load(refused)

    def call(self, tool: str, **arguments: object) -> str:
        return json.dumps(self.ask(f"/tools/confined__{tool}", arguments))

    def server(self) -> Mapping[str, Any]:
        return self.ask("/api/servers/confined")

    def run(self, command: str, status: int = 0) -> str:
        """Run a command line of Comity as a person, and return its output."""
        program, *words = shlex.split(command)
        assert program == "comity"
        done = subprocess.run(
            [str(Path(sys.executable).with_name("comity")), *words],
            env={**os.environ, "COMITY_URL": self.origin},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr

    def audit(self, kind: str) -> list[Mapping[str, Any]]:
        return self.ask(f"/api/audit?type={kind}")["entries"]


@contextmanager
def confined(folder: Path, level: str, permissions: Mapping[str, list[str]]) -> Generator[Confined]:
    skip_without(LEVEL_BY_LABEL.get(level, SandboxLevel.LANDLOCK))
    words = [f'"{name}" = {json.dumps(places)}' for name, places in permissions.items()]
    config = folder / "comity.toml"
    config.write_text(
        f"""
[store]
url = "sqlite:///{folder / "store.db"}"

[[servers]]
id = "confined"
command = {json.dumps(sys.executable)}
args = [{json.dumps(str(SERVER))}]
sandbox = "{level}"
max_processes = 64
max_memory_mb = 400

[servers.policy]
trust = "sandboxed"
permissions = {{ {", ".join(words)} }}
"""
    )
    with comity(config) as origin:
        yield Confined(origin, config)


@contextmanager
def a_site() -> Generator[int]:
    """Serve a word on a port of this machine."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"the word")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as served:
        Thread(target=served.serve_forever, daemon=True).start()
        yield served.server_port
        served.shutdown()


@pytest.mark.requirement("MGP-3.2-filesystem.read", "MGP-3.2-filesystem.write")
@pytest.mark.requirement("MGP-3.2-network.outbound", "MGP-3.2-shell.execute")
@LEVELS
def test_a_server_does_what_it_was_granted_and_nothing_else(level: str, tmp_path: Path) -> None:
    for name in ("read", "write", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"the file in {name}")
    with a_site() as granted, a_site() as other:
        permissions = {
            "filesystem.read": [str(tmp_path / "read")],
            "filesystem.write": [str(tmp_path / "write")],
            "network.outbound": [f"127.0.0.1:{granted}"],
        }
        with confined(tmp_path, level, permissions) as gateway:
            assert gateway.server()["sandbox"] == level
            assert "the file in read" in gateway.call("read", path=str(tmp_path / "read/file"))
            assert "the file" not in gateway.call("read", path=str(tmp_path / "other/file"))
            assert "the file" not in gateway.call("read", path=str(gateway.config))
            gateway.call("write", path=str(tmp_path / "write/new"), text="x")
            gateway.call("write", path=str(tmp_path / "read/new"), text="x")
            gateway.call("write", path=str(tmp_path / "other/new"), text="x")
            assert "the word" in gateway.call("fetch", url=f"http://127.0.0.1:{granted}/")
            refused = gateway.call("fetch", url=f"http://127.0.0.1:{other}/")
            assert f"network.outbound for 127.0.0.1:{other} is not granted" in refused
            assert "connected" not in gateway.call("connect", host="127.0.0.1", port=granted)
            assert "connected" not in gateway.call("connect", host="127.0.0.1", port=other)
            port = int(gateway.origin.rpartition(":")[2])
            assert "connected" not in gateway.call("connect", host="127.0.0.1", port=port)
            assert "hello" not in gateway.call("execute", words=["/bin/echo", "hello"])
            connections = [entry["result"] for entry in gateway.audit("dev.comity.server_network")]
            assert sorted(set(connections)) == ["BLOCKED", "SUCCESS"]
    made = [place.parent.name for place in tmp_path.glob("*/new")]
    assert made == ["write"]


def test_the_level_of_a_server_is_in_its_health_its_audit_entry_and_the_lists(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    with confined(tmp_path, "landlock", {}) as gateway:

        async def health() -> Any:
            async with (
                asyncio.timeout(60),
                Agent(f"{gateway.origin}/mcp", operator_token(gateway.origin)) as agent,
            ):
                return await agent.health()

        told = asyncio.run(health())
        assert not isinstance(told, AgentRefusal)
        assert told["sandbox"] == {"confined": "landlock"}
        (connected,) = gateway.audit("SERVER_CONNECTED")
        assert connected["details"]["sandbox"] == "landlock"
        for command in (["list"], ["show", "confined"]):
            shown = desk.run("servers", *command, "--url", gateway.origin)
            assert "landlock" in shown.out, shown.err


@LEVELS
def test_a_server_cannot_decide_for_the_operator(level: str, tmp_path: Path) -> None:
    """Finding F2: in local mode a server accepted its own definition and approved its own call."""
    with confined(tmp_path, level, {"network.outbound": ["*"]}) as gateway:
        for url in (
            f"{gateway.origin}/api/servers",
            f"http://localhost:{gateway.origin.rpartition(':')[2]}/api/servers",
        ):
            told = gateway.call("fetch", url=url)
            assert "not granted" in told or "refused" in told
            assert "confined_server" not in told
        records = Path.home() / ".local" / "state"
        assert "token" not in gateway.call("read", path=str(records))


def test_a_server_that_reaches_its_limits_is_told_to_the_operator(tmp_path: Path) -> None:
    with confined(tmp_path, "auto", {}) as gateway:
        assert "Resource temporarily unavailable" in gateway.call("fork_endlessly")
        told = gateway.call("take_memory", megabytes=600)
        told += json.dumps(gateway.server()["history"])
        # The process got no more, the kernel ended it, or the supervisor saw the memory first.
        limits = ("MemoryError", "its limit of 400 MB of memory", "resource_limit")
        assert any(text in told for text in limits), told


def test_a_host_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with confined(tmp_path, "auto", {"network.outbound": ["https://a.example/"]}) as gateway:
        assert "https://a.example/" in gateway.server()["reason"]


def test_a_folder_that_holds_the_operators_token_is_not_granted(tmp_path: Path) -> None:
    state = os.environ["COMITY_STATE_DIR"]
    with confined(tmp_path, "auto", {"filesystem.read": [state]}) as gateway:
        assert "holds files of Comity itself" in gateway.server()["reason"]


def test_a_folder_that_holds_the_configuration_is_not_writable(tmp_path: Path) -> None:
    """A server that wrote itself into the file would start again without a sandbox."""
    with confined(tmp_path, "auto", {"filesystem.write": [str(tmp_path)]}) as gateway:
        assert f"{tmp_path} holds the configuration of Comity" in gateway.server()["reason"]


def test_files_that_decide_what_comity_does_are_not_writable(tmp_path: Path) -> None:
    real, links, out = (tmp_path / name for name in ("real", "links", "out"))
    for folder in (real, links, out):
        folder.mkdir()
    (real / "comity.toml").write_text("")
    (links / "comity.toml").symlink_to(real / "comity.toml")
    loaded = ConfigSource(tmp_path, tmp_path, {}, links / "comity.toml", needs_trust=False).load()
    for place in (tmp_path, real, links, real / "comity.toml", links / "comity.lock"):
        problem = write_problem(str(place), loaded.settings.config_files)
        assert problem is not None, place
        assert "holds the configuration of Comity" in problem
    for place in (Path(comity_package.__file__).parent, Path(sys.prefix)):
        assert "programs of Comity" in (write_problem(str(place), ()) or "")
    assert write_problem(str(out), loaded.settings.config_files) is None


def test_a_file_that_would_come_into_force_is_not_writable(tmp_path: Path) -> None:
    """A project file needs an approval first. A new file of the user does not."""
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    (home / ".config/mgp").mkdir(parents=True)
    (home / ".config/mgp/servers.toml").write_text('[[servers]]\nid = "a"\ncommand = "true"\n')
    found = ConfigSource(project, home, {}, needs_trust=True).load().settings.config_files
    assert write_problem(str(home / ".config/comity"), found) is not None
    assert write_problem(str(project), found) is None


@pytest.mark.requirement("MGP-3.1-decide")
@pytest.mark.requirement("MGP-3.6-approved", "MGP-3.6-denied", "MGP-3.2-shell.execute")
def test_a_permission_that_is_approved_later_widens_the_sandbox(tmp_path: Path) -> None:
    with confined(tmp_path, "auto", {}) as gateway:
        assert "hello" not in gateway.call("execute", words=["/bin/echo", "hello"])
        body = {"server": "confined", "permission": "shell.execute"}
        assert "error" not in gateway.ask("/api/permissions/approve", body)
        assert within(lambda: "hello" in gateway.call("execute", words=["/bin/echo", "hello"]))
        assert "error" not in gateway.ask("/api/permissions/deny", body)
        assert within(lambda: "hello" not in gateway.call("execute", words=["/bin/echo", "hello"]))


APPROVE = "comity servers permissions approve confined"


@LEVELS
def test_a_program_that_is_approved_by_its_path_is_the_only_one(level: str, tmp_path: Path) -> None:
    with confined(tmp_path, level, {"shell.execute": ["/usr/bin/printf"]}) as gateway:
        printed = gateway.call("execute", words=["/usr/bin/printf", "he%s", "llo"])
        assert "hello" in printed, printed
        assert "hello" not in gateway.call("execute", words=["/bin/echo", "hello"])
        gateway.run(f"{APPROVE} shell.execute --reach /bin/echo")
        assert within(lambda: "hello" in gateway.call("execute", words=["/bin/echo", "hello"]))
        gateway.run(f"{APPROVE} shell.execute --reach '*'")
        assert within(
            lambda: "hello" in gateway.call("execute", words=["/usr/bin/env", "echo", "hello"])
        )


def test_a_program_in_a_folder_that_a_server_may_write_to_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "tool").symlink_to("/bin/echo")
    permissions = {"filesystem.write": [str(own)], "shell.execute": [str(own / "tool")]}
    with confined(tmp_path, "auto", permissions) as gateway:
        assert "in a folder that a server may write to" in gateway.server()["reason"]


@LEVELS
def test_a_folder_that_is_approved_by_a_command_can_be_read_until_it_is_revoked(
    level: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_text("the file")
    with confined(tmp_path, level, {}) as gateway:

        def readable() -> list[bool]:
            calls = [gateway.call("read", path=str(folder / "file")) for folder in folders]
            return ["the file" in told for told in calls]

        assert readable() == [False, False]
        gateway.run(f"{APPROVE} filesystem.read --reach {folders[0]}")
        assert within(lambda: readable() == [True, False])
        told = gateway.run(f"{APPROVE} filesystem.read --reach {folders[1]} -o json")
        assert json.loads(told)["permissions"][0]["reach"] == list(map(str, folders))
        assert within(lambda: readable() == [True, True])
        listed = gateway.run("comity servers permissions list -o wide")
        assert f"{folders[0]}, {folders[1]}" in " ".join(listed.split())
        last = max(gateway.audit("PERMISSION_GRANTED"), key=lambda entry: entry["seq"])
        assert last["details"]["reach"] == list(map(str, folders))
        gateway.run("comity servers permissions reset confined filesystem.read")
        assert within(lambda: readable() == [False, False])


@LEVELS
def test_a_revoked_permission_ends_a_running_call_at_once(level: str, tmp_path: Path) -> None:
    for name in ("one", "log"):
        (tmp_path / name).mkdir()
    file, log = tmp_path / "one/file", tmp_path / "log/log"
    file.write_text("the file")
    with confined(tmp_path, level, {"filesystem.write": [str(log.parent)]}) as gateway:
        gateway.run(f"{APPROVE} filesystem.read --reach {file.parent}")
        assert within(lambda: "the file" in gateway.call("read", path=str(file)))
        with ThreadPoolExecutor(1) as pool:
            call = pool.submit(gateway.call, "watch", path=str(file), log=str(log))
            assert within(log.exists)
            body = {"server": "confined", "permission": "filesystem.read"}
            gateway.ask("/api/permissions/deny", body)
            revoked = time.time()
            told = call.result(20)
        assert "a permission of it was revoked: filesystem.read" in told
        assert within(lambda: gateway.server()["state"] == "connected")
        assert "the file" not in gateway.call("read", path=str(file))
        # A drain would wait for the call for 30 seconds, and a signal for 2 more.
        assert log.stat().st_mtime < revoked + 1.5


def test_an_approval_that_expires_ends_the_access(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    file = tmp_path / "one/file"
    file.write_text("the file")
    with confined(tmp_path, "auto", {}) as gateway:
        body = {"server": "confined", "permission": "filesystem.read"}
        limited = {**body, "reach": [str(file.parent)], "expires_in_seconds": 10}

        def reads_once_approved() -> bool:
            # On a busy machine, the restart may take longer than one approval lasts.
            assert "error" not in gateway.ask("/api/permissions/approve", limited)
            return "the file" in gateway.call("read", path=str(file))

        assert within(reads_once_approved, 60)
        assert within(lambda: "the file" not in gateway.call("read", path=str(file)))


def test_the_command_of_a_refused_connection_opens_it(tmp_path: Path) -> None:
    with a_site() as port, confined(tmp_path, "bubblewrap", {}) as gateway:
        url = f"http://127.0.0.1:{port}/"
        refused = json.loads(gateway.call("fetch", url=url))["content"][0]["text"]
        target = f"127.0.0.1:{port}"
        command = f"{APPROVE} network.outbound --reach {target}"
        assert refused == (
            f"403: network.outbound for {target} is not granted; a person can approve it, and then "
            f"the server restarts: {command}\n"
        )
        (entry,) = gateway.audit("dev.comity.server_network")
        assert (entry["result"], entry["details"]["port"]) == ("BLOCKED", port)
        gateway.run(refused.rpartition(": ")[2])
        assert within(lambda: "the word" in gateway.call("fetch", url=url))
        gateway.run("comity servers permissions reset confined network.outbound")
        assert within(lambda: "is not granted" in gateway.call("fetch", url=url))


def test_a_place_that_no_server_can_get_is_refused(tmp_path: Path) -> None:
    state = Path(os.environ["COMITY_STATE_DIR"])
    with confined(tmp_path, "auto", {}) as gateway:
        for permission, place, told in (
            ("filesystem.read", "srv/project", "must be an absolute path"),
            ("filesystem.read", "/", "must be a folder below /"),
            ("filesystem.write", str(state), "holds files of Comity itself"),
            ("filesystem.write", str(state / "keys"), "belongs to Comity itself"),
            ("network.outbound", "https://a.example/", "write HOST:PORT"),
            ("shell.execute", "/bin", "is no program that this user may execute"),
            ("shell", "git", "must be the full path of a program"),
            ("memory.read", "/bin", "memory.read has no reach"),
        ):
            said = gateway.run(f"{APPROVE} {permission} --reach {place}", status=2)
            assert told in " ".join(said.split())
        for action in ("deny", "reset"):
            body = {"server": "confined", "permission": "filesystem.read", "reach": ["/srv"]}
            told = json.dumps(gateway.ask(f"/api/permissions/{action}", body))
            assert "only an approval has a reach" in told
        assert gateway.ask("/api/permissions")["permissions"] == []


def within(is_true: Any, seconds: float = 30) -> bool:
    async def look() -> bool:
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(is_true):
                await asyncio.sleep(0.05)
        return True

    return asyncio.run(look())


@LEVELS
def test_a_server_does_not_reach_a_folder_by_a_link_that_it_made(
    level: str, tmp_path: Path
) -> None:
    work, private = tmp_path / "work", tmp_path / "private"
    (work / "sub").mkdir(parents=True)
    private.mkdir()
    (private / "secret").write_text("the secret")
    rights = {"filesystem.write": [str(work)], "filesystem.read": [str(work / "sub")]}
    # What the server could do before a restart.
    (work / "sub").rmdir()
    (work / "sub").symlink_to(private)
    with confined(tmp_path, level, rights) as gateway:
        assert "the secret" not in gateway.call("read", path=str(work / "sub" / "secret"))
        gateway.call("write", path=str(work / "new"), text="x")
    assert (work / "new").exists()
