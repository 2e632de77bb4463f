"""`comity console`, `comity sessions` and the link that `comity serve` prints at a terminal."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.program import EXAMPLE
from tests.identity.login.scene import Browser, exchange
from tests.interop.processes import Program, running

pytestmark = pytest.mark.integration

COMITY = str(Path(sys.executable).with_name("comity"))
SECONDS = 60


@pytest.fixture
def config(tmp_path: Path) -> Path:
    args = ", ".join(json.dumps(each) for each in EXAMPLE["args"])
    path = tmp_path / "comity.toml"
    path.write_text(
        f'[[servers]]\nid = "up"\ncommand = "{EXAMPLE["command"]}"\nargs = [{args}]\n',
        encoding="utf-8",
    )
    return path


@contextmanager
def a_gateway(config: Path) -> Generator[Program]:
    command = [COMITY, "serve", "-c", str(config), "--port", "0"]
    with running(command, {"LOG_LEVEL": "INFO"}) as program:
        yield program


def run(*arguments: str) -> str:
    done = subprocess.run(
        [COMITY, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_console_link_opens_a_session_that_an_operator_can_end(config: Path) -> None:
    with a_gateway(config) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        said = json.loads(run("console", "--no-open", "--url", origin, "-o", "json"))
        assert said["url"].startswith(f"{origin}/login/link?token=")
        browser = Browser(origin)
        assert (await browser.get(said["url"])).status_code == 303
        assert (await browser.who())["principal"] == "person:local"
        (listed,) = json.loads(run("sessions", "--url", origin, "-o", "json"))["sessions"]
        assert (listed["principal"], listed["method"]) == ("person:local", "link")
        assert listed["id"] in run("sessions", "list", "--url", origin)
        assert "Ended session" in run("sessions", "revoke", listed["id"], "--url", origin)
        assert (await browser.api()).status_code == 401


async def test_a_terminal_shows_a_link_that_no_log_has(config: Path) -> None:
    with a_gateway(config) as program:
        program.wait_for_line(r"listening on (http://\S+)")
        assert "/login/link" not in program.said
    told = serve_in_a_terminal(config)
    link = re.search(r"(http://127\.0\.0\.1:\d+)/login/link\?token=[\w=%-]+", told)
    assert link is not None, told
    # A terminal of 80 columns does not break it, so that a person can copy it.
    assert len(link[0]) <= 80
    assert link[0] in told.splitlines()


def serve_in_a_terminal(config: Path) -> str:
    """What a gateway writes to a terminal until the link is there; the link is then tried."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [COMITY, "serve", "-c", str(config), "--port", "0"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "COLUMNS": "80"},
    )
    os.close(terminal)
    told, until = "", time.monotonic() + SECONDS
    try:
        while not re.search(r"/login/link\?token=\S+\s", told) and time.monotonic() < until:
            told += os.read(main, 65536).decode("utf-8", "replace")
        found = re.search(r"http://127\.0\.0\.1:\d+/login/link\?token=[\w=%-]+", told)
        if found is not None:
            assert exchange("GET", found[0], {}).status_code == 303
    finally:
        process.terminate()
        try:
            process.wait(SECONDS)
        finally:
            os.close(main)
    return told
