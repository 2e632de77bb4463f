"""`comity keys`: API keys given out, replaced and taken back."""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

import click
from rich.text import Text

from comity.cli.administering import Records, config_option, moment
from comity.cli.asking import Answer
from comity.cli.ends import FINE
from comity.cli.options import Decorator, Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, since, table
from comity.rules.documents import Written
from comity.wire.errors import Misconfigured

_PER: Final = click.IntRange(1, 10**9)

expires_option: Final[Decorator] = click.option(
    "--expires",
    metavar="WHEN",
    help="When it ends: after a while, as 90d, or at a time, as 2027-01-31T18:00:00+01:00.",
)


@click.group("keys", cls=Listing)
def command() -> None:
    """Give out API keys, replace them and take them back.

    A running gateway is asked for it, by somebody who may administer it. Without one, --offline
    works on the store that the configuration names.
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
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the key to this new file, which only you can read, and do not print it.",
)
@url_option
@config_option
@json_option
def create(party: str, url: str, config: Path | None, as_json: bool, **said: Any) -> int:
    """Make a key for PARTY, as agent:ci or person:ana@example.org, and show it once.

    With --out the key goes into a file instead, which `--key-file` reads.

    A party that is not known yet comes to be known by it. What it may do is for grants to say.
    """
    with _new_file(said["out"]) as file:
        made = _create(Records(url, config), party, said)
        if file is not None:
            file.write(f"{made.pop('key')}\n")
    return _show_new(made, as_json, said["out"])


def _create(records: Records, party: str, said: Mapping[str, Any]) -> Answer:
    return records.post(
        "keys",
        party=party,
        label=said["label"],
        permissions=said["permissions"],
        requests_per_minute=said["per_minute"],
        requests_per_hour=said["per_hour"],
        expires_at=moment(said["expires"]),
    )


@contextmanager
def _new_file(path: Path | None) -> Generator[TextIO | None]:
    """A file that only its owner can read, removed if no key was made. Raises Misconfigured."""
    if path is None:
        yield None
        return
    try:
        # Made first: a key that nobody can keep would be lost.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Misconfigured(f"{path} exists already; name a new file with --out") from None
    except OSError as problem:
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


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


def _show_new(made: Answer, as_json: bool, file: Path | None = None) -> int:
    if as_json:
        show_json(made)
        return FINE
    if file is not None:
        show(plain(f"Wrote key {made['id']} of {made['party']} to {file}.", "green"))
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
