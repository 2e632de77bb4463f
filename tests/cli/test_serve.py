"""`comity serve` as people run it: what it says, where it listens, how it ends."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from comity.cli.main import main
from tests.interop.processes import answers, running
from tests.surfaces.piped import COMITY, STDIO_ENTRY

EMPTY: dict[str, dict[str, str]] = {"mcpServers": {}}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(EMPTY))
    return path


def run(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMITY, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=cwd,
        env={**os.environ, **env},
    )


def test_the_version_is_told_and_nothing_is_run() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("comity ")


@pytest.mark.parametrize("arguments", [(), ("dance",), ("serve", "x", "--port", "y")])
def test_a_command_that_cannot_be_is_explained(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: comity")
    assert "Traceback" not in done.stderr


def test_where_no_file_is_named_and_none_is_there_it_is_said_what_was_looked_for(
    tmp_path: Path,
) -> None:
    done = run("serve", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("comity: there is no configuration; looked for comity.toml, ")
    assert "`comity init`" in done.stderr


def test_what_was_found_and_passed_over_is_told(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    (tmp_path / "mgp.toml").write_text('[[servers]]\nid = "b"\ncommand = "x"\n')
    done = run("serve", "--host", "192.0.2.1", cwd=tmp_path, HOME=str(tmp_path))
    assert done.stderr.splitlines()[:2] == [
        "comity: 1 server from mcp.json",
        "comity: passed over mgp.toml, as mcp.json comes first",
    ]


def test_a_mistake_in_the_configuration_is_one_line_and_no_trace(tmp_path: Path) -> None:
    for name, text in {
        "a.json": "{",
        "b.json": '{"mcpServers": 5}',
        "c.toml": "servers = 1",
    }.items():
        (tmp_path / name).write_text(text)
    for name in ("a.json", "b.json", "c.toml", "absent.json"):
        done = run("serve", str(tmp_path / name))
        assert done.returncode == 2, done
        assert done.stderr.startswith("comity: ")
        assert name in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_an_open_address_is_refused_while_there_are_no_keys(config: Path, host: str) -> None:
    done = run("serve", str(config), "--host", host, "--port", "0")
    assert done.returncode == 2
    assert "network" in done.stderr


def test_a_port_that_is_taken_is_told_in_words(config: Path) -> None:
    with running([COMITY, "serve", str(config), "--port", "0"]) as first:
        port = first.wait_for_line(r"listening on http://127.0.0.1:(\d+)").group(1)
        done = run("serve", str(config), "--port", port)
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_health_is_told_as_soon_as_it_says_that_it_listens(config: Path) -> None:
    with running([COMITY, "serve", str(config), "--port", "0"]) as gateway:
        origin = gateway.wait_for_line(r"comity: listening on (http://\S+)$").group(1)
        assert answers(f"{origin}/health")
        assert answers(f"{origin}/ready")


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_peace_when_it_is_told_to(config: Path, ending: signal.Signals) -> None:
    config.write_text(json.dumps({"mcpServers": {"up": STDIO_ENTRY}}))
    process = subprocess.Popen(
        [COMITY, "serve", str(config), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert "listening" in process.stderr.readline()
        process.send_signal(ending)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in said


@pytest.mark.parametrize("level", ["debug", "verbose", "", "10"])
def test_a_log_level_that_nobody_knows_stops_nothing(config: Path, level: str) -> None:
    done = subprocess.run(
        [COMITY, "serve", str(config), "--stdio"],
        input="",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "LOG_LEVEL": level},
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "Traceback" not in done.stderr


def test_standard_output_belongs_to_the_protocol_alone(config: Path) -> None:
    config.write_text(json.dumps({"mcpServers": {"none": {"command": "./no-such-program"}}}))
    hello = {"protocolVersion": "2025-11-25"}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process = subprocess.Popen(
        [COMITY, "serve", str(config), "--stdio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LOG_LEVEL": "DEBUG"},
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(frame) + "\n")
        process.stdin.flush()
        first = json.loads(process.stdout.readline())
        rest, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (first["id"], rest) == (1, "")


@pytest.fixture
def own_log() -> Generator[None]:
    """Whatever is logged after the test is not for the streams that the test had."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.mark.usefixtures("own_log")
def test_the_command_can_be_called_as_a_function(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(config), "--host", "192.0.2.1"]) == 2
    assert capsys.readouterr().err.startswith("comity: ")
    assert sys.exc_info() == (None, None, None)
