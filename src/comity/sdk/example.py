"""`comity dev example-server`: a small tool server to try things with."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from itertools import count
from queue import SimpleQueue
from typing import Final, TextIO

from comity.mcp import protocol
from comity.sdk.module_server import Frame, StdioToolServer, text_result
from comity.toolkit.text import object_members

LONGEST_COUNTDOWN: Final = 60
_TEXT: Final[Frame] = {"type": "string"}


def _tool(
    name: str,
    about: str,
    takes: Frame,
    needed: Iterable[str] = (),
    *,
    is_destructive: bool = False,
) -> Frame:
    schema = {"type": "object", "properties": takes, "required": list(needed)}
    effect = "destructiveHint" if is_destructive else "readOnlyHint"
    hints = {effect: True, "openWorldHint": False}
    return {"name": name, "description": about, "inputSchema": schema, "annotations": hints}


TOOLS: Final = [
    _tool("echo", "Returns the message.", {"message": _TEXT}, ["message"]),
    {
        **_tool("now", "Returns the time as a structured result.", {}),
        "outputSchema": {
            "type": "object",
            "properties": {"time": {**_TEXT, "format": "date-time"}},
            "required": ["time"],
        },
    },
    _tool(
        "countdown",
        "Counts down to zero, one step per second, and reports progress.",
        {"seconds": {"type": "integer", "minimum": 1, "maximum": LONGEST_COUNTDOWN, "default": 3}},
    ),
    _tool("greet", "Asks for a name during the call and returns a greeting.", {}),
    _tool(
        "delete_note",
        "Deletes a note. There are no real notes: try an approval with it.",
        {"name": _TEXT},
        ["name"],
        is_destructive=True,
    ),
]


class ExampleServer(StdioToolServer):
    """One conversation with one client."""

    name = "comity-example"

    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        super().__init__(reader, writer)
        self._ids = count(1)
        self._asked: dict[str, SimpleQueue[Frame]] = {}
        self._tools: dict[str, Callable[[Frame, Frame], Frame]] = {
            "echo": lambda arguments, _: text_result(str(arguments.get("message", ""))),
            "now": lambda _, __: _now(),
            "countdown": self._count_down,
            "greet": lambda _, __: self._greet(),
            "delete_note": lambda arguments, _: text_result(
                f"Deleted the note {arguments.get('name', '')}."
            ),
        }

    def answered(self, frame: Frame) -> None:
        waiting = self._asked.pop(str(frame.get("id")), None)
        if waiting is not None:
            waiting.put(frame)

    def tools(self) -> list[Frame]:
        return TOOLS

    def call(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        tool = self._tools.get(name)
        return None if tool is None else tool(arguments, meta)

    def _count_down(self, arguments: Frame, meta: Frame) -> Frame:
        seconds = arguments.get("seconds", 3)
        if not isinstance(seconds, int) or not 1 <= seconds <= LONGEST_COUNTDOWN:
            return text_result(
                f"seconds must be a number from 1 to {LONGEST_COUNTDOWN}", is_error=True
            )
        for step in range(1, seconds + 1):
            time.sleep(1)
            if "progressToken" in meta:
                told = {"progress": step, "total": seconds, "message": f"{seconds - step} to go"}
                self.say(
                    {
                        "method": protocol.PROGRESS,
                        "params": {"progressToken": meta["progressToken"], **told},
                    }
                )
        return text_result("liftoff")

    def _greet(self) -> Frame:
        named = {**_TEXT, "title": "Name", "description": "Whom to greet", "minLength": 1}
        schema = {"type": "object", "properties": {"name": named}, "required": ["name"]}
        question = {"mode": "form", "message": "What is your name?", "requestedSchema": schema}
        asked = f"ask-{next(self._ids)}"
        waiting = self._asked[asked] = SimpleQueue()
        self.say({"id": asked, "method": protocol.ELICIT, "params": question})
        answer = object_members(waiting.get().get("result"))
        content = object_members(answer.get("content"))
        if answer.get("action") != "accept" or not content.get("name"):
            return text_result("The client sent no name.", is_error=True)
        return text_result(f"Hello, {content['name']}!")


def _now() -> Frame:
    told = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    return {**text_result(told["time"]), "structuredContent": told}
