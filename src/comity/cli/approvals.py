"""Approval requests at a terminal: tables, details, forms and a live view."""

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, cast

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from comity.approvals import presentation
from comity.approvals.answers import CHOICE_FIELD, TEXT_FIELD
from comity.approvals.kinds import EXPIRES_FIELD
from comity.approvals.model import ApprovalKind, ApprovalRequest, ApprovalState
from comity.approvals.presentation import request_of_fields
from comity.cli.api_client import Answer, ApiClient
from comity.cli.arguments import parse_expiry
from comity.cli.output import build_table, fits_output, make_console, stack_rows
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from comity.http.client.sync_client import SYNC_ERRORS, stream_sync
from comity.mcp.framing import SseParser
from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import RetrySchedule

RISKS: Final = {"dangerous": "bold red", "moderate": "yellow", "safe": "green"}
STATES: Final = {
    "pending": "yellow",
    "deferred": "yellow",
    "approved": "green",
    "consumed": "green",
}
MAX_ARGUMENTS_LENGTH: Final = 1_000


def plain_text(text: str, style: str = "") -> Text:
    """Text that is already sanitized."""
    return Text(text, style=style)


def requests_table(found: Iterable[ApprovalRequest]) -> RenderableType:
    """A table of requests; the request is on a second line if one line is too short."""
    asks = presentation.sort_by_urgency(found)
    now, ids = datetime.now(UTC), presentation.short_ids(ask.id for ask in asks)
    has_ended = any(not ask.is_open for ask in asks)
    rows = [_row(ask, now, ids[ask.id], has_ended) for ask in asks]
    state = ("STATE",) if has_ended else ()
    columns = ("ID", "AGE", *state, "RISK", "EXPIRES IN", "PRINCIPAL", "REQUEST")
    if fits_output(columns, rows):
        return build_table(columns, rows)
    return stack_rows(columns, rows, len(columns) - 1)


def _row(approval_request: ApprovalRequest, now: datetime, id: str, has_ended: bool) -> list[Text]:
    state = (
        [plain_text(approval_request.state, STATES.get(approval_request.state, "dim"))]
        if has_ended
        else []
    )
    is_live = approval_request.is_open or approval_request.state is ApprovalState.APPROVED
    return [
        plain_text(id, "bold"),
        plain_text(presentation.format_duration(now - approval_request.created_at)),
        *state,
        plain_text(
            presentation.request_risk(approval_request),
            RISKS.get(presentation.request_risk(approval_request), ""),
        ),
        plain_text(
            presentation.format_duration(approval_request.expires_at - now) if is_live else ""
        ),
        plain_text(presentation.one_line(approval_request.asker)),
        plain_text(summarise_request(approval_request)),
    ]


def summarise_request(approval_request: ApprovalRequest) -> str:
    """The request on one line, with the beginning of its arguments."""
    if approval_request.kind is not ApprovalKind.CONFIRM:
        return presentation.describe_request(approval_request)
    arguments = approval_request.about.get("arguments")
    said = "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
    shown = presentation.one_line(said[: MAX_ARGUMENTS_LENGTH + 1])
    if len(said) > MAX_ARGUMENTS_LENGTH:
        shown = f"{shown[:MAX_ARGUMENTS_LENGTH]}…"
    return f"call {presentation.public_tool_name(approval_request)} {shown}".rstrip()


def in_full(approval_request: ApprovalRequest, likeness: str = "") -> list[RenderableType]:
    """All details that a person needs to answer the request."""
    found: list[RenderableType] = [
        plain_text(presentation.describe_request(approval_request), "bold")
    ]
    rows = presentation.detail_rows(approval_request, datetime.now(UTC), likeness)
    grid = build_table(("", ""), [_named(row) for row in rows])
    return [*found, grid]


def _named(row: presentation.DetailRow) -> list[Text]:
    style = RISKS.get(row.text, "") if row.name == "Risk" else ""
    return [plain_text(row.name, "dim"), plain_text(row.text, style)]


def format_request_line(approval_request: ApprovalRequest) -> str:
    """One change on one line, for a log or a pipe."""
    at = datetime.now(UTC).strftime("%H:%M:%S")
    risk = presentation.request_risk(approval_request) or "-"
    asker = presentation.one_line(approval_request.asker)
    summary = summarise_request(approval_request)
    return f"{at} {approval_request.id} {approval_request.state} {risk} {asker} {summary}"


_TRUTHS: Final = {"true": True, "yes": True, "false": False, "no": False}

type Content = dict[str, object]


def answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that fill in the content of an answer."""
    for option in (
        click.option(
            "--fill",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="Fill a field. Without a value you are prompted.",
        ),
        click.option("--choose", metavar="OPTION", help="Choose one of the options."),
    ):
        command = option(command)
    return command


def content_of(
    approval_request: ApprovalRequest, choose: str | None, fill: Sequence[str], expires: str | None
) -> Content | None:
    """The content of an answer; None if it has none. Raises Misconfigured."""
    content: Content = {}
    if choose is not None:
        content[CHOICE_FIELD] = choose
    for each in fill:
        name, has_value, value = each.partition("=")
        said = value if has_value else click.prompt(name, hide_input=True, err=True)
        content[name] = _read(_field(approval_request, name), str(said))
    if expires is not None:
        if approval_request.kind is not ApprovalKind.PERMISSION:
            raise Misconfigured("--expires is for permissions only; remove it")
        content[EXPIRES_FIELD] = parse_expiry(expires)
    return content or None


def _field(approval_request: ApprovalRequest, name: str) -> Mapping[str, object]:
    if approval_request.schema is None:
        if name != TEXT_FIELD:
            raise Misconfigured(f"there is only one field, {TEXT_FIELD}: `--fill {TEXT_FIELD}`")
        return {}
    fields = cast(
        "Mapping[str, Mapping[str, object]]", approval_request.schema.get("properties", {})
    )
    if name not in fields:
        raise Misconfigured(f"there is no field {name!r:.80}; there are {', '.join(fields):.400}")
    return fields[name]


def _read(field: Mapping[str, object], text: str) -> object:
    """A value of the field's own type; the gateway looks whether it fits."""
    try:
        match field.get("type"):
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return _TRUTHS[text.lower()]
            case "array":
                return [each.strip() for each in text.split(",") if each.strip()]
            case _:
                return text
    except (ValueError, KeyError):
        raise Misconfigured(f"this field takes {field['type']}, and nothing else") from None


STREAM: Final = "/api/approvals/stream"
SILENCE: Final = timedelta(seconds=60)
"""A stream sends a sign of life at least every 15 seconds."""

_RECONNECTS: Final = RetrySchedule(timedelta(seconds=1), timedelta(seconds=10))

type Event = tuple[str, Answer]


def stream_events(gateway: ApiClient) -> Iterator[Event]:
    """Yield every event, and connect again after a lost connection.

    Raises Unavailable if the first connection fails, and Misconfigured for a refused key.
    """
    failures, was_heard = 0, False
    while True:
        try:
            for event in _stream_once(gateway):
                failures, was_heard = 0, True
                yield event
                if event[0] == "lost":
                    break
        except Unavailable:
            if not was_heard:
                raise
        failures += 1
        time.sleep(draw_delay(_RECONNECTS, failures).total_seconds())


def _stream_once(gateway: ApiClient) -> Iterator[Event]:
    parser = SseParser()
    headers = {"Accept": "text/event-stream", **gateway.credentials}
    try:
        for status, piece in stream_sync(gateway.connect(SILENCE), STREAM, headers):
            if status != 200:
                _raise_for_status(gateway, status)
            for found in parser.feed(piece):
                if found.data:
                    yield found.event, json.loads(found.data)
    except (*SYNC_ERRORS, ValueError, MalformedMessage) as problem:
        raise gateway.unreachable(problem) from None


def _raise_for_status(gateway: ApiClient, status: int) -> NoReturn:
    if status == 401:
        raise gateway.key_needed_error("it is unknown or has expired")
    raise Unavailable(f"{gateway.url} does not stream approval requests now (status {status})")


def watch_requests(gateway: ApiClient, *, as_json: bool) -> None:
    """Show approval requests until the user interrupts the command."""
    if sys.stdout.isatty() and not as_json:
        _live(gateway)
        return
    for name, said in stream_events(gateway):
        _demand_going_on(name, said)
        if name == "approval":
            text = json.dumps(said) if as_json else format_request_line(request_of_fields(said))
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


def _demand_going_on(name: str, said: Answer) -> None:
    if name == "end":
        raise Misconfigured(f"the gateway has ended the stream: {said.get('reason', '')!s:.300}")


def _live(gateway: ApiClient) -> None:
    heard: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
    threading.Thread(target=_read_events, args=(gateway, heard), daemon=True).start()
    shown: dict[str, ApprovalRequest] = {}
    with Live(console=make_console(), auto_refresh=False) as live:
        while True:
            for each in _next_event(heard):
                if isinstance(each, Exception):
                    raise each
                _apply_event(shown, *each)
            found = (
                requests_table(shown.values())
                if shown
                else plain_text("There are no open requests.")
            )
            live.update(found, refresh=True)


def _read_events(gateway: ApiClient, heard: "queue.SimpleQueue[Event | Exception]") -> None:
    try:
        for event in stream_events(gateway):
            heard.put(event)
    except (Misconfigured, Unavailable) as error:
        heard.put(error)


def _next_event(heard: "queue.SimpleQueue[Event | Exception]") -> Iterator[Event | Exception]:
    """Yield the waiting events; none after one second, so that the shown ages are updated."""
    try:
        yield heard.get(timeout=1.0)
        while not heard.empty():
            yield heard.get()
    except queue.Empty:
        return


def _apply_event(shown: dict[str, ApprovalRequest], name: str, said: Answer) -> None:
    _demand_going_on(name, said)
    if name == "lost":
        shown.clear()
    elif name == "approval":
        ask = request_of_fields(said)
        shown.pop(ask.id, None)
        if ask.is_open:
            shown[ask.id] = ask
