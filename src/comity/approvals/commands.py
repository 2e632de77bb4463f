"""`comity approvals`, `approve`, `deny` and `comity grants suggestions`."""

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

import click
from rich.console import RenderableType
from rich.padding import Padding

from comity.app.administration import AdminClient
from comity.approvals import presentation
from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.approvals.presentation import one_line
from comity.cli.api_client import Answer
from comity.cli.approvals import (
    answer_options,
    content_of,
    in_full,
    request_of_fields,
    requests_table,
    watch_requests,
)
from comity.cli.exit_status import DONE, FAILED, NOT_PERMITTED
from comity.cli.options import (
    CliCommand,
    DefaultListGroup,
    current_options,
    expires_option,
    gateway_options,
    limit_option,
    reason_option,
    store_options,
    yes_option,
)
from comity.cli.output import build_table, line_text, show_document, show_hint, show_output
from comity.cli.target import connect_gateway
from comity.errors import Misconfigured
from comity.toolkit.text import start_sentence


@click.group("approvals", cls=DefaultListGroup)
def approvals_command() -> None:
    """List and answer approval requests.

    You can shorten an ID to any unique prefix of 4 or more characters. You need a grant of
    approval/answer, or admin access. With --offline the command works on the database.

    \b
    Examples:
      comity approvals
      comity approvals list --watch
      comity approvals approve 06gu44bi
    """


@click.command("approve", cls=CliCommand)
@click.argument("id")
@reason_option
@click.option("--remember", is_flag=True, help="Also grant this tool to this principal.")
@yes_option
@answer_options
@expires_option
@store_options
def approve_command(id: str, reason: str | None, **said: Any) -> int:
    """Approve an approval request.

    Exactly the call shown may run, once. At a terminal the command shows it and asks you to
    confirm. Exits with 1 if you do not confirm, or if the request is not open any more.

    \b
    Examples:
      comity approve 06gu44bi
      comity approve 06gu44bi --yes --reason "checked"
      comity approve 06gu44bi --remember
    """
    records = AdminClient()
    view, request = _find_request(records, id)
    if not request.is_open:
        return _report_too_late(view, request)
    is_asked = sys.stdin.isatty() and sys.stdout.isatty() and not said["yes"]
    if is_asked and not _confirm(view, request, remember=said["remember"]):
        show_output(line_text("Not approved. The request is still open."))
        return FAILED
    more: dict[str, object] = {
        "remember": True if said["remember"] else None,
        "content": content_of(request, said["choose"], said["fill"], said["expires"]),
    }
    answered = records.post(
        "approvals", request.id, "answer", verdict="accept", reason=reason, **more
    )
    return _report_answer(answered)


@click.command("deny", cls=CliCommand)
@click.argument("id")
@reason_option
@store_options
def deny_command(id: str, reason: str | None) -> int:
    """Deny an approval request.

    The call does not run. Exits with 1 if the request is not open any more.

    \b
    Examples:
      comity deny 06gu44bi --reason "wrong folder"
    """
    records = AdminClient()
    view, request = _find_request(records, id)
    if not request.is_open:
        return _report_too_late(view, request)
    return _report_answer(
        records.post("approvals", request.id, "answer", verdict="decline", reason=reason)
    )


approvals_command.add_command(approve_command)
approvals_command.add_command(deny_command)


def _find_request(records: AdminClient, id: str) -> tuple[Answer, ApprovalRequest]:
    """Return a request that the user may answer. Raises Misconfigured."""
    view = records.get("approvals", id)
    if view["refusal_reason"]:
        raise Misconfigured(
            f"you cannot answer this request: {view['refusal_reason']}. "
            f"{start_sentence(view['approvers'])} can",
            NOT_PERMITTED,
        )
    return view, request_of_fields(view)


def _confirm(view: Answer, request: ApprovalRequest, *, remember: bool) -> bool:
    show_output(*in_full(request, view.get("similar") or ""))
    if remember:
        always = (
            f"This also grants {request.server}/{request.tool} to {request.asker}. "
            "Its next calls need no approval."
        )
        show_output(line_text(always, "yellow"))
    return click.confirm("Approve exactly this?", default=False)


def _report_too_late(view: Answer, request: ApprovalRequest) -> int:
    told = line_text(presentation.describe_state(request), "yellow")
    show_document(view, lambda: show_output(told), [request.id])
    return FAILED


def _report_answer(answered: Answer) -> int:
    request = request_of_fields(answered)

    def print_table() -> None:
        style = "green" if request.state is ApprovalState.APPROVED else ""
        about, state = presentation.describe_request(request), presentation.describe_state(request)
        show_output(line_text(f"{about}. {state}", style))
        made = answered.get("remembered")
        if made:
            show_output(line_text(f"Granted {made['target']} to {made['subject']}."))

    show_document(answered, print_table, [request.id])
    return DONE


STATE_NAMES: Final = [str(state) for state in ApprovalState]


@approvals_command.command("list")
@click.option("--all", "of_all", is_flag=True, help="Also requests that have ended.")
@click.option("--state", type=click.Choice(STATE_NAMES), metavar="STATE", help="Only this state.")
@click.option(
    "--watch", "is_watched", is_flag=True, help="Show each change until you press Ctrl-C."
)
@limit_option()
@store_options
def list_approvals(state: str | None, limit: int | None, *, of_all: bool, is_watched: bool) -> None:
    """List open approval requests, the riskiest first.

    With --watch a terminal shows a live table. Without a terminal the command prints a line for
    each change, with -o json a JSON document.

    \b
    Examples:
      comity approvals list
      comity approvals list --all -n 20
      comity approvals list --watch -o json
    """
    if is_watched:
        watch_requests(connect_gateway(), as_json=current_options().is_for_programs)
        return
    chosen = "all" if of_all else state
    found = AdminClient().pages("approvals", limit, **({} if chosen is None else {"state": chosen}))

    def print_table() -> None:
        if found:
            show_output(requests_table(request_of_fields(each) for each in found))
        else:
            show_output(line_text("There are no open requests." if chosen is None else "None."))

    show_document({"approvals": found}, print_table, [each["id"] for each in found])


@approvals_command.command("show")
@click.argument("id")
@store_options
def show_approval(id: str) -> None:
    """Show an approval request in full.

    \b
    Examples:
      comity approvals show 06gu44bi
    """
    found = AdminClient().get("approvals", id)

    def print_table() -> None:
        show_output(*in_full(request_of_fields(found), found.get("similar") or ""))
        if found["refusal_reason"]:
            show_output(line_text(f"You cannot answer it: {found['refusal_reason']}.", "yellow"))
            show_output(line_text(f"{start_sentence(found['approvers'])} can."))

    show_document(found, print_table, [found["id"]])


@approvals_command.command("link")
@click.argument("id")
@click.option("--principal", metavar="ID", help="The person who answers by it. Default: you.")
@store_options
def link(id: str, principal: str | None) -> None:
    """Create a link to answer a request in a browser.

    A person with the link answers as PRINCIPAL. The link is for this request only, and ends with
    it.

    \b
    Examples:
      comity approvals link 06gu44bi
      comity approvals link 06gu44bi --principal person:ana@example.org
    """
    records = AdminClient()
    made = records.post(
        "approvals", records.get("approvals", id)["id"], "link", principal=principal
    )
    # On one line, however long, because it is copied or piped.
    show_document(made, lambda: click.echo(one_line(made["url"])), [made["url"]])


SUGGESTIONS_PATH: Final = "grant-suggestions"
_MAX_ARGUMENT_LETTERS: Final = 80


@click.group("suggestions", cls=DefaultListGroup)
def suggestions_command() -> None:
    """Accept or dismiss suggested grants.

    Comity suggests a conditional grant after several equal approvals. An accepted grant approves
    equal calls. All other calls still need approval.

    \b
    Examples:
      comity grants suggestions
      comity grants suggestions accept 06gu44bi
    """


@suggestions_command.command("list")
@click.option("--replay", is_flag=True, help="Show the effect of each on past calls.")
@gateway_options
def list_suggestions(*, replay: bool) -> None:
    """List suggested grants with their evidence.

    \b
    Examples:
      comity grants suggestions list
      comity grants suggestions list --replay
    """
    found = connect_gateway().get(SUGGESTIONS_PATH)
    names = [each["id"] for each in found["suggestions"]]
    show_document(found, lambda: _print_suggestions(found, replay=replay), names)


def _print_suggestions(found: Answer, *, replay: bool) -> None:
    if not found["suggestions"]:
        show_output(line_text("There are no suggestions: too few equal approvals."))
    for each in found["suggestions"]:
        told = [
            *_describe_suggestion(each),
            *(_describe_dry_run(each["dry_run"]) if replay else ()),
        ]
        show_output(
            line_text(each["id"], "bold"), *(Padding(part, (0, 0, 0, 2)) for part in told), ""
        )
    if found["suggestions"]:
        show_hint("`comity grants suggestions accept ID` grants it, `dismiss ID` does not.")
    if found["withheld"]:
        _print_withheld(found["withheld"])


def _describe_suggestion(each: Answer) -> list[RenderableType]:
    evidence = each["evidence"]
    people = " and ".join(evidence["people"])
    return [
        line_text(each["description"]),
        line_text(f"by {people}, {evidence['first'][:10]} to {evidence['last'][:10]}", "dim"),
    ]


def _describe_dry_run(found: Answer) -> Iterator[RenderableType]:
    more = found["never_asked"] + found["unanswered"] + found["declined"]
    yield line_text(found["sentence"], "yellow" if more else "green")
    if not found["audit_complete"]:
        yield line_text("the search of the audit log took too long: there may be more", "yellow")
    if found["not_covered_calls"]:
        rows = [
            (each["became"], f"{each['times']}", _shorten(each["arguments"]))
            for each in found["not_covered_calls"]
        ]
        yield build_table(("NOT COVERED", "TIMES", "ARGUMENTS"), rows)


def _print_withheld(found: list[Answer]) -> None:
    show_output("", line_text("Often approved, but not suggested:", "bold"))
    rows = [
        (each["name"], each["subject"], f"{each['approved']}", each["reason"]) for each in found
    ]
    show_output(build_table(("TOOL", "PRINCIPAL", "APPROVED", "REASON"), rows))


def _shorten(arguments: object) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) <= _MAX_ARGUMENT_LETTERS else f"{text[:_MAX_ARGUMENT_LETTERS]}…"


@suggestions_command.command("accept")
@click.argument("id")
@reason_option
@gateway_options
def accept(id: str, reason: str | None) -> None:
    """Grant a suggestion in your name.

    The grant takes effect at once, on every node.

    \b
    Examples:
      comity grants suggestions accept 06gu44bi --reason "routine"
    """
    done = _send_decision(id, "accept", reason)
    grant = done["grant"]

    def print_table() -> None:
        told = f"Granted {grant['target']} to {grant['subject']}: {grant['where_text']}."
        show_output(line_text(told, "green"))
        back = f"comity grants delete {grant['subject']} {grant['target']} --conditional"
        show_hint(f"`{back}` deletes it.")

    show_document(done, print_table, [id])


@suggestions_command.command("dismiss")
@click.argument("id")
@reason_option
@gateway_options
def dismiss(id: str, reason: str | None) -> None:
    """Dismiss a suggestion until it has twice the evidence.

    \b
    Examples:
      comity grants suggestions dismiss 06gu44bi
    """
    done = _send_decision(id, "dismiss", reason)
    told = f"Dismissed. It returns after {done['suggested_again_at']} approvals."
    show_document(done, lambda: show_output(line_text(told)), [id])


def _send_decision(id: str, decision: str, reason: str | None) -> Answer:
    if not id.strip():
        raise Misconfigured("name a suggestion by its id; `comity grants suggestions` lists them")
    body = {"id": id, "decision": decision, **({"reason": reason} if reason else {})}
    return connect_gateway().post(SUGGESTIONS_PATH, body=body)
