"""`comity asks`: what waits for somebody's answer, each in full, and links to answer it by."""

import sys
from pathlib import Path
from typing import Final

import click

from comity.cli.administering import Records, config_option
from comity.cli.ask_views import ask_of, in_full, listed
from comity.cli.asking import Gateway
from comity.cli.ends import FINE
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json
from comity.cli.watching import watch
from comity.rules.ask_words import one_line
from comity.rules.phrases import start_sentence
from comity.wire.asks import State

STATES: Final = [str(state) for state in State]


@click.group("asks", cls=Listing)
def command() -> None:
    """Show what waits for somebody's answer.

    `comity approve` and `comity deny` answer it. An ID may be shortened as far as it stays the only
    one. A running gateway is asked, by somebody who was granted ask/answer, or may administer it.
    Without one, asks are read from the store, and answered there with --offline.
    """


@command.command("list")
@click.option("--all", "of_all", is_flag=True, help="Also those that have ended.")
@click.option("--state", type=click.Choice(STATES), help="Only those in this state.")
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
        watch(Gateway(url), as_json=as_json)
        return FINE
    chosen = "all" if of_all else state
    found = Records(url, config).pages("asks", **({} if chosen is None else {"state": chosen}))
    if as_json:
        show_json({"asks": found})
    elif found:
        show(listed(ask_of(each) for each in found))
    else:
        show(plain("Nothing waits for an answer." if chosen is None else "There are none."))
    return FINE


@command.command("show")
@click.argument("id")
@url_option
@config_option
@json_option
def show_ask(id: str, url: str, config: Path | None, *, as_json: bool) -> int:
    """Show the ask ID in full: what would run, by whose wish, and what became of it."""
    found = Records(url, config).get("asks", id)
    if as_json:
        show_json(found)
    else:
        show(*in_full(ask_of(found), found.get("likeness") or ""))
        if found["why_not"]:
            show(plain(f"You cannot answer it: {found['why_not']}.", "yellow"))
            show(plain(f"{start_sentence(found['approvers'])} can."))
    return FINE


@command.command("link")
@click.argument("id")
@click.option("--for", "party", metavar="PARTY", help="Who answers by it; you unless given.")
@url_option
@config_option
@json_option
def link(id: str, party: str | None, url: str, config: Path | None, *, as_json: bool) -> int:
    """Make a link to the ask ID by which PARTY answers it in a browser, and nobody else's ask.

    Whoever opens the link answers as PARTY, so give it to nobody else. It ends with the ask.
    """
    records = Records(url, config)
    made = records.post("asks", records.get("asks", id)["id"], "link", party=party)
    if as_json:
        show_json(made)
    else:
        # On one line, however long: it is copied, or piped to whoever sends it.
        sys.stdout.write(f"{one_line(made['url'])}\n")
    return FINE
