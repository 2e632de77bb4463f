"""The levels of a machine, and what other systems than Linux get."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from comity.app.checks.machine import check_machine
from comity.errors import Unavailable
from comity.servers.sandbox import levels, service, stage
from comity.servers.sandbox.launch import sandbox_command
from comity.servers.sandbox.levels import AUTO, MachineSandbox, detect_levels
from comity.servers.sandbox.model import SandboxLevel, SandboxPolicy
from comity.servers.sandbox.service import SandboxService
from tests.servers.sandbox.test_users import no_proxy
from tests.support.cases import loop_over

# A system without /proc and without the calls of Linux.
_ON_A_MAC = """
import ctypes, os, runpy, sys
sys.platform = "darwin"
list_folder = os.listdir
def refuse(*words, **options):
    raise AttributeError("this system has no prctl")
def list_other(place="."):
    if str(place).startswith("/proc"):
        raise FileNotFoundError(place)
    return list_folder(place)
ctypes.CDLL, os.listdir = refuse, list_other
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")


@pytest.mark.usefixtures("mac")
def test_another_system_has_the_basic_level_and_starts_no_sandboxed_server() -> None:
    found = detect_levels()
    assert found.choose(AUTO, must_confine=False) is SandboxLevel.BASIC
    with pytest.raises(Unavailable, match=r"best level of this machine is 'basic'.* need Linux"):
        found.choose(AUTO, must_confine=True)
    with pytest.raises(Unavailable, match="'landlock'"):
        found.choose("landlock", must_confine=False)
    with pytest.raises(OSError, match="not implemented"):
        stage.landlock_version()


@pytest.mark.usefixtures("mac")
def test_the_doctor_says_which_level_another_system_has() -> None:
    (told,) = (each for each in check_machine({}) if each.about == "sandbox")
    assert told.verdict == "warning"
    assert "the level is basic" in told.message
    assert "`sandboxed` servers do not start" in told.message
    assert "bubblewrap" not in told.remedy


def _refuse(error: Exception) -> Callable[..., object]:
    def run(*_: object, **__: object) -> object:
        raise error

    return run


def _end(status: int, said: str) -> Callable[..., object]:
    done = subprocess.CompletedProcess([], status, b"", said.encode())
    return lambda *_, **__: done


BUSY = {
    "a timeout": _refuse(subprocess.TimeoutExpired("bwrap", 20)),
    "no process": _refuse(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))),
    "no memory": _refuse(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))),
    "no memory inside": _end(1, f"bwrap: Creating new namespace: {os.strerror(errno.ENOMEM)}"),
    "killed": _end(-9, ""),
}


@loop_over("run", BUSY.values(), ids=BUSY)
def test_a_busy_machine_gives_no_weaker_level(
    run: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(levels, "find_bubblewrap", lambda: "/usr/bin/bwrap")
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Unavailable, match="too busy to try the level 'bubblewrap'"):
        detect_levels()
    (told,) = (each for each in check_machine({}) if each.about == "sandbox")
    assert "too busy" in told.message


def test_a_level_that_does_not_work_is_no_level_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(levels, "find_bubblewrap", lambda: "/usr/bin/bwrap")
    monkeypatch.setattr(subprocess, "run", _end(1, "bwrap: No permissions to create namespace"))
    assert detect_levels().best < SandboxLevel.BUBBLEWRAP


def test_a_level_that_could_not_be_found_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[MachineSandbox | None] = [MachineSandbox(SandboxLevel.BUBBLEWRAP), None]

    def detect() -> MachineSandbox:
        answer = answers.pop()
        if answer is None:
            raise Unavailable("this machine is too busy")
        return answer

    async def ask_twice() -> MachineSandbox:
        sandboxes = SandboxService(no_proxy)
        with pytest.raises(Unavailable):
            await sandboxes.machine()
        return await sandboxes.machine()

    monkeypatch.setattr(service, "detect_levels", detect)
    assert asyncio.run(ask_twice()).best is SandboxLevel.BUBBLEWRAP


@pytest.mark.integration
def test_the_basic_level_limits_a_program_on_another_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        argv = sandbox_command(
            SandboxPolicy(SandboxLevel.BASIC), (sys.executable, "-c", code), os.environ, folder="/"
        )
    python, *options, script = argv[:4]
    assert json.loads(argv[4])["level"] == SandboxLevel.BASIC
    words = (python, *options, "-c", _ON_A_MAC, script, *argv[4:])
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("1024\n", "")
