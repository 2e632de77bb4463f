"""`comity call`: one tool called from the shell, with its progress and its questions."""

import sys
from datetime import timedelta
from typing import Any, Final

import click

from comity.cli.asking import Answer, Gateway, members
from comity.cli.completing import complete_tools
from comity.cli.ends import FINE, OPERATORS_MISTAKE, SOMETHING_WRONG
from comity.cli.inprocess import asked_gateway, config_option, may_hold
from comity.cli.meanwhile import Meanwhile
from comity.cli.options import json_option, url_option
from comity.cli.prompting import Person
from comity.cli.results import show_result
from comity.cli.schemas import read_arguments
from comity.cli.show import plain, show_json
from comity.cli.talking import Talk
from comity.cli.tools import tool_of
from comity.cli.waiting import Waiting
from comity.wire import mcp
from comity.wire.errors import INVALID_PARAMS, METHOD_NOT_FOUND

MISTAKES: Final = {INVALID_PARAMS.code, METHOD_NOT_FOUND.code}


@click.command("call")
@click.argument("tool", shell_complete=complete_tools)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--json-args",
    metavar="JSON",
    help="All arguments as one JSON object; KEY=VALUE stands over it.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="How long to wait for the answer, also for approval, without the time you are asked in.",
)
@url_option
@config_option
@json_option
def command(
    tool: str, arguments: tuple[str, ...], json_args: str | None, timeout: float, **where: Any
) -> int:
    """Call a tool and print what it gives.

    A VALUE is text where the tool wants text, and JSON elsewhere; KEY:=JSON is always JSON. What
    the tool asks amid the call is asked at the terminal; where there is none, it is declined. A
    call that needs approval waits for it, with or without a terminal. The exit status is 1 if the
    tool reports an error, or if the time runs out.
    """
    with asked_gateway(where["url"], where["config"], lambda each: may_hold(each, tool)) as gateway:
        definition = tool_of(gateway, tool)
        schema = definition["definition"].get("inputSchema")
        said = read_arguments(arguments, json_args, schema)
        answer = _call(gateway, definition, said, timedelta(seconds=timeout))
    if isinstance(answer, str):
        return _fail(answer)
    return _tell(answer, where["as_json"])


def _call(gateway: Gateway, tool: Answer, said: Answer, patience: timedelta) -> Answer | str:
    """The answer, or what to say where the time has run out."""
    person = Person.at_the_terminal(f"{tool['tool']} of the server {tool['server']}")
    gatekeeper = Person.at_the_terminal("Comity")
    with Meanwhile(tool["name"]) as meanwhile:
        waiting = Waiting(gateway, tool, meanwhile.say)

        def tell(method: str, params: Answer) -> None:
            if not waiting.heard(params):
                meanwhile.tell(method, params)

        def answer(question: Answer) -> Answer | None:
            meanwhile.pause()
            try:
                if waiting.heard(question):
                    return waiting.answer(question, gatekeeper)
                return person.answer(question)
            finally:
                meanwhile.resume()

        params = {"name": tool["name"], "arguments": said, "_meta": {"progressToken": 1}}
        try:
            with Talk(gateway, patience, tell, answer) as talk:
                return talk.ask(mcp.CALL_TOOL, params)
        except TimeoutError:
            late = f"the tool did not answer within {patience.total_seconds():g} s"
            return waiting.too_long or f"{late}; --timeout gives it longer"


def _tell(answer: Answer, as_json: bool) -> int:
    error = members(answer.get("error"))
    if error:
        if as_json:
            show_json({"error": error})
        status = OPERATORS_MISTAKE if error.get("code") in MISTAKES else SOMETHING_WRONG
        return _fail(str(error.get("message", "the call failed")), status)
    result = members(answer.get("result"))
    if as_json:
        show_json(result)
    else:
        show_result(result)
    return SOMETHING_WRONG if result.get("isError") else FINE


def _fail(because: str, status: int = SOMETHING_WRONG) -> int:
    sys.stderr.write(f"comity: {plain(because)}\n")
    return status
