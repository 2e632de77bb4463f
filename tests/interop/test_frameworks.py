"""What clients and agent frameworks show of a call that needs approval, before and after it.

The Python SDK is in the lock. The others run where `COMITY_FRAMEWORKS` names a folder
with a virtual environment for each Python framework, and the packages of npm in `js`.
tests/README.md says how to make it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cli.test_call_approval import RESULT, LocalGateway, local_gateway

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
SCRIPTS = Path(__file__).parent / "frameworks"
FOLDER = Path(os.environ.get("COMITY_FRAMEWORKS", "/nonexistent"))
SECONDS = 240.0
CLIENTS_WITHOUT_PROGRESS = {
    "python_sdk.py": sys.executable,
    "openai_agents.py": str(FOLDER / "agents" / "bin" / "python"),
    "langchain_adapter.py": str(FOLDER / "langchain" / "bin" / "python"),
    "typescript_sdk.mjs": "node",
}
CLIENTS_WITH_PROGRESS = {
    "fastmcp_client.py": str(FOLDER / "fastmcp" / "bin" / "python"),
    # The program is in `js`; the script needs only the standard library.
    "claude_code.py": sys.executable,
}
PROGRAMS = {**CLIENTS_WITHOUT_PROGRESS, **CLIENTS_WITH_PROGRESS}
NPM_SCRIPTS = ("typescript_sdk.mjs", "claude_code.py")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalGateway]:
    """A gateway that holds calls briefly, so no client gives up first on a busy machine."""
    with local_gateway(tmp_path_factory.mktemp("frameworks"), client_wait="1s") as started:
        yield started


@contextmanager
def calling(script: str, gateway: LocalGateway) -> Generator[subprocess.Popen[str]]:
    if script != "python_sdk.py" and not FOLDER.is_dir():
        pytest.skip("COMITY_FRAMEWORKS names no folder")
    process = subprocess.Popen(
        [PROGRAMS[script], str(SCRIPTS / script), f"{gateway.origin}/mcp", "example__delete_note"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=FOLDER / "js" if script in NPM_SCRIPTS else None,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # A script may have started a program of its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)


def shown_by(script: str, gateway: LocalGateway) -> str:
    with calling(script, gateway) as process:
        return process.communicate(timeout=SECONDS)[0]


@pytest.mark.parametrize("script", CLIENTS_WITHOUT_PROGRESS)
def test_a_client_shows_the_request_and_after_the_approval_the_result(
    script: str, gateway: LocalGateway
) -> None:
    before = shown_by(script, gateway)
    assert f"waits for approval (request {gateway.open_request})" in before
    assert "same call again" in before
    gateway.answer("approve")
    assert RESULT in shown_by(script, gateway)


@pytest.mark.parametrize("script", CLIENTS_WITH_PROGRESS)
def test_a_client_that_gets_progress_waits_for_the_approval_and_shows_the_result(
    script: str, gateway: LocalGateway
) -> None:
    with calling(script, gateway) as process:
        wait_for_request(gateway, process)
        # The hold of another client, whose call came later, ends first.
        assert "waits for approval" in shown_by("python_sdk.py", gateway)
        assert process.poll() is None
        gateway.answer("approve")
        shown = process.communicate(timeout=SECONDS)[0]
    assert RESULT in shown
    assert "waits for approval" not in shown


def wait_for_request(gateway: LocalGateway, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not gateway.open_requests:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
