"""The control groups of servers, in a folder that stands for the file system of the kernel."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from comity.servers.sandbox.cgroups import ControlGroups
from comity.servers.sandbox.model import SandboxLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups need Linux")


@pytest.mark.integration
def test_groups_of_ended_gateways_are_removed_and_no_others(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            (tmp_path / controller / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller).mkdir(exist_ok=True)
    group = ControlGroups(tmp_path).create(f"{os.getpid()}-1", SandboxLimits())
    assert group is not None
    kept = {f"{os.getpid()}-1", f"{ended.pid}-2", "other", f"{ended.pid}-x"}
    for folder in group.folders:
        for name in (*kept, f"{ended.pid}-1"):
            folder.with_name(name).mkdir(exist_ok=True)
        # The kernel refuses to remove a group that holds a process, as a folder with a file is.
        (folder.with_name(f"{ended.pid}-2") / "process").touch()
    ControlGroups(tmp_path)
    for folder in group.folders:
        assert {each.name for each in folder.parent.iterdir()} == kept
