"""The start of a server whose package must be downloaded first."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from comity.errors import Unavailable
from comity.servers.packages.launcher import ServerLauncher
from comity.servers.packages.model import WrittenEntry
from comity.servers.packages.package_store import PackageStore
from comity.servers.process.process import ServerCommand

pytestmark = pytest.mark.integration


async def test_a_download_goes_on_after_a_start_gave_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, may_end, program = (tmp_path / name for name in ("begun", "may-end", "npm"))
    program.write_text(
        f"#!/bin/sh\necho begun >> {begun}\n"
        f"while [ ! -e {may_end} ]; do sleep 0.05; done\necho 'nowhere to be found'\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command = ServerCommand(("npx", "-y", "greeter"), {})
    launcher = ServerLauncher(
        "files",
        command,
        WrittenEntry(),
        "store",
        store=PackageStore(tmp_path / "store"),
        install_wait=timedelta(milliseconds=10),
    )
    for _ in range(2):
        with pytest.raises(Unavailable, match="its package greeter is being downloaded"):
            await launcher.prepare()
    assert capsys.readouterr().err.count("server 'files': downloading greeter") == 1
    may_end.touch()
    with pytest.raises(Unavailable, match="nowhere to be found"):
        await replace(launcher, install_wait=timedelta(seconds=60)).prepare()
    assert begun.read_text() == "begun\n"
