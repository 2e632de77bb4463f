"""`comity call`: one tool call with its progress, questions and result."""

import asyncio
import contextlib
import json
import os
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, cast

import click
from rich.text import Text

from comity.app.administration import tool_client
from comity.catalog.commands import may_own_tool, require_tool
from comity.cli.api_client import Answer, ApiClient
from comity.cli.arguments import read_arguments
from comity.cli.completion import complete_tools
from comity.cli.exit_status import DONE, FAILED, USAGE_ERROR
from comity.cli.mcp_client import CliMcpSession
from comity.cli.options import CliCommand, current_options, tool_options
from comity.cli.output import (
    line_text,
    make_console,
    paragraph_text,
    show_document,
    show_output,
)
from comity.errors import INVALID_PARAMS, METHOD_NOT_FOUND, Misconfigured, Unavailable
from comity.mcp import protocol
from comity.servers.process.stderr import sanitize_line
from comity.toolkit.text import count_noun, object_members

type Frame = dict[str, Any]

LINE_INTERVAL_SECONDS: Final = 1.0
MAX_LINE_LETTERS: Final = 200
MIN_PROGRESS: Final = 0.001
"""Smaller progress without a total is not shown: MCP only requires that the number grows."""


class CallProgressDisplay:
    """Shows the progress of a call on standard error."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._live: Any = None
        self._task: Any = None
        self._last_line = 0.0
        self._is_quiet = current_options().quiet
        if sys.stderr.isatty() and not self._is_quiet:
            self._live = _make_progress_bar()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._task = self._live.add_task(self._about, total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show_notification(self, method: str, params: Frame) -> None:
        """Show a notification that a server sends during a call."""
        if self._is_quiet:
            return
        if method == protocol.PROGRESS:
            self._show_progress(params)
        elif method == protocol.MESSAGE:
            self._print_line(f"{params.get('level', 'log')}: {params.get('data', '')}")

    def show_message(self, line: str) -> None:
        """Show a message of Comity itself, uncut."""
        self._print_line(line, len(line))

    def pause(self) -> None:
        """Stop the display while a question uses the terminal."""
        if self._live is not None:
            self._live.stop()

    def resume(self) -> None:
        if self._live is not None:
            self._live.start()

    def _show_progress(self, params: Frame) -> None:
        done, total = _number(params.get("progress")), _number(params.get("total"))
        message = sanitize_line(str(params.get("message") or ""))[:MAX_LINE_LETTERS]
        if self._live is not None:
            about = f"{self._about}  {message}" if message else self._about
            self._live.update(self._task, completed=done or 0, total=total, description=about)
        elif time.monotonic() - self._last_line >= LINE_INTERVAL_SECONDS or done == total:
            self._last_line = time.monotonic()
            if told := f"{_progress_text(done or 0, total)} {message}".strip():
                self._print_line(told)

    def _print_line(self, line: str, max_length: int = MAX_LINE_LETTERS) -> None:
        text = f"comity: {sanitize_line(line)[:max_length]}"
        if self._live is not None:
            self._live.console.print(text, style="dim", markup=False, soft_wrap=True)
        else:
            click.echo(text, err=True)


def _make_progress_bar() -> object:
    # Imported here because it loads slowly, and a script has no terminal.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20))
    console = make_console(stderr=True)
    return Progress(*columns, MofNCompleteColumn(), console=console, transient=True)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _progress_text(done: float, total: float | None) -> str:
    """Return the progress as text; empty if the number is meaningless."""
    if total is not None:
        return f"{done:g} of {total:g}"
    return f"{done:g}" if done >= MIN_PROGRESS else ""


DECLINED_ANSWER: Frame = {"action": "decline"}
_YES_OR_NO: Final = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}


@dataclass(frozen=True, slots=True)
class TerminalUser:
    """The person at the terminal, if standard input and standard error are one."""

    about: str
    is_present: bool

    @classmethod
    def from_terminal(cls, about: str) -> "TerminalUser":
        return cls(about, sys.stdin.isatty() and sys.stderr.isatty())

    def answer(self, question: Frame) -> Frame:
        """Return the person's answer to an elicitation; decline it without a terminal."""
        message = _as_text(question.get("message"))
        if not self.is_present:
            _print_line(f"comity: {self.about} asks: {message}")
            _print_line("comity: no terminal, so the request is declined")
            return DECLINED_ANSWER
        _print_line("")
        _print_line(click.style(f"{self.about} asks:", bold=True))
        _print_line(message)
        try:
            if question.get("mode") == "url" or "url" in question:
                return _offer_page(question)
            return _fill_form(question)
        except click.Abort:
            _print_line("")
            return {"action": "cancel"}


MAX_ANSWER_BYTES: Final = 4096


async def _read_terminal_line() -> str:
    """Return the next line that is typed; empty at the end of the input.

    It can be cancelled, unlike `input`, because the answer may come from elsewhere.
    """
    loop, terminal = asyncio.get_running_loop(), sys.stdin.fileno()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        typed = b""
        with contextlib.suppress(OSError):
            typed = os.read(terminal, MAX_ANSWER_BYTES)
        if not line.done():
            line.set_result(typed)

    loop.add_reader(terminal, read)
    try:
        text = (await line).decode(errors="replace")
    finally:
        loop.remove_reader(terminal)
    # Ctrl-D ends a line without a line end. That is no answer.
    return text if text.endswith("\n") else ""


async def _ask_yes_or_no(question: str) -> bool:
    """Ask until the answer is yes or no. An empty line and the end of the input are no."""
    # What was typed before the question was no answer to it, and what was typed for a question
    # that has ended must not become a command of the shell.
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    try:
        while True:
            click.echo(f"{question} [y/N]: ", err=True, nl=False)
            line = await _read_terminal_line()
            if line in ("", "\n"):
                _print_line("" if not line else "No.")
                return False
            if (word := line.strip().lower()) in _YES_OR_NO:
                return _YES_OR_NO[word]
            _print_line("Answer y or n.")
    finally:
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _offer_page(question: Frame) -> Frame:
    """Ask whether to open a page; neither Comity nor the client sees what is typed there."""
    _print_line(f"It asks you to open this address: {_as_text(question.get('url'))}")
    agreed = click.confirm("Open it only if you trust it. Agree?", default=False, err=True)
    return {"action": "accept"} if agreed else DECLINED_ANSWER


def _fill_form(question: Frame) -> Frame:
    schema = object_members(question.get("requestedSchema"))
    fields = object_members(schema.get("properties"))
    needed = schema.get("required")
    if not click.confirm("Answer?", default=True, err=True):
        return DECLINED_ANSWER
    content: Frame = {}
    for name, field in fields.items():
        required = isinstance(needed, list) and name in cast("list[object]", needed)
        value = _ask_field(name, object_members(field), required=required)
        if value is not None:
            content[name] = value
    return {"action": "accept", "content": content}


def _ask_field(name: str, field: Frame, *, required: bool) -> object:
    """Ask for one field until the answer is valid; return None for a field left empty."""
    choices = _choices(field)
    label = _as_text(field.get("title") or name)
    if field.get("description"):
        _print_line(click.style(f"  {_as_text(field['description'])}", dim=True))
    for number, (_, title) in enumerate(choices, 1):
        _print_line(f"  {number}. {title}")
    default = field.get("default")
    hint = "" if required or default is not None else " (optional)"
    while True:
        said = click.prompt(
            f"{label}{hint}",
            default=_choice_text(default) if default is not None else None if required else "",
            err=True,
            show_default=default is not None,
        )
        if said == "" and not required:
            return None
        try:
            return _parse_input(str(said), field, choices)
        except ValueError as problem:
            _print_line(f"  {problem}")


def _parse_input(text: str, field: Frame, choices: Sequence[tuple[object, str]]) -> object:
    if field.get("type") == "array":
        return [_parse_choice(each.strip(), choices) for each in text.split(",") if each.strip()]
    if choices:
        return _parse_choice(text, choices)
    if field.get("type") == "boolean":
        if text.lower() not in _YES_OR_NO:
            raise ValueError("Answer yes or no.")
        return _YES_OR_NO[text.lower()]
    if field.get("type") in ("integer", "number"):
        return _parse_number(text, field)
    return _parse_text(text, field)


def _parse_number(text: str, field: Frame) -> int | float:
    try:
        value = int(text) if field.get("type") == "integer" else float(text)
    except ValueError:
        raise ValueError(f"Enter a number ({field.get('type')}).") from None
    least, most = field.get("minimum"), field.get("maximum")
    if isinstance(least, int | float) and value < least:
        raise ValueError(f"At least {least}.")
    if isinstance(most, int | float) and value > most:
        raise ValueError(f"At most {most}.")
    return value


def _parse_text(text: str, field: Frame) -> str:
    least, most = field.get("minLength"), field.get("maxLength")
    if isinstance(least, int) and len(text) < least:
        raise ValueError(f"At least {count_noun(least, 'character')}.")
    if isinstance(most, int) and len(text) > most:
        raise ValueError(f"At most {count_noun(most, 'character')}.")
    return text


def _parse_choice(text: str, choices: Sequence[tuple[object, str]]) -> object:
    """Return the choice with this number, value or title. Raises ValueError if there is none."""
    if text.isdecimal() and 1 <= int(text[:6]) <= len(choices):
        return choices[int(text) - 1][0]
    for value, title in choices:
        if text in (value, title):
            return value
    raise ValueError("Choose one of the numbers.")


def _choices(field: Frame) -> list[tuple[object, str]]:
    """Return the values and titles of the choices in any form that a schema allows. (SEP-1330)"""
    holder = object_members(field.get("items")) if field.get("type") == "array" else field
    for key in ("oneOf", "anyOf"):
        if isinstance(holder.get(key), list):
            options = [object_members(each) for each in cast("list[object]", holder[key])]
            return [
                (each.get("const"), _as_text(each.get("title", each.get("const"))))
                for each in options
            ]
    values = holder.get("enum")
    if not isinstance(values, list):
        return []
    listed = cast("list[object]", values)
    names = holder.get("enumNames")
    titles = cast("list[object]", names) if isinstance(names, list) else listed
    return [(value, _as_text(title)) for value, title in zip(listed, titles, strict=False)]


def _choice_text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(each) for each in cast("list[object]", value))
    return value if isinstance(value, str) else json.dumps(value)


def _as_text(value: object) -> str:
    return "\n".join(sanitize_line(line) for line in str(value or "").splitlines())


def _print_line(line: str) -> None:
    click.echo(line, err=True)


type Result = dict[str, Any]


def show_result(result: Result) -> None:
    style = "red" if result.get("isError") else ""
    for piece in _result_texts(result, style):
        show_output(piece)


def _result_texts(result: Result, style: str) -> Iterator[Text]:
    content = result.get("content")
    items = cast("list[object]", content) if isinstance(content, list) else []
    for item in items:
        yield _content_text(object_members(item), style)
    structured = result.get("structuredContent")
    if structured is not None and not _repeats_structure(structured, items):
        yield paragraph_text(json.dumps(structured, indent=2, ensure_ascii=False), style)


def _repeats_structure(structured: object, items: list[object]) -> bool:
    """Return whether the text repeats the structure, as many servers do for older clients."""
    found = (object_members(item).get("text") for item in items)
    texts = [text for text in found if isinstance(text, str)]
    parsed = [_parse_json(text) for text in texts]
    said = [*texts, *parsed, texts, parsed] if texts else []
    # Some servers wrap a plain value, or a list, in an object with one member.
    values = list(object_members(structured).values())
    return structured in said or (len(values) == 1 and values[0] in said)


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _content_text(item: Result, style: str) -> Text:
    kind = item.get("type")
    if kind == "text":
        return paragraph_text(str(item.get("text", "")), style)
    if kind in ("image", "audio"):
        size = len(str(item.get("data", ""))) * 3 // 4
        return line_text(
            f"[{kind}: {item.get('mimeType', 'of no known kind')}, {size} bytes]", "dim"
        )
    if kind == "resource_link":
        return line_text(f"[resource: {item.get('name', '')} {item.get('uri', '')}]", "dim")
    resource = object_members(item.get("resource"))
    if kind == "resource" and isinstance(resource.get("text"), str):
        return paragraph_text(resource["text"], style)
    return line_text(f"[{kind}: {resource.get('uri', 'which cannot be shown here')}]", "dim")


class CallApprovalWait:
    """The approval request that one call waits for, if any."""

    def __init__(
        self, api_client: ApiClient, tool: Answer, show_message: Callable[[str], None]
    ) -> None:
        self._api_client = api_client
        self._tool = tool
        self._show_message = show_message
        self._unknown_ids: set[str] = set()
        self._view: Answer = {}
        self._is_declined = False
        self._was_dropped = False

    def handle_message(self, params: Frame) -> bool:
        """Return whether a message is about the approval of this call.

        Announce the request once.
        """
        meta = object_members(params.get("_meta"))
        if not meta:
            return False
        # Imported here because it loads slowly, and most calls wait for no approval.
        from comity.approvals.model import META_KEY

        id = object_members(meta.get(META_KEY)).get("id")
        if not isinstance(id, str) or id in self._unknown_ids:
            return False
        if id != self._view.get("id"):
            view = self._find_request(id)
            if view is None:
                self._unknown_ids.add(id)
                return False
            self._view = view
            self._show_message(f"this call waits for approval (request {id}). {self.instructions}")
        return True

    @property
    def instructions(self) -> object:
        """The instructions to approve the request at its gateway."""
        # Imported here because it loads slowly, and most calls wait for no approval.
        from comity.approvals.presentation import approval_command

        # For the same reason.
        from comity.approvals.prompt_messages import ApprovalInstructions

        id, url = self._view["id"], self._api_client.url
        reason = self._view["refusal_reason"] or ""
        return ApprovalInstructions(
            self._view["approvers"], f"{url}/approvals/{id}", approval_command(id, url), reason
        )

    async def answer(self, question: Frame, person: TerminalUser) -> Frame | None:
        """Return the answer to a question about the request; None without a terminal.

        It is cancelled when the request is answered elsewhere, or ends.
        """
        if "url" in question:
            # This person may not answer. `handle_message` has shown who can, and how.
            return {"action": "accept"}
        if not person.is_present:
            return None
        _print_line("")
        _print_line(click.style(f"{person.about} asks:", bold=True))
        _print_line(_as_text(question.get("message")))
        _print_line("Yes runs this call once. No denies it, and nothing runs.")
        try:
            self._is_declined = not await _ask_yes_or_no("Approve and run this call?")
        except asyncio.CancelledError:
            _print_line("")
            self._was_dropped = True
            raise
        # Imported here because it loads slowly, and most calls wait for no approval.
        from comity.approvals.prompt_messages import APPROVE_VALUE, DECISION_FIELD

        if self._is_declined:
            return DECLINED_ANSWER
        return {"action": "accept", "content": {DECISION_FIELD: APPROVE_VALUE}}

    def explain(self, answer: Answer) -> None:
        """Say why the answer of the call is not what the person at the terminal decided."""
        if self._was_dropped:
            self._show_message(f"request {self._view['id']} no longer waits for your answer")
        elif self._is_declined and not object_members(answer.get("result")).get("isError", True):
            # An approval elsewhere can start the call before the answer of this person arrives.
            self._show_message(
                "your answer came too late: the call was approved elsewhere before, and has run"
            )

    @property
    def timeout_advice(self) -> str:
        """The advice after a timeout; empty if the call did not wait for approval."""
        return f"{self._open_advice} Then run the same command again" if self._is_open() else ""

    @property
    def interruption_advice(self) -> str:
        """The advice after an interruption; empty if the call did not wait for approval."""
        return self._open_advice if self._is_open() else ""

    @property
    def _open_advice(self) -> str:
        return (
            f"the call still waits for approval (request {self._view['id']}); nothing has run. "
            f"{self.instructions}"
        )

    def _is_open(self) -> bool:
        view = self._find_request(self._view["id"]) if self._view else None
        return view is not None and view["state"] in ("pending", "deferred")

    def _find_request(self, id: str) -> Answer | None:
        """Return the approval request for exactly this tool, as the gateway reports it."""
        with contextlib.suppress(Misconfigured, Unavailable):
            view = self._api_client.get("approvals", id)
            if (view.get("server"), view.get("tool")) == (self._tool["server"], self._tool["tool"]):
                return view
        return None


USAGE_ERROR_CODES: Final = {INVALID_PARAMS.code, METHOD_NOT_FOUND.code}


@click.command("call", cls=CliCommand)
@click.argument("tool", shell_complete=complete_tools)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--json-args",
    metavar="JSON",
    help="All arguments as one JSON object. KEY=VALUE overrides it.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Time limit, with the wait for approval but without your input.",
)
@tool_options
def call_command(
    tool: str, arguments: tuple[str, ...], json_args: str | None, timeout: float
) -> int:
    """Call a tool and print its result.

    A VALUE is text if the tool expects text, and JSON otherwise. KEY:=JSON is always JSON.

    If the tool asks for input, you are prompted. Without a terminal, the request is declined. A
    call that needs approval waits for it. Exits with 1 if the tool reports an error or the time
    limit is reached.

    \b
    Examples:
      comity call files__read path=notes.txt
      comity call github__search --json-args '{"query": "bug"}'
      comity call example__echo message=hi --local -c mcp.json
    """
    with tool_client(lambda id: may_own_tool(id, tool)) as gateway:
        definition = require_tool(gateway, tool)
        schema = definition["definition"].get("inputSchema")
        said = read_arguments(arguments, json_args, schema)
        answer = _call(gateway, definition, said, timedelta(seconds=timeout))
    return _fail(answer) if isinstance(answer, str) else _print_answer(answer)


def _call(
    api_client: ApiClient, tool: Answer, arguments: Answer, timeout: timedelta
) -> Answer | str:
    """Return the answer of the call, or a message if the time has run out."""
    person = TerminalUser.from_terminal(f"{tool['tool']} of the server {tool['server']}")
    gatekeeper = TerminalUser.from_terminal("Comity")
    with CallProgressDisplay(tool["name"]) as meanwhile:
        waiting = CallApprovalWait(api_client, tool, meanwhile.show_message)

        def tell(method: str, params: Answer) -> None:
            if not waiting.handle_message(params):
                meanwhile.show_notification(method, params)

        async def answer(question: Answer) -> Answer | None:
            meanwhile.pause()
            try:
                if waiting.handle_message(question):
                    return await waiting.answer(question, gatekeeper)
                return person.answer(question)
            finally:
                meanwhile.resume()

        params = {"name": tool["name"], "arguments": arguments, "_meta": {"progressToken": 1}}
        try:
            with CliMcpSession(api_client, timeout, tell, answer) as talk:
                answered = talk.request(protocol.CALL_TOOL, params)
                waiting.explain(answered)
                return answered
        except KeyboardInterrupt:
            if advice := waiting.interruption_advice:
                meanwhile.show_message(advice)
            raise
        except TimeoutError:
            late = f"the tool did not answer within {timeout.total_seconds():g} s"
            return waiting.timeout_advice or f"{late}; set a longer limit with --timeout"


def _print_answer(answer: Answer) -> int:
    error = object_members(answer.get("error"))
    if error:
        show_document({"error": error}, lambda: None)
        status = USAGE_ERROR if error.get("code") in USAGE_ERROR_CODES else FAILED
        return _fail(str(error.get("message", "the call failed")), status)
    result = object_members(answer.get("result"))
    show_document(result, lambda: show_result(result))
    return FAILED if result.get("isError") else DONE


def _fail(reason: str, status: int = FAILED) -> int:
    sys.stderr.write(f"comity: {line_text(reason)}\n")
    return status
