"""The systemd unit: a real command, ended in the right order, and what hardening must leave out."""

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, understood

UNIT = DEPLOY / "comity.service"


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name].append(value)
    return found


def test_it_starts_a_real_command() -> None:
    (command,) = settings()["ExecStart"]
    program, *words = command.split()
    assert program.endswith("/bin/comity")
    assert understood(words) == "serve"


def test_comity_is_asked_to_end_and_all_that_is_left_is_killed() -> None:
    unit = settings()
    assert unit["KillMode"] == ["mixed"]
    assert unit["OOMPolicy"] == ["continue"]
    assert unit["RestartPreventExitStatus"] == ["2"]


def test_it_has_no_privileges_and_what_servers_need_is_left_to_them() -> None:
    unit = settings()
    assert unit["NoNewPrivileges"] == unit["DynamicUser"] == ["yes"]
    assert unit["CapabilityBoundingSet"] == [""]
    assert unit.keys() & {"MemoryDenyWriteExecute", "RestrictNamespaces", "ProcSubset"} == set()


def test_systemd_is_notified_and_secrets_are_credentials() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert unit["WatchdogSec"] == ["60"]
    assert unit["LoadCredential"] == ["comity:/etc/comity/credentials"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say_against_it(tmp_path: Path) -> None:
    here = Path(sys.executable).with_name("comity")
    copy = tmp_path / "comity.service"
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/comity/bin/comity", str(here)))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
