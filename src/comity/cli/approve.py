"""`comity approve` and `comity deny`: one word of an authority, once it saw what would run."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from comity.cli.administering import Records, config_option
from comity.cli.ask_views import ask_of, in_full
from comity.cli.asking import Answer
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.filling import content_of, filling
from comity.cli.options import json_option, url_option
from comity.cli.show import plain, show, show_json
from comity.rules import ask_words
from comity.rules.phrases import start_sentence
from comity.wire.asks import Ask, State
from comity.wire.errors import Misconfigured

reason_option: Final[Callable[..., Any]] = click.option(
    "--reason", metavar="TEXT", help="Why; whoever asked is told, and it is kept."
)


@click.command("approve")
@click.argument("id")
@reason_option
@click.option("--remember", is_flag=True, help="Grant it for good: this tool, to this party.")
@click.option("--yes", is_flag=True, help="Do not ask again at the terminal.")
@filling
@url_option
@config_option
@json_option
def command(id: str, reason: str | None, url: str, config: Path | None, **said: Any) -> int:
    """Approve the ask ID: exactly what it shows may run, once.

    At a terminal it is shown first what would run. The exit status is 1 if you then say no, or if
    it does not wait for an answer any more.
    """
    records = Records(url, config)
    view, ask = _found(records, id)
    if not ask.is_open:
        return _too_late(view, ask, as_json=said["as_json"])
    is_asked = sys.stdin.isatty() and sys.stdout.isatty() and not said["yes"]
    if is_asked and not _confirmed(view, ask, remember=said["remember"]):
        show(plain("Nothing was said to it."))
        return SOMETHING_WRONG
    more: dict[str, object] = {
        "remember": True if said["remember"] else None,
        "content": content_of(ask, said["choose"], said["fill"], said["expires"]),
    }
    answered = records.post("asks", ask.id, "answer", verdict="accept", reason=reason, **more)
    return _told(answered, as_json=said["as_json"])


@click.command("deny")
@click.argument("id")
@reason_option
@url_option
@config_option
@json_option
def deny(id: str, reason: str | None, url: str, config: Path | None, *, as_json: bool) -> int:
    """Deny the ask ID: it does not run. The exit status is 1 if it does not wait any more."""
    records = Records(url, config)
    view, ask = _found(records, id)
    if not ask.is_open:
        return _too_late(view, ask, as_json=as_json)
    answered = records.post("asks", ask.id, "answer", verdict="decline", reason=reason)
    return _told(answered, as_json=as_json)


def _found(records: Records, id: str) -> tuple[Answer, Ask]:
    """The ask, for somebody who may answer it. Raises Misconfigured."""
    view = records.get("asks", id)
    if view["why_not"]:
        raise Misconfigured(
            f"you cannot answer it: {view['why_not']}. {start_sentence(view['approvers'])} can"
        )
    return view, ask_of(view)


def _confirmed(view: Answer, ask: Ask, *, remember: bool) -> bool:
    show(*in_full(ask, view.get("likeness") or ""))
    if remember:
        always = f"Always: {ask.asker} is granted {ask.server}/{ask.tool}, and is not asked again."
        show(plain(always, "yellow"))
    return click.confirm("Approve exactly this?", default=False)


def _too_late(view: Answer, ask: Ask, *, as_json: bool) -> int:
    if as_json:
        show_json(view)
    else:
        show(plain(ask_words.state_of(ask), "yellow"))
    return SOMETHING_WRONG


def _told(answered: Answer, *, as_json: bool) -> int:
    if as_json:
        show_json(answered)
        return FINE
    ask = ask_of(answered)
    style = "green" if ask.state is State.ACCEPTED else ""
    show(plain(f"{ask_words.what(ask)}. {ask_words.state_of(ask)}", style))
    made = answered.get("remembered")
    if made:
        show(plain(f"Granted for good: {made['subject']} may call {made['target']}."))
    return FINE
