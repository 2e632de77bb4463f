"""Python functions as tools: schemas, docstrings, files of functions, and answers."""

import asyncio
import enum
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, cast

import pytest

from comity.catalog.signatures import ValueConstraints
from comity.errors import INVALID_PARAMS, MalformedMessage, Misconfigured, Unavailable
from comity.sdk.function_schemas import (
    build_value,
    parse_docstring,
    read_function,
    schema_for,
    to_json_value,
)
from comity.sdk.functions import (
    MOST_AT_ONCE,
    MOST_OF_ONE,
    MethodFailure,
    ParticipantResponder,
    ToolFunctions,
    answer_message,
    functions_in,
)
from comity.sdk.topics.events import Payload, Request
from comity.topics import envelope as wire
from tests.sdk.made import ANA, ME, PARAMS, request
from tests.support.cases import loop_over


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int = 0


class Loose(TypedDict):
    word: str
    more: NotRequired[list[int]]


@dataclass
class Parcel:
    to: Annotated[str, ValueConstraints(min_length=1), "Where it goes"]
    at: Point
    colours: list[Colour] = field(default_factory=list[Colour])


@dataclass
class Knot:
    inside: "Knot | None" = None


PARCEL = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "minLength": 1, "description": "Where it goes"},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x"],
        },
        "colours": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
    },
    "required": ["to", "at"],
}


def deliver(parcel: Parcel, way: Literal["air", "sea"], copies: int = 1) -> Loose:
    """Sends a parcel.

    Args:
        parcel: What to send.
    """
    raise NotImplementedError


def test_a_function_is_a_signature() -> None:
    tool = read_function(deliver).to_mcp_tool()
    assert tool == {
        "name": "deliver",
        "description": "Sends a parcel.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "parcel": {**PARCEL, "description": "What to send."},
                "way": {"type": "string", "enum": ["air", "sea"]},
                "copies": {"type": "integer", "default": 1},
            },
            "required": ["parcel", "way"],
            "additionalProperties": False,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "word": {"type": "string"},
                "more": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["word"],
        },
    }


def test_a_parameter_without_a_type_is_refused_with_what_to_write() -> None:
    def send(parcel: Parcel, since=None) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(Misconfigured, match=r"send: since has no annotation; write its type"):
        read_function(cast("Any", send))


@loop_over(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array"}),
        (dict, {"type": "object"}),
        (Any, {}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Sequence[bool], {"type": "array", "items": {"type": "boolean"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": {}}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Parcel, PARCEL),
        (
            Annotated[list[int], ValueConstraints(max_items=2)],
            {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        ),
    ],
)
def test_an_annotation_has_its_schema(annotation: object, schema: object) -> None:
    assert schema_for(annotation, "it") == schema


@loop_over(
    "annotation",
    [
        datetime,
        bytes,
        object,
        set[int],
        tuple[int, ...],
        dict[int, str],
        type,
        "str",
        Literal[b"raw"],
        complex,
        Knot,
        list[datetime],
        Annotated[int, ValueConstraints(pattern="x")],
    ],
)
def test_an_annotation_without_a_meaning_in_json_is_refused(annotation: object) -> None:
    with pytest.raises(Misconfigured, match=r"^it"):
        schema_for(annotation, "it")


def test_a_function_with_nameless_arguments_is_refused() -> None:
    def some(*words: str) -> None: ...
    def more(**words: str) -> None: ...
    def first(word: str, /) -> None: ...

    for function in (some, more, first):
        with pytest.raises(Misconfigured, match="a tool's arguments have names"):
            read_function(function)


def test_an_annotation_that_names_nothing_is_refused() -> None:
    def lost(word: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(Misconfigured, match="lost: an annotation cannot be read"):
        read_function(cast("Any", lost))


def test_what_is_no_object_is_given_under_one_name() -> None:
    def add(one: int, other: int) -> int:
        return one + other

    def silent() -> None: ...

    assert read_function(add, "plus").to_mcp_tool()["outputSchema"] == {
        "type": "object",
        "properties": {"result": {"type": "integer"}},
        "required": ["result"],
    }
    assert "outputSchema" not in read_function(silent).to_mcp_tool()


def test_a_default_is_said_where_json_can_say_it() -> None:
    def paint(colour: Colour = Colour.RED, at: object = None, by: Any = object()) -> None: ...  # noqa: B008

    paint.__annotations__["at"] = Point | None
    schema = read_function(paint).to_json_schema()
    properties: Any = schema["properties"]
    assert schema["required"] == []
    assert (properties["colour"]["default"], properties["at"]["default"]) == ("red", None)
    assert "default" not in properties["by"]


def test_json_becomes_what_the_annotation_names_and_back() -> None:
    said = {"to": "Ana", "at": {"x": 1, "y": 2}, "colours": ["blue"]}
    parcel = build_value(Parcel, said)
    assert parcel == Parcel("Ana", Point(1, 2), [Colour.BLUE])
    assert to_json_value(parcel) == said


@loop_over(
    ("annotation", "said", "made"),
    [
        (Point | None, None, None),
        (Point | None, {"x": 3}, Point(3)),
        (Colour | int, 3, 3),
        (Colour | int, "red", Colour.RED),
        (str | int, 4, 4),
        (int, 4.0, 4),
        (dict[str, Colour], {"a": "blue"}, {"a": Colour.BLUE}),
        (Annotated[list[Point], "places"], [{"x": 1}], [Point(1)]),
        (Loose, {"word": "a", "more": [1]}, {"word": "a", "more": [1]}),
        (Any, [1], [1]),
        (Literal["a"], "a", "a"),
    ],
)
def test_json_is_made_into_each_kind_of_type(annotation: object, said: object, made: Any) -> None:
    assert build_value(annotation, said) == made


def test_no_docstring_says_nothing() -> None:
    told = parse_docstring(None)
    assert (told.description, told.parameters) == ("", {})


def test_what_is_in_no_form_is_description() -> None:
    told = parse_docstring("""Finds things.

        In all places: also in `a: b`.
        """)
    assert told.description == "Finds things.\n\nIn all places: also in `a: b`."
    assert told.parameters == {}


def test_a_section_of_arguments_is_read_and_left_out_of_the_description() -> None:
    told = parse_docstring("""Finds things.

        Args:
            where: The place,
                in two lines: with a colon.
            how (str, optional): The way.
            *rest: What is left.

        Returns:
            thing: the thing.

        It ends here.
        """)
    assert told.description == "Finds things.\n\nIt ends here."
    assert told.parameters == {
        "where": "The place, in two lines: with a colon.",
        "how": "The way.",
        "rest": "What is left.",
    }


def test_fields_are_read_wherever_they_stand() -> None:
    told = parse_docstring("""Finds things.

        :param where: The place,
            in two lines.
        :param str how: The way.
        :returns: the thing
        """)
    assert told.description == "Finds things."
    assert told.parameters == {"where": "The place, in two lines.", "how": "The way."}


@loop_over("text", [":", ":param", ":param x", "Args:", "Args:\n  :", "\x00", "  "])
def test_half_a_form_harms_nobody(text: str) -> None:
    assert parse_docstring(text).parameters == {}


async def write(path: str, lines: int = 1, options: dict[str, str] | None = None) -> object:
    """Write a file.

    With more words than a list needs.
    """
    if path == "/etc":
        raise ValueError("not there")
    return {"wrote": path} if lines > 1 else path


async def nothing(anything: Any) -> None:
    """As many write them."""


SERVER = ToolFunctions("wk", {"write": write, "nothing": nothing})


async def call(**arguments: object) -> Any:
    return await SERVER.answer("tools/call", {"name": "write", "arguments": arguments})


async def test_a_list_says_what_each_takes() -> None:
    listed: Any = await SERVER.answer("tools/list", {})
    tool = listed["tools"][0]
    assert (tool["name"], tool["description"]) == ("write", "Write a file.")
    assert tool["inputSchema"]["properties"]["path"] == {"type": "string"}
    assert tool["inputSchema"]["required"] == ["path"]
    assert listed["tools"][1]["inputSchema"]["properties"] == {"anything": {}}


async def test_what_it_returns_is_told_as_text_or_structure() -> None:
    assert await call(path="a") == {"content": [{"type": "text", "text": "a"}]}
    told = await call(path="a", lines=2)
    assert told["structuredContent"] == {"wrote": "a"}
    assert told["content"][0]["text"] == '{"wrote":"a"}'
    empty: Any = await SERVER.answer(
        "tools/call", {"name": "nothing", "arguments": {"anything": 1}}
    )
    assert empty["content"][0]["text"] == ""


async def test_a_value_that_is_wrong_is_told_as_the_tools_own_error() -> None:
    assert await call(path="/etc") == {
        "content": [{"type": "text", "text": "not there"}],
        "isError": True,
    }


@loop_over(
    ("params", "because"),
    [
        ({"name": "write", "arguments": {}}, "missing 'path'"),
        ({"name": "write", "arguments": {"path": 1}}, "path must be of the type string"),
        ({"name": "write", "arguments": {"path": "a", "lines": True}}, "type integer"),
        ({"name": "write", "arguments": {"path": "a", "else": 1}}, "unknown argument 'else'"),
        ({"name": "write", "arguments": [1]}, "an object"),
        ({"name": "dig"}, "no tool 'dig'"),
        ({"name": ["write"]}, "no tool"),
        ({}, "no tool None"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused(
    params: dict[str, object], because: str
) -> None:
    refused = await SERVER.answer("tools/call", params)
    assert isinstance(refused, MethodFailure)
    assert because in refused.message


async def test_one_without_tools_still_answers_a_ping_and_says_who_it_is() -> None:
    bare = ToolFunctions("bare", {})
    assert await bare.answer("ping", {}) == {}
    hello: Any = await bare.answer("initialize", {"protocolVersion": "1999"})
    assert (hello["protocolVersion"], hello["capabilities"]) == ("2025-11-25", {})
    assert isinstance(await bare.answer("tools/list", {}), MethodFailure)


@loop_over("function", [lambda: None, print])
def test_what_is_no_async_function_is_told_at_once(function: Any) -> None:
    with pytest.raises(Misconfigured, match="async def"):
        ToolFunctions("x", {"it": function})


def test_parameters_without_names_are_told_at_once() -> None:
    async def anything(**arguments: object) -> None: ...

    with pytest.raises(Misconfigured, match="name its parameters"):
        ToolFunctions("x", {"it": anything})


async def test_what_a_generator_yields_is_told_as_one_text() -> None:
    async def count(to: int) -> AsyncIterator[str]:
        """Counts."""
        for number in range(to):
            yield f"{number} "

    server = ToolFunctions("counter", {"count": count})
    said: Any = await server.answer("tools/call", {"name": "count", "arguments": {"to": 3}})
    assert said["content"] == [{"type": "text", "text": "0 1 2 "}]


CODE = '''
from statistics import mean

LIMIT = 10

def average(values: list) -> float:
    """The average of numbers."""
    return mean(values)

async def shout(text: str, twice: bool = False) -> dict:
    print("for its author")
    return {"text": text.upper() * (1 + twice)}

def fails() -> str:
    raise KeyError("no")

def _hidden() -> None: ...

class Thing: ...
'''


def encode_request(id: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()


def test_every_function_of_its_own_is_a_tool_and_nothing_else() -> None:
    assert sorted(functions_in(CODE)) == ["average", "fails", "shout"]


@loop_over("code", ["", "x = 1", "def _f(): ...", "from math import sqrt"])
def test_a_file_without_functions_is_no_server(code: str) -> None:
    with pytest.raises(Misconfigured):
        functions_in(code)


async def test_a_bug_of_a_tool_is_told_and_the_next_call_is_answered() -> None:
    tools = ToolFunctions("x", functions_in(CODE))
    failed = json.loads(
        await answer_message(tools, encode_request(1, "tools/call", name="fails")) or b""
    )
    assert "KeyError" in failed["error"]["message"]
    assert await answer_message(tools, encode_request(2, "ping")) is not None


@loop_over("line", [b"", b"{", b"[]", b"1", b'{"method":"ping"}', b'{"id":1}'])
async def test_what_is_no_request_is_not_answered(line: bytes) -> None:
    assert await answer_message(ToolFunctions("x", functions_in(CODE)), line) is None


def test_it_serves_on_its_standard_streams_and_prints_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text(CODE)
    said = b"\n".join(
        (
            encode_request(1, "initialize", protocolVersion="2025-11-25"),
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
            encode_request(2, "tools/list"),
            encode_request(3, "tools/call", name="average", arguments={"values": [1, 2]}),
            encode_request(4, "tools/call", name="shout", arguments={"text": "a", "twice": True}),
            b"",
        )
    )
    argv = [sys.executable, "-I", "-m", "comity.sdk.functions", str(file)]
    done = subprocess.run(argv, input=said, capture_output=True, timeout=60, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["id"] for each in answers] == [1, 2, 3, 4]
    tools = {tool["name"]: tool for tool in answers[1]["result"]["tools"]}
    assert tools["average"]["description"] == "The average of numbers."
    assert tools["shout"]["inputSchema"]["required"] == ["text"]
    assert answers[2]["result"]["content"][0]["text"] == "1.5"
    assert answers[3]["result"]["structuredContent"] == {"text": "AA"}
    assert b"for its author" in done.stderr


class Behind:
    """What stands behind a participant; it does what it is told by the method."""

    def __init__(self) -> None:
        self.asked = 0
        self.go = asyncio.Event()

    async def answer(self, method: str, params: Payload) -> Payload | MethodFailure:
        self.asked += 1
        match method:
            case "waits":
                await self.go.wait()
            case "refuses":
                raise MalformedMessage("not so", INVALID_PARAMS)
            case "breaks":
                raise RuntimeError("a secret")
            case "fails":
                return MethodFailure(-32050, "no", {"why": "so"})
            case _:
                pass
        return {"done": method}


class Desk:
    """A participant that only answers."""

    def __init__(self, longest: timedelta = timedelta(seconds=20)) -> None:
        self.behind = Behind()
        self.said: list[tuple[Request, Mapping[str, object]]] = []
        self.news = asyncio.Event()
        self.serving = ParticipantResponder(self.behind, self.respond, longest)
        self.problem: Exception | None = None

    async def respond(self, asked: Request, body: Mapping[str, object]) -> None:
        if self.problem is not None and "result" in body:
            raise self.problem
        self.said.append((asked, body))
        self.news.set()

    def ask(self, method: str, proposal: str = "", sender: str = ANA, rpc: int | None = 1) -> None:
        envelope = wire.decode_envelope(request(to=[ME], sender=sender))
        self.serving.take(Request(envelope, method, PARAMS, rpc), proposal)

    async def answers(self, count: int) -> list[Mapping[str, object]]:
        async with asyncio.timeout(20):
            while len(self.said) < count:
                self.news.clear()
                await self.news.wait()
        return [body for _, body in self.said]


def message(body: Mapping[str, Any]) -> str:
    return str(body["error"]["message"])


async def test_a_result_a_failure_and_an_error_are_answers() -> None:
    desk = Desk()
    for method in ("works", "fails", "refuses", "breaks"):
        desk.ask(method)
    works, fails, refuses, breaks = await desk.answers(4)
    assert works == {"result": {"done": "works"}}
    assert fails == {"error": {"code": -32050, "message": "no", "data": {"why": "so"}}}
    assert refuses == {"error": {"code": INVALID_PARAMS.code, "message": "not so"}}
    assert "secret" not in message(breaks)


async def test_a_notification_is_answered_by_nobody() -> None:
    desk = Desk()
    desk.ask("works", rpc=None)
    desk.ask("works")
    assert len(await desk.answers(1)) == desk.behind.asked == 1


async def test_one_proposal_is_done_once_whoever_fulfils_it() -> None:
    desk = Desk()
    desk.ask("works", "proposal-1")
    desk.ask("works", "proposal-1", "agent:other")
    desk.ask("works", "proposal-2")
    answers = await desk.answers(3)
    assert desk.behind.asked == 2
    refused = [body for body in answers if "error" in body]
    assert [message(body).startswith("this proposal was fulfilled before") for body in refused] == [
        True
    ]


async def test_too_much_at_once_is_refused_and_nobody_takes_all() -> None:
    desk = Desk()
    for _ in range(MOST_OF_ONE + 1):
        desk.ask("waits")
    (busy,) = await desk.answers(1)
    assert "too much" in message(busy)
    for number in range(MOST_AT_ONCE):
        desk.ask("waits", sender=f"agent:{number // MOST_OF_ONE}")
    desk.behind.go.set()
    answers = await desk.answers(MOST_OF_ONE + 1 + MOST_AT_ONCE)
    assert sum("result" in body for body in answers) <= MOST_AT_ONCE
    assert desk.behind.asked <= MOST_AT_ONCE


async def test_what_takes_too_long_is_told_so() -> None:
    desk = Desk(timedelta(milliseconds=20))
    desk.ask("waits")
    (late,) = await desk.answers(1)
    assert message(late) == "it was not done in time"


async def test_an_answer_that_cannot_be_sent_is_told_as_that() -> None:
    desk = Desk()
    desk.problem = MalformedMessage("the envelope is over 1048576 bytes")
    desk.ask("works")
    (told,) = await desk.answers(1)
    assert "cannot be sent: the envelope is over" in message(told)


@loop_over("problem", [Unavailable("gone"), PermissionError("may not")])
async def test_an_answer_that_nobody_takes_breaks_nothing(problem: Exception) -> None:
    desk = Desk()
    desk.problem = problem
    desk.ask("works")
    desk.ask("fails")
    await desk.answers(1)


async def test_what_is_being_done_ends_with_the_membership() -> None:
    desk = Desk()
    desk.ask("waits")
    await asyncio.sleep(0)
    await desk.serving.close()
    assert desk.said == []
