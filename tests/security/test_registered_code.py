"""Code that agents bring: what of it is refused, and what it finds around it when it runs."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from comity.servers.registration.settings import RegistrationSettings
from comity.servers.sandbox import service
from comity.servers.sandbox.levels import MachineSandbox, detect_levels
from comity.servers.sandbox.model import SandboxLevel
from comity.validation.worker import ValidationWorker
from tests.conformance.governed import refusal_of
from tests.conformance.newcomer_scene import (
    AGENT,
    MADE,
    MAY_CODE,
    MINE,
    REGISTER,
    answers,
    greeted,
    is_there,
    scene_of,
    tool_names,
    until_gone,
)
from tests.support.visitor import SECONDS


@pytest.fixture
def listener() -> Generator[socket.socket]:
    """A socket of this machine that a server must not reach."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


async def test_attack_23_no_variable_and_no_secret_of_the_gateway_goes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_CANARY", "a-secret-of-the-gateway")
    (tmp_path / "show.py").write_text("import os, sys; sys.exit(str(dict(os.environ)))")
    line = (sys.executable, str(tmp_path / "show.py"))
    async with scene_of(
        tmp_path,
        registration_commands=(" ".join(line),),
        registration_readable_folders=(str(tmp_path),),
    ) as (scene, admin):
        extras: list[dict[str, Any]] = [{"env": {"LD_PRELOAD": "x"}}, {"cwd": "/"}, {"headers": 1}]
        assert await answers(admin, *extras) == ["invalid_params"] * len(extras)
        # A program that the operator named, and that tells what it finds around it.
        wish = {"id": "dynamic.shows", "command": line[0], "args": [line[1]]}
        failed = json.dumps(await admin.ask(REGISTER, wish))
        assert "'PATH'" in failed
        assert "a-secret-of-the-gateway" not in failed
        assert "COMITY_CANARY" not in failed
        assert not is_there(scene, "dynamic.shows")


async def test_code_without_the_grant_is_neither_run_nor_asked_about(tmp_path: Path) -> None:
    async with scene_of(tmp_path, registration_allow_code_tools=True, more_grants=[MINE]) as (
        scene,
        _,
    ):
        agent = await greeted(scene, AGENT)
        assert refusal_of(await agent.ask(REGISTER, MADE)) == "access_denied"
        assert not is_there(scene, "dynamic.made")


ESCAPES = [
    "import os\ndef f(): return os.listdir('/')",
    "def f(): return open('/etc/passwd').read()",
    "def f(): return __import__('os')",
    "def f(): return ().__class__.__mro__[1].__subclasses__()",
    "def f(): return eval('1')",
    "import socket\ndef f(): ...",
    "from subprocess import run\ndef f(): ...",
    "def f(x=[].__class__): ...",
    "@print\ndef f(): ...",
    "not python at all",
]


@pytest.mark.parametrize("code", ESCAPES)
async def test_attack_13_code_that_reaches_out_is_refused(tmp_path: Path, code: str) -> None:
    async with scene_of(
        tmp_path,
        registration_allow_code_tools=True,
        policy_approval_policy="auto_approve",
        more_grants=[MAY_CODE],
    ) as (scene, _):
        agent = await greeted(scene, AGENT)
        assert refusal_of(await agent.ask(REGISTER, {**MADE, "code": code})) == "code_unsafe"
        assert not is_there(scene, "dynamic.made")


async def test_attack_20_what_is_registered_finds_neither_network_nor_files(
    tmp_path: Path, listener: socket.socket
) -> None:
    """A program that the operator named tries what it can, and tells in its last words."""
    secret = tmp_path / "secret"
    secret.write_text("the pepper")
    address = listener.getsockname()
    tries = f"""
import os, socket, sys
def attempt(what):
    try:
        what()
    except OSError as refused:
        return refused.errno
    return 'done'
found = [
    attempt(lambda: socket.create_connection({address!r}, 5)),
    attempt(lambda: socket.socket(socket.AF_UNIX)),
    attempt(lambda: open({str(secret)!r})),
    attempt(lambda: open({str(tmp_path / "new")!r}, 'w')),
    attempt(lambda: open('/etc/passwd')),
    attempt(lambda: os.kill({os.getpid()}, 0)),
    attempt(lambda: open('mine', 'w')),
]
sys.exit(str(found))
"""
    (tmp_path / "tries.py").write_text(tries)
    line = f"{sys.executable} -I {tmp_path / 'tries.py'}"
    async with scene_of(
        tmp_path, registration_commands=(line,), registration_readable_folders=()
    ) as (
        scene,
        admin,
    ):
        words = line.split()
        wish = {"id": "dynamic.tries", "command": words[0], "args": words[1:]}
        refused = await admin.ask(REGISTER, wish)
        told = refused["error"]["message"]
        assert "No such file or directory" in told or "Permission denied" in told
    # Only the script itself is shown to it; all else stays closed.
    async with scene_of(
        tmp_path, registration_commands=(line,), registration_readable_folders=(words[2],)
    ) as (scene, admin):
        told = (await admin.ask(REGISTER, wish))["error"]["message"]
        # With namespaces: not there, no such process, and a /tmp of its own. Without: refused.
        best = "[13, 1, 2, 'done', 2, 3, 'done']"
        assert best in told or "[1, 1, 13, 13, 13, 1, 'done']" in told
        assert not (tmp_path / "new").exists()
        await until_gone(scene)


ESCAPING = """
def attempts(secret: str, new: str, pid: int, port: int) -> str:
    import os, socket, subprocess
    def attempt(what):
        try:
            what()
        except OSError as refused:
            return type(refused).__name__
        return "done"
    return " ".join([
        attempt(lambda: socket.create_connection(("127.0.0.1", port), 5)),
        attempt(lambda: socket.socket(socket.AF_UNIX)),
        attempt(lambda: open(secret)),
        attempt(lambda: open(new, "w")),
        attempt(lambda: open("/etc/passwd")),
        attempt(lambda: os.kill(pid, 0)),
        attempt(lambda: subprocess.run(["/bin/sh", "-c", ""])),
        attempt(lambda: os.execv("/bin/sh", ["sh"])),
    ])
"""
MAKES_TOOLS: dict[str, Any] = {
    "registration_allow_code_tools": True,
    "policy_approval_policy": "auto_approve",
    "more_grants": [MAY_CODE],
}


@pytest.fixture
def blind_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check of code find nothing, so that only the sandbox is left."""

    async def find_nothing(*_: object) -> tuple[str, ...]:
        return ()

    monkeypatch.setattr(ValidationWorker, "violations", find_nothing)


@pytest.mark.usefixtures("blind_check")
@pytest.mark.parametrize("has_namespaces", [True, False], ids=["best", "landlock"])
async def test_code_of_agents_runs_at_the_best_level_with_nothing_granted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_namespaces: bool,
    listener: socket.socket,
) -> None:
    machine = detect_levels() if has_namespaces else MachineSandbox(SandboxLevel.LANDLOCK, "a test")
    if machine.best < SandboxLevel.LANDLOCK:
        pytest.skip(machine.reason)
    monkeypatch.setattr(service, "detect_levels", lambda: machine)
    (tmp_path / "secret").write_text("the pepper")
    async with scene_of(tmp_path, **MAKES_TOOLS) as (scene, _):
        agent = await greeted(scene, AGENT)
        made = await agent.ask(REGISTER, {**MADE, "code": ESCAPING})
        assert made["result"]["tools"] == ["attempts"], made
        assert scene.visitor.parts.servers.sandbox_level("dynamic.made") == machine.best.label
        (name,) = [each for each in await tool_names(agent) if "attempts" in each]
        places = {"secret": str(tmp_path / "secret"), "new": "/var/tmp/new", "pid": os.getpid()}
        places["port"] = listener.getsockname()[1]
        told = await agent.ask("tools/call", {"name": name, "arguments": places})
        found = told["result"]["content"][0]["text"].split()
        assert (len(found), "done" in found) == (8, False), found


@pytest.mark.usefixtures("blind_check")
async def test_code_of_agents_does_not_run_without_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = MachineSandbox(SandboxLevel.BASIC, "a test")
    monkeypatch.setattr(service, "detect_levels", lambda: machine)
    async with scene_of(tmp_path, **MAKES_TOOLS) as (scene, _):
        agent = await greeted(scene, AGENT)
        refused = json.dumps(await agent.ask(REGISTER, MADE))
        assert "it must be confined" in refused
        assert not is_there(scene, "dynamic.made")


async def test_code_that_the_operator_leaves_unconfined_is_logged_at_each_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = MachineSandbox(SandboxLevel.BASIC, "a test")
    monkeypatch.setattr(service, "detect_levels", lambda: machine)
    async with scene_of(tmp_path, **MAKES_TOOLS, registration_sandbox=False) as (scene, _):
        agent = await greeted(scene, AGENT)
        made = await agent.ask(REGISTER, MADE)
        assert "result" in made, made
        servers = scene.visitor.parts.servers
        assert servers.sandbox_level("dynamic.made") == SandboxLevel.NONE.label
        assert unconfined_starts(caplog) == 1
        await servers.restart("dynamic.made")
        async with asyncio.timeout(SECONDS):
            while unconfined_starts(caplog) < 2:
                await asyncio.sleep(0.02)


def unconfined_starts(caplog: pytest.LogCaptureFixture) -> int:
    return caplog.text.count("Registered server 'dynamic.made' runs unconfined")


async def test_agents_make_no_tools_unless_the_operator_allows_it(tmp_path: Path) -> None:
    assert not RegistrationSettings().allow_code_tools
    assert RegistrationSettings().sandbox
    chosen = {**MAKES_TOOLS, "registration_allow_code_tools": None}
    async with scene_of(tmp_path, **chosen) as (scene, _):
        agent = await greeted(scene, AGENT)
        assert refusal_of(await agent.ask(REGISTER, MADE)) == "access_denied"
        assert not is_there(scene, "dynamic.made")
