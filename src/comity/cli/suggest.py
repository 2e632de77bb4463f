"""`comity grants suggest`: grants that people's decisions speak for; accepted, or dismissed."""

import json
from collections.abc import Iterator
from typing import Final

import click
from rich.console import RenderableType
from rich.padding import Padding

from comity.cli.asking import Answer, Gateway
from comity.cli.ends import FINE
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, table
from comity.wire.errors import Misconfigured

ROOM: Final = "suggestions"
_SHORT: Final = 80


@click.group("suggest", cls=Listing)
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
    found = Gateway(url).get(ROOM)
    if as_json:
        show_json(found)
        return FINE
    if not found[ROOM]:
        show(plain("Nothing is suggested: too little was decided alike, or it is granted already."))
    for each in found[ROOM]:
        told = [*_told(each), *(_dry_run(each["dry_run"]) if dry_run else ())]
        show(plain(each["id"], "bold"), *(Padding(part, (0, 0, 0, 2)) for part in told), "")
    if found[ROOM]:
        show(
            plain("`comity grants suggest accept ID` grants it, and `dismiss ID` does not.", "dim")
        )
    if found["held_back"]:
        _show_held_back(found["held_back"])
    return FINE


def _told(each: Answer) -> list[RenderableType]:
    evidence = each["evidence"]
    people = " and ".join(evidence["people"])
    return [
        plain(each["words"]),
        plain(f"by {people}, {evidence['first'][:10]} to {evidence['last'][:10]}", "dim"),
    ]


def _dry_run(found: Answer) -> Iterator[RenderableType]:
    more = found["never_asked"] + found["unanswered"] + found["declined"]
    yield plain(found["sentence"], "yellow" if more else "green")
    if not found["journal_answered"]:
        yield plain("the journal could not be searched in time: there may be more", "yellow")
    if found["not_covered_calls"]:
        rows = [
            (each["became"], f"{each['times']}", _short(each["arguments"]))
            for each in found["not_covered_calls"]
        ]
        yield table(("NOT COVERED", "TIMES", "ARGUMENTS"), rows)


def _show_held_back(found: list[Answer]) -> None:
    show("", plain("Approved as often, and not suggested:", "bold"))
    rows = [(each["name"], each["subject"], f"{each['approved']}", each["why"]) for each in found]
    show(table(("TOOL", "WHO", "APPROVED", "WHY NOT"), rows))


def _short(arguments: object) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


@suggest.command("accept")
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="For people who read it later.")
@url_option
@json_option
def accept(id: str, reason: str | None, url: str, *, as_json: bool) -> int:
    """Grant what is suggested under this ID, in your own name; at once, on every node."""
    done = _decide(url, id, "accept", reason)
    if as_json:
        show_json(done)
        return FINE
    grant = done["grant"]
    show(
        plain(f"Granted to {grant['subject']}: {grant['target']} {grant['where_words']}.", "green")
    )
    back = f"comity grants remove {grant['subject']} {grant['target']} --standing"
    show(plain(f"`{back}` takes it back.", "dim"))
    return FINE


@suggest.command("dismiss")
@click.argument("id")
@click.option("--reason", metavar="TEXT", help="For people who read it later.")
@url_option
@json_option
def dismiss(id: str, reason: str | None, url: str, *, as_json: bool) -> int:
    """Have it not suggested again before there is twice the evidence."""
    done = _decide(url, id, "dismiss", reason)
    if as_json:
        show_json(done)
    else:
        again = done["suggested_again_at"]
        show(plain(f"Dismissed; it comes back with {again} approvals, if ever."))
    return FINE


def _decide(url: str, id: str, decision: str, reason: str | None) -> Answer:
    if not id.strip():
        raise Misconfigured("say which suggestion, by its id; `comity grants suggest` lists them")
    body = {"id": id, "decision": decision, **({"reason": reason} if reason else {})}
    return Gateway(url).post(ROOM, body=body)
