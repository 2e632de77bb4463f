"""The users and capabilities of servers that a gateway of root confines without namespaces."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from comity.errors import Unavailable
from comity.servers.process.process import ServerCommand
from comity.servers.sandbox import service
from comity.servers.sandbox.model import SandboxAccess, SandboxLevel, SandboxLimits, SandboxPolicy
from comity.servers.sandbox.reach import FolderHandles, open_folders
from comity.servers.sandbox.service import (
    NetworkProxy,
    SandboxRequest,
    SandboxRun,
    SandboxService,
    ServerUsers,
)
from tests.servers.sandbox.levels import skip_without

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

# A shell runs this without starting another program.
STATUS = "while read -r line; do echo $line; done < /proc/self/status; echo x > $HOME/own"
SHELL = ("/bin/sh", "-c", STATUS)
NO_CAPABILITIES = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)


def no_proxy(server: str, hosts: tuple[str, ...], listener: socket.socket) -> NetworkProxy:
    raise AssertionError("these servers have no network")


def ask(
    level: SandboxLevel, access: SandboxAccess, *commands: tuple[str, ...]
) -> list[dict[str, str]]:
    """Enter a sandbox for each command, then run them. Return the lines of each status by name."""

    async def enter_all() -> list[dict[str, str]]:
        sandboxes, runs = SandboxService(no_proxy), list[SandboxRun]()
        try:
            for number, words in enumerate(commands):
                request = SandboxRequest(level.label, False, access, SandboxLimits())
                command = ServerCommand(words, {})
                runs.append(
                    await sandboxes.enter(
                        f"server-{number}", command, request, open_folders(access, ())
                    )
                )
            return [await asyncio.to_thread(_run, run.command) for run in runs]
        finally:
            for run in runs:
                await run.close()
            await sandboxes.close()

    return asyncio.run(enter_all())


def _run(command: ServerCommand) -> dict[str, str]:
    env = {**os.environ, **command.env}
    done = subprocess.run(
        command.argv, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = (line.partition(":") for line in done.stdout.splitlines())
    return {name: value.strip() for name, _, value in lines}


def capabilities(status: dict[str, str]) -> dict[str, str]:
    return {name: status[name] for name in NO_CAPABILITIES}


@only_root
def test_each_server_of_root_has_a_user_of_its_own_and_no_capabilities() -> None:
    skip_without(SandboxLevel.LANDLOCK)
    first, second = ask(SandboxLevel.LANDLOCK, SandboxAccess(), SHELL, SHELL)
    users = [set(status[name].split()) for status in (first, second) for name in ("Uid", "Gid")]
    assert users[0] == users[1] != users[2] == users[3]
    assert all(len(each) == 1 and int(each.copy().pop()) > 60000 for each in users)
    assert (first["Groups"], second["Groups"]) == ("", "")
    assert capabilities(first) == capabilities(second) == NO_CAPABILITIES


@only_root
def test_a_server_with_a_granted_folder_is_root_without_capabilities(tmp_path: Path) -> None:
    skip_without(SandboxLevel.LANDLOCK)
    foreign = tmp_path / "foreign"
    foreign.write_text("of another user")
    foreign.chmod(0o600)
    os.chown(foreign, 1234, 1234)
    script = f"{STATUS}; echo x > {tmp_path}/new; ! read -r line 2>/dev/null < {foreign}"
    access = SandboxAccess(writable=(str(tmp_path),))
    (status,) = ask(SandboxLevel.LANDLOCK, access, ("/bin/sh", "-c", script))
    assert status["Uid"].split() == ["0"] * 4
    assert capabilities(status) == NO_CAPABILITIES
    assert (tmp_path / "new").read_text() == "x\n"


@only_root
def test_a_program_that_only_root_can_read_stays_root(tmp_path: Path) -> None:
    skip_without(SandboxLevel.LANDLOCK)
    script = tmp_path / "server"
    script.write_text(f"#!/bin/sh\n{STATUS}\n")
    script.chmod(0o700)
    (status,) = ask(SandboxLevel.LANDLOCK, SandboxAccess(), (str(script),))
    assert status["Uid"].split() == ["0"] * 4
    assert capabilities(status) == NO_CAPABILITIES


def test_the_basic_level_takes_the_capabilities_too() -> None:
    (status,) = ask(SandboxLevel.BASIC, SandboxAccess(), SHELL)
    held = {name: value for name, value in capabilities(status).items() if name != "CapBnd"}
    assert set(held.values()) == {"0" * 16}
    assert (status["NoNewPrivs"], status["Uid"].split()[0]) == ("1", str(os.getuid()))


def test_a_server_without_a_user_of_its_own_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    users = ServerUsers()
    lent = [users.take() for _ in range(478)]
    with pytest.raises(Unavailable, match="no user is free"):
        users.take()
    users.give_back(lent[0])
    assert users.take() == lent[0]


@only_root
def test_a_user_is_free_again_even_if_its_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise RecursionError(folder)

    users = ServerUsers()
    policy = SandboxPolicy(SandboxLevel.LANDLOCK)
    folders = FolderHandles({})
    run = SandboxRun("files", policy, ServerCommand(("x",), {}), users, folders)
    run.prepare_folders(tmp_path, lambda _: None)
    left = len([users.take() for _ in range(477)])
    monkeypatch.setattr(service, "remove_folder", fail)
    with pytest.raises(RecursionError):
        asyncio.run(run.close())
    assert (left, users.take() > 0) == (477, True)
