"""`comity serve` as people run it: what it prints and logs, where it listens, how it ends."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from comity.cli.main import main
from tests.cli.program import EXAMPLE, SECONDS, Desk, Terminal
from tests.interop.processes import answers, free_port, running
from tests.support.fork_server import COMITY
from tests.support.piped import STDIO_ENTRY

EMPTY: dict[str, dict[str, str]] = {"mcpServers": {}}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps(EMPTY))
    return path


def test_where_no_file_is_named_and_none_is_there_it_is_said_what_was_looked_for(
    desk: Desk,
) -> None:
    ran = desk.run("serve")
    assert ran.status == 2
    assert ran.err.startswith("comity: there is no configuration; looked for comity.toml, ")
    assert "`comity init`" in ran.err


def test_what_was_found_and_passed_over_is_told(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"a": {"command": "x"}}})
    desk.write("mgp.toml", '[[servers]]\nid = "b"\ncommand = "x"\n')
    ran = desk.run("serve", "--host", "192.0.2.1")
    assert ran.err.splitlines()[:2] == [
        "comity: 1 server from mcp.json",
        "comity: skipped mgp.toml, because mcp.json has priority",
    ]


def test_a_mistake_in_the_configuration_is_one_line_and_no_trace(desk: Desk) -> None:
    desk.write("a.json", "{")
    desk.write("b.json", {"mcpServers": 5})
    desk.write("c.toml", "servers = 1")
    for name in ("a.json", "b.json", "c.toml", "absent.json"):
        ran = desk.run("serve", "-c", name)
        assert ran.status == 2, ran
        assert ran.err.startswith("comity: ")
        assert name in ran.err


def test_an_open_address_is_refused_while_there_are_no_keys(desk: Desk, config: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.com"):
        ran = desk.run("serve", "-c", str(config), "--host", host, "--port", "0")
        assert ran.status == 2
        for said in ("without authentication", 'mode = "required"', "comity keys create"):
            assert said in ran.err.replace("\n", " ")


def test_health_is_told_as_soon_as_it_says_that_it_listens(config: Path) -> None:
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as gateway:
        origin = gateway.wait_for_line(r"comity: listening on (http://\S+)$").group(1)
        assert answers(f"{origin}/health")
        assert answers(f"{origin}/ready")


def test_it_listens_where_the_environment_says(config: Path, tmp_path: Path) -> None:
    port, other = free_port(), tmp_path / "port"
    with running(
        [COMITY, "serve", "-c", str(config)], {**os.environ, "PORT": str(port)}
    ) as gateway:
        gateway.wait_for_line(rf"comity: listening on http://127.0.0.1:{port}$")
    port = free_port()
    other.write_text(f"{port}\n")
    other.chmod(0o600)
    # The variable of Comity wins over the one that programs share.
    env = {**os.environ, "PORT": "1", "COMITY_PORT_FILE": str(other)}
    with running([COMITY, "serve", "-c", str(config)], env) as gateway:
        gateway.wait_for_line(rf"comity: listening on http://127.0.0.1:{port}$")


def test_a_wrong_variable_is_named_and_stops_the_start(desk: Desk, config: Path) -> None:
    for name, value in (("PORT", "high"), ("COMITY_LIMITS_MAX_SESSIONS", "-1")):
        ran = desk.run("serve", "-c", str(config), **{name: value})
        assert (ran.status, ran.err.startswith(f"comity: {name}: must be")) == (2, True), ran


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_peace_when_it_is_told_to(config: Path, ending: signal.Signals) -> None:
    config.write_text(json.dumps({"mcpServers": {"up": STDIO_ENTRY}}))
    process = subprocess.Popen(
        [COMITY, "serve", "-c", str(config), "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert "listening" in process.stderr.readline()
        process.send_signal(ending)
        _, said = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "Traceback" not in said


@pytest.mark.parametrize("level", ["debug", "verbose", "", "10"])
def test_a_log_level_that_nobody_knows_stops_nothing(desk: Desk, config: Path, level: str) -> None:
    ran = desk.run("serve", "-c", str(config), "--stdio", LOG_LEVEL=level)
    assert (ran.status, ran.out) == (0, "")


def test_standard_output_belongs_to_the_protocol_alone(config: Path) -> None:
    config.write_text(json.dumps({"mcpServers": {"none": {"command": "./no-such-program"}}}))
    hello = {"protocolVersion": "2025-11-25"}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process = subprocess.Popen(
        [COMITY, "serve", "-c", str(config), "--stdio"],
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
        rest, _ = process.communicate(timeout=SECONDS)
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
    assert main(["serve", "-c", str(config), "--host", "192.0.2.1"]) == 2
    assert capsys.readouterr().err.startswith("comity: ")
    assert sys.exc_info() == (None, None, None)


BROKEN: dict[str, Any] = {"command": "./no-such-program", "args": ["canary"]}
WAYS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "option": (["--log-format", "json"], {}, ""),
    "variable": ([], {"COMITY_LOG_FORMAT": "json"}, ""),
    "setting": ([], {}, '[telemetry]\nlog_format = "json"\n'),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_line_is_an_object_whichever_way_that_was_asked(way: str, tmp_path: Path) -> None:
    arguments, env, written = WAYS[way]
    config = tmp_path / "comity.toml"
    config.write_text(written + '[[servers]]\nid = "files"\ncommand = "./no-such-program"\n')
    command = [COMITY, "serve", "-c", str(config), "--port", "0", *arguments]
    with running(command, env) as program:
        program.wait_for_line("listening on")
        program.wait_for_line("no-such-program")
    told = [json.loads(line) for line in program.said.splitlines()]
    assert any(one["message"].startswith("listening on http://") for one in told)
    (warned,) = [one for one in told if one["level"] == "WARNING"]
    assert (warned["server"], warned["logger"]) == ("files", "comity.servers.supervisor")


def test_for_people_it_stays_as_it_was(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"files": BROKEN}}))
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
        program.wait_for_line("^comity: listening on http://127.0.0.1:[0-9]+$")
        program.wait_for_line(r"^\S+Z comity: WARNING server 'files': ")
    assert "canary" not in program.said


def test_an_end_for_a_mistake_is_told_in_the_same_form(desk: Desk) -> None:
    ran = desk.run("serve", "-c", "none.json", "--log-format", "json")
    assert ran.status == 2
    (line,) = ran.err.splitlines()
    told = json.loads(line)
    assert told["level"] == "ERROR"
    assert "there is no such file" in told["message"]
    unknown = desk.run("serve", "-c", "none.json", "--log-format", "xml")
    assert (unknown.status, "'text', 'json'" in unknown.err) == (2, True)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_variable_that_is_not_set_is_told_in_whole_words(desk: Desk, form: str) -> None:
    config = desk.write(
        "comity.toml",
        '[[servers]]\nid = "search"\nurl = "https://search.example.org/mcp"\n'
        'headers = {Authorization = "Bearer ${SEARCH_TOKEN}"}\n',
    )
    ran = desk.run("serve", "-c", str(config), "--log-format", form)
    assert ran.status == 2
    assert "servers[search].headers.Authorization: the variable SEARCH_TOKEN is not set" in ran.err
    assert "write ${SEARCH_TOKEN:-default}" in ran.err


FAILING = {"command": "sh", "args": ["-c", "echo indisposed >&2; read line; exit 3"]}


def test_each_server_is_told_on_a_line_when_it_was_tried(desk: Desk) -> None:
    config = desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "failing": FAILING}})
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as gateway:
        gateway.wait_for_line(r"^comity: listening on http://127.0.0.1:\d+$")
        gateway.wait_for_line(r"^comity: server 'example' is ready after \d+\.\d s: 5 tools$")
        gateway.wait_for_line(r"^\S+Z comity: WARNING server 'failing'.*last output: indisposed$")
        gateway.wait_for_line(r"^comity: server 'failing' is not ready$")
        gateway.wait_for_line(r"^comity: `comity servers show NAME` .*`comity doctor`")


def test_at_a_terminal_the_servers_are_a_table_that_ends_with_how_to_connect(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "failing": FAILING}})
    with Terminal(desk, "serve", "--port", "0") as terminal:
        terminal.until("listening on http://127.0.0.1:")
        address = terminal.seen.partition("listening on ")[2].split()[0]
        terminal.until("1 of 2 servers ready, 5 tools.")
        assert "indisposed" in terminal.seen
        terminal.until(f"{address}/mcp")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert "Traceback" not in terminal.seen


def test_what_to_do_about_failed_servers_is_told_once(desk: Desk) -> None:
    absent = {"command": "no-such-program-anywhere"}
    desk.write("mcp.json", {"mcpServers": {"failing": FAILING, "absent": absent}})
    with Terminal(desk, "serve", "--port", "0") as terminal:
        terminal.until("0 of 2 servers ready, 0 tools.")
        terminal.until("/mcp")
        assert terminal.seen.count("comity doctor") == 1
        assert "failed" in terminal.seen
        assert "restarting" not in terminal.seen
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0


def test_an_end_says_once_how_many_servers_it_stops(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    with Terminal(desk, "serve", "--port", "0") as terminal:
        terminal.until("1 of 1 server ready, 5 tools.")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert terminal.seen.count("comity: stopping 1 server\r\n") == 1


def test_at_a_terminal_without_servers_it_is_said_how_to_get_some(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {}})
    with Terminal(desk, "serve", "--port", "0") as terminal:
        terminal.until("comity init")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0


def test_a_port_that_a_gateway_holds_is_told_as_that(desk: Desk, gateway: str) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    port = gateway.rpartition(":")[2]
    ran = desk.run("serve", "--port", port)
    assert (ran.status, "comity status" in ran.err) == (2, True)
    assert f"port {port}" in ran.err


def test_a_port_that_another_program_holds_is_told_with_whose_it_is(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = desk.run("serve", "--port", str(port))
    assert ran.status == 2
    assert f"port {port} is held by" in ran.err
    assert "--port" in ran.err
