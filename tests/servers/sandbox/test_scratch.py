"""What a server may write to its scratch folder, at each level."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from comity.servers.process.process import ServerCommand
from comity.servers.sandbox.model import (
    LEVEL_BY_LABEL,
    MEGABYTE,
    SandboxAccess,
    SandboxLevel,
    SandboxLimits,
)
from comity.servers.sandbox.reach import FolderHandles
from comity.servers.sandbox.service import SandboxRequest, SandboxService
from tests.interop.processes import comity
from tests.servers.sandbox.levels import skip_without
from tests.servers.sandbox.test_confined_gateway import SERVER, Confined, within
from tests.servers.sandbox.test_users import no_proxy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]

# Writes as many files of a megabyte as each line of its input says.
WRITER = """
import os, sys
written = 0
for line in sys.stdin:
    for _ in range(int(line)):
        written += 1
        with open(f"{os.environ['HOME']}/part-{written}", "wb") as part:
            part.write(bytes(1024 * 1024))
    print(written, flush=True)
"""
FOLDERS_OF_THE_DISK = pytest.mark.parametrize("label", ["basic", "landlock"])


@FOLDERS_OF_THE_DISK
def test_a_server_ends_when_its_folder_holds_more_than_four_large_files(label: str) -> None:
    if label == "landlock":
        skip_without(SandboxLevel.LANDLOCK)

    async def fill() -> tuple[int | None, int, list[str]]:
        sandboxes = SandboxService(no_proxy)
        request = SandboxRequest(label, False, SandboxAccess(), SandboxLimits(file_bytes=MEGABYTE))
        command = ServerCommand((sys.executable, "-I", "-S", "-c", WRITER), {})
        run = await sandboxes.enter("writer", command, request, FolderHandles({}))
        process = await asyncio.create_subprocess_exec(
            *run.command.argv,
            env={**os.environ, **run.command.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        faults = list[str]()

        def kill(fault: str) -> None:
            faults.append(fault)
            process.kill()

        run.on_started(kill)

        async def write(megabytes: int) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{megabytes}\n".encode())
            assert await process.stdout.readline()
            await sandboxes.end_filled_runs()

        try:
            async with asyncio.timeout(60):
                await write(3)
                after_three = process.returncode
                await write(2)
                return after_three, await process.wait(), faults
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await run.close()
            await sandboxes.close()

    assert asyncio.run(fill()) == (
        None,
        -9,
        ["was ended, because its scratch folder held more than 4 MB"],
    )


def filling_gateway(folder: Path, label: str) -> Path:
    config = folder / "comity.toml"
    config.write_text(
        f"""
[store]
url = "sqlite:///{folder / "store.db"}"

[[servers]]
id = "confined"
command = {json.dumps(sys.executable)}
args = [{json.dumps(str(SERVER))}]
sandbox = "{label}"
max_file_mb = 1
"""
    )
    return config


@FOLDERS_OF_THE_DISK
def test_a_running_gateway_looks_at_the_folders_of_its_disk(label: str, tmp_path: Path) -> None:
    skip_without(LEVEL_BY_LABEL["landlock"])
    config = filling_gateway(tmp_path, label)
    with comity(config) as origin:
        gateway = Confined(origin, config)
        gateway.call("fill_scratch", megabytes=5)
        fault = "was ended, because its scratch folder held more than 4 MB"
        assert within(lambda: fault in json.dumps(gateway.server()["history"]), 60)
        # The next run has an empty folder.
        assert within(lambda: "3 all" in gateway.call("fill_scratch", megabytes=3), 60)


def test_a_file_system_of_its_own_bounds_the_scratch_of_bubblewrap(tmp_path: Path) -> None:
    skip_without(SandboxLevel.BUBBLEWRAP)
    config = filling_gateway(tmp_path, "bubblewrap")
    with comity(config) as origin:
        told = Confined(origin, config).call("fill_scratch", megabytes=100)
    assert "64 No space left on device" in told or "63 No space left on device" in told, told
