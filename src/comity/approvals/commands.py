"""`comity asks`, `approve`, `deny` and `grants suggest`."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.padding import Padding

from comity.app.administration import AdminClient, config_option
from comity.approvals import presentation
from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.approvals.presentation import one_line
from comity.cli.api_client import Answer, ApiClient
from comity.cli.approvals import (
    answer_options,
    content_of,
    in_full,
    request_of_fields,
    requests_table,
    watch_requests,
)
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import DefaultListGroup, json_option, url_option
from comity.cli.output import build_table, line_text, show_json, show_output
from comity.errors import Misconfigured
from comity.toolkit.text import start_sentence

reason_option: Final[Callable[..., Any]] = click.option(
    "--reason", metavar="TEXT", help="Why; whoever asked is told, and it is kept."
)


@click.command("approve")
@click.argument("id")
@reason_option
@click.option("--remember", is_flag=True, help="Grant it for good: this tool, to this party.")
@click.option("--yes", is_flag=True, help="Do not ask again at the terminal.")
@answer_options
@url_option
@config_option
@json_option
def approve_command(id: str, reason: str | None, url: str, config: Path | None, **said: Any) -> int:
    """Approve the ask ID: exactly what it shows may run, once.

    At a terminal it is shown first what would run. The exit status is 1 if you then say no, or if
    it does not wait for an answer any more.
    """
    records = AdminClient(url, config)
    view, ask = _find_request(records, id)
    if not ask.is_open:
        return _report_too_late(view, ask, as_json=said["as_json"])
    is_asked = sys.stdin.isatty() and sys.stdout.isatty() and not said["yes"]
    if is_asked and not _confirm(view, ask, remember=said["remember"]):
        show_output(line_text("Nothing was said to it."))
        return SOMETHING_WRONG
    more: dict[str, object] = {
        "remember": True if said["remember"] else None,
        "content": content_of(ask, said["choose"], said["fill"], said["expires"]),
    }
    answered = records.post("asks", ask.id, "answer", verdict="accept", reason=reason, **more)
    return _report_answer(answered, as_json=said["as_json"])


@click.command("deny")
@click.argument("id")
@reason_option
@url_option
@config_option
@json_option
def deny_command(
    id: str, reason: str | None, url: str, config: Path | None, *, as_json: bool
) -> int:
    """Deny the ask ID: it does not run. The exit status is 1 if it does not wait any more."""
    records = AdminClient(url, config)
    view, ask = _find_request(records, id)
    if not ask.is_open:
        return _report_too_late(view, ask, as_json=as_json)
    answered = records.post("asks", ask.id, "answer", verdict="decline", reason=reason)
    return _report_answer(answered, as_json=as_json)


def _find_request(records: AdminClient, id: str) -> tuple[Answer, ApprovalRequest]:
    """The ask, for somebody who may answer it. Raises Misconfigured."""
    view = records.get("asks", id)
    if view["why_not"]:
        raise Misconfigured(
            f"you cannot answer it: {view['why_not']}. {start_sentence(view['approvers'])} can"
        )
    return view, request_of_fields(view)


def _confirm(view: Answer, request: ApprovalRequest, *, remember: bool) -> bool:
    show_output(*in_full(request, view.get("likeness") or ""))
    if remember:
        always = (
            f"Always: {request.asker} is granted {request.server}/{request.tool}, "
            "and is not asked again."
        )
        show_output(line_text(always, "yellow"))
    return click.confirm("Approve exactly this?", default=False)


def _report_too_late(view: Answer, request: ApprovalRequest, *, as_json: bool) -> int:
    if as_json:
        show_json(view)
    else:
        show_output(line_text(presentation.describe_state(request), "yellow"))
    return SOMETHING_WRONG


def _report_answer(answered: Answer, *, as_json: bool) -> int:
    if as_json:
        show_json(answered)
        return FINE
    ask = request_of_fields(answered)
    style = "green" if ask.state is ApprovalState.ACCEPTED else ""
    show_output(
        line_text(
            f"{presentation.describe_request(ask)}. {presentation.describe_state(ask)}", style
        )
    )
    made = answered.get("remembered")
    if made:
        show_output(line_text(f"Granted for good: {made['subject']} may call {made['target']}."))
    return FINE


STATE_NAMES: Final = [str(state) for state in ApprovalState]


@click.group("asks", cls=DefaultListGroup)
def asks_command() -> None:
    """Show what waits for somebody's answer.

    `comity approve` and `comity deny` answer it. An ID may be shortened as far as it stays the only
    one. A running gateway is asked, by somebody who was granted ask/answer, or may administer it.
    Without one, asks are read from the store, and answered there with --offline.
    """


@asks_command.command("list")
@click.option("--all", "of_all", is_flag=True, help="Also those that have ended.")
@click.option("--state", type=click.Choice(STATE_NAMES), help="Only those in this state.")
@click.option("--watch", "is_watched", is_flag=True, help="Stay, and show each change.")
@url_option
@config_option
@json_option
def list_asks(
    url: str,
    config: Path | None,
    state: str | None,
    *,
    of_all: bool,
    is_watched: bool,
    as_json: bool,
) -> int:
    """List what waits for an answer, the riskiest first; the same as `comity asks`.

    With --watch a terminal shows a table that stays up to date, until it is interrupted; elsewhere
    a line is printed for each change, which is a JSON document with --json. That needs a gateway.
    """
    if is_watched:
        watch_requests(ApiClient(url), as_json=as_json)
        return FINE
    chosen = "all" if of_all else state
    found = AdminClient(url, config).pages("asks", **({} if chosen is None else {"state": chosen}))
    if as_json:
        show_json({"asks": found})
    elif found:
        show_output(requests_table(request_of_fields(each) for each in found))
    else:
        show_output(
            line_text("Nothing waits for an answer." if chosen is None else "There are none.")
        )
    return FINE


@asks_command.command("show")
@click.argument("id")
@url_option
@config_option
@json_option
def show_ask(id: str, url: str, config: Path | None, *, as_json: bool) -> int:
    """Show the ask ID in full: what would run, by whose wish, and what became of it."""
    found = AdminClient(url, config).get("asks", id)
    if as_json:
        show_json(found)
    else:
        show_output(*in_full(request_of_fields(found), found.get("likeness") or ""))
        if found["why_not"]:
            show_output(line_text(f"You cannot answer it: {found['why_not']}.", "yellow"))
            show_output(line_text(f"{start_sentence(found['approvers'])} can."))
    return FINE


@asks_command.command("link")
@click.argument("id")
@click.option("--for", "party", metavar="PARTY", help="Who answers by it; you unless given.")
@url_option
@config_option
@json_option
def link(id: str, party: str | None, url: str, config: Path | None, *, as_json: bool) -> int:
    """Make a link to the ask ID by which PARTY answers it in a browser, and nobody else's ask.

    Whoever opens the link answers as PARTY, so give it to nobody else. It ends with the ask.
    """
    records = AdminClient(url, config)
    made = records.post("asks", records.get("asks", id)["id"], "link", party=party)
    if as_json:
        show_json(made)
    else:
        # On one line, however long: it is copied, or piped to whoever sends it.
        sys.stdout.write(f"{one_line(made['url'])}\n")
    return FINE


SUGGESTIONS_PATH: Final = "suggestions"
_MAX_ARGUMENT_LETTERS: Final = 80


@click.group("suggest", cls=DefaultListGroup)
def suggest() -> None:
    """Show grants that equal decisions suggest; accept one, or dismiss it.

    A running gateway is asked. What is accepted answers in a person's place: calls like those that
    were approved go without an ask, and everything else is asked about as before.
    """


@suggest.command("list")
@click.option("--dry-run", is_flag=True, help="Show what each would have done to past calls.")
@url_option
@json_option
def list_suggestions(url: str, *, dry_run: bool, as_json: bool) -> int:
    """List what is suggested, with the evidence; the same as `comity grants suggest`."""
    found = ApiClient(url).get(SUGGESTIONS_PATH)
    if as_json:
        show_json(found)
        return FINE
    if not found[SUGGESTIONS_PATH]:
        show_output(
            line_text(
                "Nothing is suggested: too little was decided alike, or it is granted already."
            )
        )
    for each in found[SUGGESTIONS_PATH]:
        told = [
            *_describe_suggestion(each),
            *(_describe_dry_run(each["dry_run"]) if dry_run else ()),
        ]
        show_output(
            line_text(each["id"], "bold"), *(Padding(part, (0, 0, 0, 2)) for part in told), ""
        )
    if found[SUGGESTIONS_PATH]:
        show_output(
            line_text(
                "`comity grants suggest accept ID` grants it, and `dismiss ID` does not.", "dim"
            )
        )
    if found["held_back"]:
        _print_withheld(found["held_back"])
    return FINE


def _describe_suggestion(each: Answer) -> list[RenderableType]:
    evidence = each["evidence"]
    people = " and ".join(evidence["people"])
    return [
        line_text(each["words"]),
        line_text(f"by {people}, {evidence['first'][:10]} to {evidence['last'][:10]}", "dim"),
    ]


def _describe_dry_run(found: Answer) -> Iterator[RenderableType]:
    more = found["never_asked"] + found["unanswered"] + found["declined"]
    yield line_text(found["sentence"], "yellow" if more else "green")
    if not found["journal_answered"]:
        yield line_text("the journal could not be searched in time: there may be more", "yellow")
    if found["not_covered_calls"]:
        rows = [
            (each["became"], f"{each['times']}", _shorten(each["arguments"]))
            for each in found["not_covered_calls"]
        ]
        yield build_table(("NOT COVERED", "TIMES", "ARGUMENTS"), rows)


def _print_withheld(found: list[Answer]) -> None:
    show_output("", line_text("Approved as often, and not suggested:", "bold"))
    rows = [(each["name"], each["subject"], f"{each['approved']}", each["why"]) for each in found]
    show_output(build_table(("TOOL", "WHO", "APPROVED", "WHY NOT"), rows))


def _shorten(arguments: object) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) <= _MAX_ARGUMENT_LETTERS else f"{text[:_MAX_ARGUMENT_LETTERS]}…"


@suggest.command("accept")
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="For people who read it later.")
@url_option
@json_option
def accept(id: str, reason: str | None, url: str, *, as_json: bool) -> int:
    """Grant what is suggested under this ID, in your own name; at once, on every node."""
    done = _send_decision(url, id, "accept", reason)
    if as_json:
        show_json(done)
        return FINE
    grant = done["grant"]
    show_output(
        line_text(
            f"Granted to {grant['subject']}: {grant['target']} {grant['where_words']}.", "green"
        )
    )
    back = f"comity grants remove {grant['subject']} {grant['target']} --standing"
    show_output(line_text(f"`{back}` takes it back.", "dim"))
    return FINE


@suggest.command("dismiss")
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="For people who read it later.")
@url_option
@json_option
def dismiss(id: str, reason: str | None, url: str, *, as_json: bool) -> int:
    """Have it not suggested again before there is twice the evidence."""
    done = _send_decision(url, id, "dismiss", reason)
    if as_json:
        show_json(done)
    else:
        again = done["suggested_again_at"]
        show_output(line_text(f"Dismissed; it comes back with {again} approvals, if ever."))
    return FINE


def _send_decision(url: str, id: str, decision: str, reason: str | None) -> Answer:
    if not id.strip():
        raise Misconfigured("say which suggestion, by its id; `comity grants suggest` lists them")
    body = {"id": id, "decision": decision, **({"reason": reason} if reason else {})}
    return ApiClient(url).post(SUGGESTIONS_PATH, body=body)
