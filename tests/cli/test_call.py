"""`comity call`: arguments, questions, progress and results, at a terminal and without one."""

import signal
from collections.abc import Generator
from datetime import datetime
from typing import Any

import click
import pytest
from click.testing import CliRunner

from comity.catalog.call_command import CallProgressDisplay, TerminalUser, show_result
from comity.cli.arguments import CliToolArgument, arguments_of, example_of, read_arguments
from comity.errors import Misconfigured
from tests.cli.program import EXAMPLE, Desk, Terminal
from tests.support.cases import loop_over


def test_tool_is_called_and_its_result_printed_once(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__echo", "message=hello you", "--url", gateway)
    assert (ran.status, ran.out, ran.err) == (0, "hello you\n", "")
    # A structured result that repeats its text.
    ran = desk.run("call", "example__now", COMITY_URL=gateway)
    assert datetime.fromisoformat(ran.out.removesuffix("\n"))
    whole = desk.run("call", "example__now", "-o", "json", COMITY_URL=gateway).json
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
    with CallProgressDisplay("a tool") as meanwhile:
        meanwhile.show_notification("notifications/progress", said)
    assert capsys.readouterr().err == line


def test_call_that_fails_ends_with_its_status(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__countdown", "seconds=99", "--url", gateway)
    assert (ran.status, "at most 60" in ran.out) == (1, True)
    # Too long: it is withdrawn.
    ran = desk.run("call", "example__countdown", "seconds=60", "--timeout", "1", "--url", gateway)
    assert (ran.status, ran.out) == (1, "")
    assert "--timeout" in ran.err
    assert desk.run("call", "x__y", "--url", "http://127.0.0.1:9").status == 3


def test_a_question_is_declined_where_nobody_can_answer_it(desk: Desk, gateway: str) -> None:
    ran = desk.run("call", "example__greet", "--url", gateway, said="y\nAnn\n")
    assert (ran.status, ran.out) == (1, "The client sent no name.\n")
    assert "What is your name?" in ran.err
    assert "declined" in ran.err


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("example__ecko",), 5, "Did you mean 'example__echo'?"),
        (("example__countdown", "seconds=soon"), 2, "must be an integer, got 'soon'"),
    ],
)
def test_what_cannot_be_called_is_the_operators_mistake(
    desk: Desk, gateway: str, arguments: tuple[str, ...], status: int, told: str
) -> None:
    ran = desk.run("call", *arguments, "--url", gateway)
    assert (ran.status, ran.out) == (status, "")
    assert told in ran.err


def test_a_gateway_can_be_started_for_one_call(desk: Desk) -> None:
    """Only the server that is called is started; another that would never be ready is not."""
    hanging = {"command": "sleep", "args": ["1000"]}
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE, "hanging": hanging}})
    ran = desk.run("call", "example__echo", "message=hello", "--local", "-c", "mcp.json")
    assert (ran.status, ran.out) == (0, "hello\n")
    listed = desk.run("tools", "--server", "example", "--local", "-c", "mcp.json", "-o", "json")
    assert len(listed.json["tools"]) == 5
    assert desk.run("call", "x__y", "--local", "-c", "absent.json").status == 2


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
    greeting.until("The client sent no name.")
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


type Frame = dict[str, Any]


def answered(question: Frame, typed: str) -> tuple[Frame, str]:
    """What a person who types this answers, and what they have seen."""
    given: list[Frame] = []

    @click.command()
    def ask() -> None:
        given.append(TerminalUser("tool of the server up", is_present=True).answer(question))

    seen = CliRunner().invoke(ask, input=typed, catch_exceptions=False)
    return given[0], seen.stderr


def form(**fields: Frame) -> Frame:
    required = [name for name, field in fields.items() if field.pop("needed", True)]
    schema = {"type": "object", "properties": fields, "required": required}
    return {"message": "Tell me.", "requestedSchema": schema}


@loop_over(
    ("field", "typed", "value"),
    [
        ({"type": "string"}, "Ann\n", "Ann"),
        ({"type": "string", "minLength": 2}, "A\nAnn\n", "Ann"),
        ({"type": "string", "maxLength": 3}, "Anna\nAnn\n", "Ann"),
        ({"type": "string", "default": "Ann"}, "\n", "Ann"),
        ({"type": "integer"}, "five\n5\n", 5),
        ({"type": "integer", "minimum": 5, "maximum": 6}, "4\n7\n6\n", 6),
        ({"type": "number"}, "0.5\n", 0.5),
        ({"type": "number", "default": 2}, "\n", 2.0),
        ({"type": "boolean"}, "perhaps\nyes\n", True),
        ({"type": "boolean", "default": False}, "\n", False),
        ({"type": "string", "enum": ["a", "b"]}, "c\n2\n", "b"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["Ay", "Bee"]}, "Bee\n", "b"),
        ({"type": "string", "oneOf": [{"const": "a", "title": "Ay"}, {"const": "b"}]}, "1\n", "a"),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}}, "1, c\n", ["a", "c"]),
        ({"type": "array", "items": {"anyOf": [{"const": "a", "title": "Ay"}]}}, "Ay\n", ["a"]),
        ({"type": "array", "items": {"enum": ["a", "b"]}, "default": ["a", "b"]}, "\n", ["a", "b"]),
    ],
)
def test_a_field_is_asked_until_it_is_answered_in_its_kind(
    field: Frame, typed: str, value: object
) -> None:
    answer, _ = answered(form(it=dict(field)), "y\n" + typed)
    assert answer == {"action": "accept", "content": {"it": value}}


def test_a_text_that_is_too_short_is_told_with_a_count_that_agrees() -> None:
    _, seen = answered(form(it={"type": "string", "maxLength": 1}), "y\nAnn\nA\n")
    assert "At most 1 character." in seen


def test_what_need_not_be_said_may_be_left_out() -> None:
    fields = form(name={"type": "string"}, age={"type": "integer", "needed": False})
    answer, seen = answered(fields, "y\nAnn\n\n")
    assert answer == {"action": "accept", "content": {"name": "Ann"}}
    assert "(optional)" in seen


def test_nothing_is_answered_before_the_person_agreed() -> None:
    answer, seen = answered(form(name={"type": "string"}), "n\n")
    assert answer == {"action": "decline"}
    assert "tool of the server up asks" in seen
    assert "name" not in seen


def test_whoever_leaves_cancels() -> None:
    assert answered(form(name={"type": "string"}), "y\n")[0] == {"action": "cancel"}


@loop_over(("typed", "action"), [("y\n", "accept"), ("n\n", "decline"), ("\n", "decline")])
def test_an_address_is_shown_whole_before_it_is_agreed_to(typed: str, action: str) -> None:
    question = {"mode": "url", "message": "Sign in.", "url": "https://example.org/x?y=z"}
    answer, seen = answered(question, typed)
    assert answer == {"action": action}
    assert "https://example.org/x?y=z" in seen


def test_no_word_of_a_server_steers_the_terminal() -> None:
    hostile = "\x1b[2Jgone"
    field: Frame = {"type": "string", "title": hostile, "description": hostile, "enum": [hostile]}
    _, seen = answered({**form(it=field), "message": hostile}, "y\n1\n")
    assert "\x1b[2J" not in seen
    assert "gone" in seen


@loop_over("question", [{}, {"requestedSchema": 5}, {"requestedSchema": {"properties": 5}}])
def test_a_question_of_no_shape_is_answered_with_nothing(question: Frame) -> None:
    assert answered(question, "y\n")[0] == {"action": "accept", "content": {}}


type Result = dict[str, Any]


def text(said: str) -> Result:
    return {"type": "text", "text": said}


SHOWN: list[tuple[Result, str]] = [
    ({"content": [text("one\ntwo"), text("three")]}, "one\ntwo\nthree\n"),
    ({"content": [text('{"a": 1}')], "structuredContent": {"a": 1}}, '{"a": 1}\n'),
    ({"content": [text("A")], "structuredContent": {"a": 1}}, 'A\n{\n  "a": 1\n}\n'),
    ({"content": [text("A")], "structuredContent": {"result": "A"}}, "A\n"),
    ({"content": [text("7")], "structuredContent": {"result": 7}}, "7\n"),
    ({"content": [text("1"), text("2")], "structuredContent": {"result": [1, 2]}}, "1\n2\n"),
    ({"content": [text("a"), text("b")], "structuredContent": {"result": ["a", "b"]}}, "a\nb\n"),
    (
        {"content": [text("A")], "structuredContent": {"a": "A", "b": 1}},
        'A\n{\n  "a": "A",\n  "b": 1\n}\n',
    ),
    ({"content": [{"type": "text"}], "structuredContent": {}}, "\n{}\n"),
    ({"structuredContent": []}, "[]\n"),
    (
        {"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA"}]},
        "[image: image/png, 3 bytes]\n",
    ),
    (
        {"content": [{"type": "resource_link", "name": "n", "uri": "file:///x"}]},
        "[resource: n file:///x]\n",
    ),
    ({"content": [{"type": "resource", "resource": {"text": "inside"}}]}, "inside\n"),
    ({"content": [{"type": "resource", "resource": {"uri": "u"}}]}, "[resource: u]\n"),
    ({"content": [text("\x1b[2J[bold]x[/bold]")]}, "[bold]x[/bold]\n"),
    ({"content": 5}, ""),
    ({"content": [5, {}]}, "[None: which cannot be shown here]\n" * 2),
    ({}, ""),
]


@pytest.mark.parametrize(("result", "printed"), SHOWN)
def test_every_kind_of_content_is_printed_without_harm(
    result: Result,
    printed: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show_result(result)
    assert capsys.readouterr().out == printed


SCHEMA = {
    "type": "object",
    "required": ["city", "days"],
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "days": {"type": "integer", "default": 3},
        "unit": {"enum": ["celsius", "kelvin"], "description": "How warm"},
        "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/place"},
    },
    "$defs": {
        "place": {
            "type": "object",
            "required": ["lat"],
            "properties": {"lat": {"type": "number"}, "again": {"$ref": "#/$defs/place"}},
        }
    },
}


def test_every_argument_is_told_with_its_type_and_meaning() -> None:
    told = {each.name: each for each in arguments_of(SCHEMA)}
    assert told["city"] == CliToolArgument("city", "string", True, "Where")
    assert told["days"].about == "(default 3)"
    assert told["unit"] == CliToolArgument("unit", "one of", False, "celsius, kelvin. How warm")
    assert told["exact"].kind == "boolean"
    assert told["tags"].kind == "array of string"
    assert (told["place"].kind, told["place.lat"].required) == ("object", True)
    # A schema that holds itself is told to a bounded depth, and one of thousands is cut.
    assert len(told) < 30
    huge = {"properties": {f"x{n}": {"type": "string"} for n in range(5000)}}
    assert len(arguments_of(huge)) == 200
    assert example_of(arguments_of(SCHEMA)) == "city=STRING days=INTEGER"


@loop_over(
    "schema",
    [
        None,
        5,
        [],
        {"properties": []},
        {"properties": {"x": None}},
        {"properties": {"x": {"type": 5, "enum": 5, "items": 5, "$ref": "#/a/b"}}, "required": 5},
        {"properties": {"x": {"anyOf": [5, None], "$ref": 5}}},
    ],
)
def test_whatever_a_schema_holds_it_is_read_to_its_end(schema: object) -> None:
    for argument in arguments_of(schema):
        assert argument.name == "x"


def test_a_value_is_read_as_its_schema_wants_it() -> None:
    typed = ["city=5", "days=5", "exact=true", 'tags=["a"]', "other=5", "more:=5", "text:=null"]
    assert read_arguments(typed, None, SCHEMA) == {
        "city": "5",
        "days": 5,
        "exact": True,
        "tags": ["a"],
        "other": "5",
        "more": 5,
        "text": None,
    }
    # What is typed stands over the whole object.
    whole = '{"days": 1, "city": "Ulm"}'
    assert read_arguments(["days=2"], whole, SCHEMA) == {"days": 2, "city": "Ulm"}


@loop_over(
    ("pairs", "whole", "named"),
    [
        (["days"], None, "key=value"),
        (["=5"], None, "key=value"),
        ([":=5"], None, "key=value"),
        (["days=soon"], None, "integer"),
        (["days:=soon"], None, "JSON"),
        ([], "[]", "object"),
        ([], "{", "JSON"),
    ],
)
def test_what_cannot_be_an_argument_is_the_operators_mistake(
    pairs: list[str], whole: str | None, named: str
) -> None:
    with pytest.raises(Misconfigured, match=named):
        read_arguments(pairs, whole, SCHEMA)
