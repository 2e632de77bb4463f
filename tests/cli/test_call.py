"""`comity call` against a real gateway and a real server, at a terminal and without one."""

import signal
from collections.abc import Generator
from datetime import datetime

import pytest

from comity.cli.meanwhile import Meanwhile
from tests.cli.program import EXAMPLE, Desk, Terminal


def test_a_tool_is_called_and_its_text_printed(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__echo", "message=hello you", "--url", gateway)
    assert (ran.status, ran.out, ran.err) == (0, "hello you\n", "")


def test_a_structured_result_that_repeats_its_text_is_printed_once(
    desk: Desk, gateway: str
) -> None:
    ran = desk.run("call", "example__now", COMITY_URL=gateway)
    assert datetime.fromisoformat(ran.out.removesuffix("\n"))
    whole = desk.run("call", "example__now", "--json", COMITY_URL=gateway).json
    assert set(whole) == {"content", "isError", "structuredContent"}


def test_progress_is_told_as_lines_where_there_is_no_terminal(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__countdown", "seconds=2", "--url", gateway)
    assert (ran.status, ran.out) == (0, "liftoff\n")
    assert ran.err.splitlines()[-1] == "comity: 2 of 2 0 to go"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"progress": 1e-06, "message": "waiting"}, "comity: waiting\n"),
        ({"progress": 0, "message": "waiting"}, "comity: waiting\n"),
        ({"progress": 3, "message": "copied"}, "comity: 3 copied\n"),
        ({"progress": 0, "total": 2, "message": "copied"}, "comity: 0 of 2 copied\n"),
        ({"progress": 0.5}, "comity: 0.5\n"),
        ({"progress": 1e-06}, ""),
    ],
)
def test_progress_that_counts_nothing_is_told_by_its_message_alone(
    said: dict[str, object], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Meanwhile("a tool") as meanwhile:
        meanwhile.tell("notifications/progress", said)
    assert capsys.readouterr().err == line


def test_a_tool_that_reports_an_error_ends_with_one(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__countdown", "seconds=99", "--url", gateway)
    assert (ran.status, "at most 60" in ran.out) == (1, True)


def test_a_question_is_declined_where_nobody_can_answer_it(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__greet", "--url", gateway, said="y\nAnn\n")
    assert (ran.status, ran.out) == (1, "Nobody said a name.\n")
    assert "What is your name?" in ran.err
    assert "declined" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("example__ecko",), "Did you mean 'example__echo'?"),
        (("example__countdown", "seconds=soon"), "integer"),
        (("example__echo", "message"), "key=value"),
        (("example__echo", "--json-args", "[]"), "object"),
    ],
)
def test_what_cannot_be_called_is_the_operators_mistake(
    desk: Desk, gateway: str, arguments: tuple[str, ...], told: str
) -> None:
    ran = desk.run("call", *arguments, "--url", gateway)
    assert (ran.status, ran.out) == (2, "")
    assert told in ran.err


def test_a_tool_that_takes_too_long_is_withdrawn(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__countdown", "seconds=60", "--timeout", "1", "--url", gateway)
    assert (ran.status, ran.out) == (1, "")
    assert "--timeout" in ran.err


def test_a_gateway_that_is_not_there_is_told(desk: Desk) -> None:
    assert desk.run("call", "x__y", "--url", "http://127.0.0.1:9").status == 3


def test_a_gateway_can_be_started_for_one_call(desk: Desk) -> None:
    """Only the server that is called is started; another that would never be ready is not."""
    hanging = {"command": "sleep", "args": ["1000"]}
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "hanging": hanging}})
    ran = desk.run("call", "example__echo", "message=hello", "--config", "mcp.json")
    assert (ran.status, ran.out) == (0, "hello\n")
    listed = desk.run("tools", "--server", "example", "--config", "mcp.json", "--json")
    assert len(listed.json["tools"]) == 4
    assert desk.run("call", "x__y", "--config", "absent.json").status == 2


@pytest.fixture
def greeting(desk: Desk, gateway: str) -> Generator[Terminal]:
    with Terminal(desk, "call", "example__greet", "--url", gateway) as terminal:
        terminal.until("Answer?")
        yield terminal


def test_a_question_is_answered_at_the_terminal(greeting: Terminal) -> None:
    assert "What is your name?" in greeting.seen
    greeting.type("y\n")
    greeting.until("Name")
    greeting.type("Ann\n")
    greeting.until("Hello, Ann!")
    assert greeting.end() == 0


def test_a_question_is_declined_at_the_terminal(greeting: Terminal) -> None:
    greeting.type("n\n")
    greeting.until("Nobody said a name.")
    assert greeting.end() == 1


def test_progress_is_a_bar_at_a_terminal_and_an_interruption_ends_it(
    desk: Desk, gateway: str
) -> None:
    arguments = ("call", "example__countdown", "seconds=60", "--url", gateway)
    with Terminal(desk, *arguments) as terminal:
        terminal.until("1/60")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert "Traceback" not in terminal.seen
