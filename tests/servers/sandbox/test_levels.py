"""The levels of a machine, and what other systems than Linux get."""

import json
import os
import subprocess
import sys

import pytest

from comity.app.checks.machine import check_machine
from comity.errors import Unavailable
from comity.servers.sandbox import stage
from comity.servers.sandbox.launch import sandbox_command
from comity.servers.sandbox.levels import AUTO, detect_levels
from comity.servers.sandbox.model import SandboxLevel, SandboxPolicy

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
