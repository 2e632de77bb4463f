"""`comity keys`: API keys given out, replaced and taken back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from comity.cli.administering import Records, config_option, moment
from comity.cli.asking import Answer
from comity.cli.ends import FINE
from comity.cli.options import Decorator, Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, since, table
from comity.rules.documents import Written

_PER: Final = click.IntRange(1, 10**9)

expires_option: Final[Decorator] = click.option(
    "--expires",
    metavar="WHEN",
    help="When it ends: after a while, as 90d, or at a time, as 2027-01-31T18:00:00+01:00.",
)


@click.group("keys", cls=Listing)
def command() -> None:
    """Give out API keys, replace them and take them back.

    A running gateway is asked for it, by somebody who may administer it; where none runs, it is
    done in the store that the configuration names.
    """


@command.command("list")
@click.option("--party", metavar="PARTY", help="Only the keys of this party.")
@url_option
@config_option
@json_option
def list_keys(party: str | None, url: str, config: Path | None, as_json: bool) -> int:
    """List every key, with whose it is and how it stands; the same as `comity keys`."""
    found = Records(url, config).pages("keys", **({"party": party} if party else {}))
    if as_json:
        show_json({"keys": found})
    elif not found:
        show(plain("No key was given out yet; `comity keys create PARTY` makes one."))
    else:
        rows = [
            (
                key["id"],
                key["party"],
                _standing(key),
                since(key["created_at"]),
                since(key["last_used"]) or "never",
                ", ".join(key["permissions"]) or "all that its party may",
                key["label"],
            )
            for key in found
        ]
        columns = ("KEY", "PARTY", "STANDING", "AGE", "LAST USED", "PERMISSIONS", "LABEL")
        show(table(columns, rows))
    return FINE


def _standing(key: Answer) -> Text:
    now = datetime.now(UTC)
    if key["revoked_at"]:
        return plain("revoked", "red")
    if key["expires_at"] and datetime.fromisoformat(key["expires_at"]) <= now:
        return plain("expired", "red")
    if key["not_before"] and datetime.fromisoformat(key["not_before"]) > now:
        return plain("not yet", "yellow")
    if key["expires_at"]:
        return plain(f"until {key['expires_at'][:16].replace('T', ' ')}", "green")
    return plain("in use", "green")


@command.command("create")
@click.argument("party")
@click.option("--label", metavar="TEXT", help="What it is for, for people.")
@expires_option
@click.option(
    "--permission",
    "permissions",
    metavar="PERMISSION",
    multiple=True,
    help="Bind it to this, as 'ToolInvoke(files/read)', AdminRead, or 'tools/call files/*'; may be "
    "given several times. Without any it may do all that its party may.",
)
@click.option("--per-minute", metavar="N", type=_PER, help="Requests it may make in a minute.")
@click.option("--per-hour", metavar="N", type=_PER, help="Requests it may make in an hour.")
@url_option
@config_option
@json_option
def create(party: str, url: str, config: Path | None, as_json: bool, **said: Any) -> int:
    """Make a key for PARTY, as agent:ci or person:ana@example.org, and show it once.

    A party that is not known yet comes to be known by it. What it may do is for grants to say.
    """
    made = Records(url, config).post(
        "keys",
        party=party,
        label=said["label"],
        permissions=said["permissions"],
        requests_per_minute=said["per_minute"],
        requests_per_hour=said["per_hour"],
        expires_at=moment(said["expires"]),
    )
    return _show_new(made, as_json)


@command.command("rotate")
@click.argument("key")
@click.option(
    "--grace",
    metavar="TIME",
    default="1d",
    show_default=True,
    help="How long the old key counts beside the new one; 0 ends it at once.",
)
@url_option
@config_option
@json_option
def rotate(key: str, grace: str, url: str, config: Path | None, as_json: bool) -> int:
    """Make another key like KEY, which is an id of `comity keys`, and let the old one end."""
    is_never = grace in ("0", "0s")
    length = 0.0 if is_never else Written(grace, "--grace").duration().total_seconds()
    made = Records(url, config).post("keys", key, "rotate", grace_seconds=int(length))
    return _show_new(made, as_json)


def _show_new(made: Answer, as_json: bool) -> int:
    if as_json:
        show_json(made)
        return FINE
    show(plain(made["key"], "bold"))
    show(plain(f"This is key {made['id']} of {made['party']}. It is shown only now: keep it well."))
    show(plain("Clients send it as `Authorization: Bearer KEY`; commands read COMITY_KEY.", "dim"))
    return FINE


@command.command("revoke")
@click.argument("key")
@url_option
@config_option
@json_option
def revoke(key: str, url: str, config: Path | None, as_json: bool) -> int:
    """Take back KEY, which is an id of `comity keys`: nobody comes in with it any more."""
    found = Records(url, config).post("keys", key, "revoke")
    if as_json:
        show_json(found)
    else:
        show(plain(f"Key {found['id']} of {found['party']} counts no more.", "green"))
    return FINE
