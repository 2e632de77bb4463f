"""`comity parties`: who takes part, and who is kept out."""

from pathlib import Path

import click

from comity.cli.administering import Records, config_option
from comity.cli.asking import Answer
from comity.cli.ends import FINE
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, since, table


@click.group("parties", cls=Listing)
def command() -> None:
    """Show who takes part; add parties, and keep them out.

    A party is whoever a grant can name: an agent, a person, a tool server. Who comes with an access
    token need not stand here.
    """


@command.command("list")
@url_option
@config_option
@json_option
def list_parties(url: str, config: Path | None, as_json: bool) -> int:
    """List every party; the same as `comity parties`."""
    found = Records(url, config).pages("parties")
    if as_json:
        show_json({"parties": found})
    elif not found:
        show(plain("No party is known yet; `comity keys create PARTY` makes one known."))
    else:
        rows = [
            (
                party["id"],
                party["kind"],
                plain("kept out", "red") if party["disabled"] else plain("let in", "green"),
                since(party["created_at"]),
                party["created_by"],
                party["label"],
            )
            for party in found
        ]
        show(table(("PARTY", "KIND", "STANDING", "AGE", "ADDED BY", "LABEL"), rows))
    return FINE


@command.command("add")
@click.argument("party")
@click.option(
    "--kind",
    type=click.Choice(["agent", "person", "server"]),
    help="What it is; by the beginning of its id unless given.",
)
@click.option("--label", metavar="TEXT", help="Who it is, for people.")
@url_option
@config_option
@json_option
def add(
    party: str, kind: str | None, label: str | None, url: str, *, config: Path | None, as_json: bool
) -> int:
    """Make PARTY known, as agent:ci or person:ana@example.org."""
    known = next((each for each in ("person", "server") if party.startswith(f"{each}:")), "agent")
    added = Records(url, config).post("parties", id=party, kind=kind or known, label=label)
    return _show(added, as_json, "is known now")


def _order(deed: str, told: str, done: str) -> None:
    @command.command(deed, help=told)
    @click.argument("party")
    @url_option
    @config_option
    @json_option
    def order(party: str, url: str, config: Path | None, as_json: bool) -> int:
        return _show(Records(url, config).post("parties", party, deed), as_json, done)


def _show(party: Answer, as_json: bool, done: str) -> int:
    if as_json:
        show_json(party)
    else:
        show(plain(f"{party['id']} {done}.", "green"))
    return FINE


_order(
    "disable",
    "Keep PARTY out, whatever it shows, until it is enabled again; its grants and keys stay.",
    "does not come in any more",
)
_order("enable", "Let PARTY in again.", "may come in again")
