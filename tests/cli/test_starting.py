"""What whoever starts a gateway sees of its start, at a terminal and without one."""

import signal
import socket

from tests.cli.program import COMITY, EXAMPLE, Desk, Terminal
from tests.interop.processes import running

FAILING = {"command": "sh", "args": ["-c", "echo indisposed >&2; read line; exit 3"]}


def test_each_server_is_told_on_a_line_when_it_was_tried(desk: Desk) -> None:
    config = desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "failing": FAILING}})
    with running([COMITY, "serve", str(config), "--port", "0"]) as gateway:
        gateway.wait_for_line(r"^comity: listening on http://127.0.0.1:\d+$")
        gateway.wait_for_line(r"^comity: server 'example' is ready after \d+\.\d s: 4 tools$")
        gateway.wait_for_line(r"^comity: .*server 'failing'.*said: indisposed$")
        gateway.wait_for_line(r"^comity: server 'failing' is not ready$")
        gateway.wait_for_line(r"^comity: `comity servers show NAME` .*`comity doctor`")


def test_at_a_terminal_the_servers_are_a_table_that_ends_with_how_to_connect(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "failing": FAILING}})
    with Terminal(desk, "serve", "--port", "0") as terminal:
        terminal.until("listening on http://127.0.0.1:")
        address = terminal.seen.partition("listening on ")[2].split()[0]
        terminal.until("1 of 2 servers ready, 4 tools.")
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
        terminal.until("1 of 1 server ready, 4 tools.")
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
    ran = desk.run("serve", "--port", gateway.rpartition(":")[2])
    assert (ran.status, "comity status" in ran.err) == (2, True)


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
