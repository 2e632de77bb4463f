"""`comity keys` and `comity parties`."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from comity.app.administration import AdminClient, config_option, parse_expiry
from comity.cli.api_client import Answer
from comity.cli.exit_status import FINE
from comity.cli.options import Decorator, DefaultListGroup, json_option, url_option
from comity.cli.output import build_table, describe_age, line_text, show_json, show_output
from comity.config.document import ConfigValue
from comity.config.secret_files import reserve_secret, write_secret
from comity.errors import Misconfigured

_PER: Final = click.IntRange(1, 10**9)

expires_option: Final[Decorator] = click.option(
    "--expires",
    metavar="WHEN",
    help="When it ends: after a while, as 90d, or at a time, as 2027-01-31T18:00:00+01:00.",
)


@click.group("keys", cls=DefaultListGroup)
def keys_command() -> None:
    """Give out API keys, replace them and take them back.

    A running gateway is asked for it, by somebody who may administer it. Without one, --offline
    works on the store that the configuration names.
    """


@keys_command.command("list")
@click.option("--party", metavar="PARTY", help="Only the keys of this party.")
@url_option
@config_option
@json_option
def list_keys(party: str | None, url: str, config: Path | None, as_json: bool) -> int:
    """List every key, with whose it is and how it stands; the same as `comity keys`."""
    found = AdminClient(url, config).pages("keys", **({"party": party} if party else {}))
    if as_json:
        show_json({"keys": found})
    elif not found:
        show_output(line_text("No key was given out yet; `comity keys create PARTY` makes one."))
    else:
        rows = [
            (
                key["id"],
                key["party"],
                _key_status(key),
                describe_age(key["created_at"]),
                describe_age(key["last_used"]) or "never",
                ", ".join(key["permissions"]) or "all that its party may",
                key["label"],
            )
            for key in found
        ]
        columns = ("KEY", "PARTY", "STANDING", "AGE", "LAST USED", "PERMISSIONS", "LABEL")
        show_output(build_table(columns, rows))
    return FINE


def _key_status(key: Answer) -> Text:
    now = datetime.now(UTC)
    if key["revoked_at"]:
        return line_text("revoked", "red")
    if key["expires_at"] and datetime.fromisoformat(key["expires_at"]) <= now:
        return line_text("expired", "red")
    if key["not_before"] and datetime.fromisoformat(key["not_before"]) > now:
        return line_text("not yet", "yellow")
    if key["expires_at"]:
        return line_text(f"until {key['expires_at'][:16].replace('T', ' ')}", "green")
    return line_text("in use", "green")


@keys_command.command("create")
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
def create_key_command(
    party: str, url: str, config: Path | None, as_json: bool, **said: Any
) -> int:
    """Make a key for PARTY, as agent:ci or person:ana@example.org, and show it once.

    With --out the key goes into a file instead, which `--key-file` reads.

    A party that is not known yet comes to be known by it. What it may do is for grants to say.
    """
    with _new_file(said["out"]):
        made = _create(AdminClient(url, config), party, said)
        if said["out"] is not None:
            write_secret(said["out"], f"{made.pop('key')}\n".encode("ascii"))
    return _show_new(made, as_json, said["out"])


def _create(records: AdminClient, party: str, fields: Mapping[str, Any]) -> Answer:
    return records.post(
        "keys",
        party=party,
        label=fields["label"],
        permissions=fields["permissions"],
        requests_per_minute=fields["per_minute"],
        requests_per_hour=fields["per_hour"],
        expires_at=parse_expiry(fields["expires"]),
    )


@contextmanager
def _new_file(path: Path | None) -> Generator[None]:
    """Reserve the file for a key, if one is wanted. Raises Misconfigured."""
    if path is None:
        yield
        return
    try:
        with reserve_secret(path):
            yield
    except FileExistsError:
        raise Misconfigured(f"{path} exists already; name a new file with --out") from None
    except OSError as problem:
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None


@keys_command.command("rotate")
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
def rotate_key_command(key: str, grace: str, url: str, config: Path | None, as_json: bool) -> int:
    """Make another key like KEY, which is an id of `comity keys`, and let the old one end."""
    is_never = grace in ("0", "0s")
    length = 0.0 if is_never else ConfigValue(grace, "--grace").duration().total_seconds()
    made = AdminClient(url, config).post("keys", key, "rotate", grace_seconds=int(length))
    return _show_new(made, as_json)


def _show_new(made: Answer, as_json: bool, file: Path | None = None) -> int:
    if as_json:
        show_json(made)
        return FINE
    if file is not None:
        show_output(line_text(f"Wrote key {made['id']} of {made['party']} to {file}.", "green"))
        return FINE
    show_output(line_text(made["key"], "bold"))
    show_output(
        line_text(
            f"This is key {made['id']} of {made['party']}. It is shown only now: keep it well."
        )
    )
    show_output(
        line_text(
            "Clients send it as `Authorization: Bearer KEY`; commands read COMITY_KEY.", "dim"
        )
    )
    return FINE


@keys_command.command("revoke")
@click.argument("key")
@url_option
@config_option
@json_option
def revoke_key_command(key: str, url: str, config: Path | None, as_json: bool) -> int:
    """Take back KEY, which is an id of `comity keys`: nobody comes in with it any more."""
    found = AdminClient(url, config).post("keys", key, "revoke")
    if as_json:
        show_json(found)
    else:
        show_output(line_text(f"Key {found['id']} of {found['party']} counts no more.", "green"))
    return FINE


@click.group("parties", cls=DefaultListGroup)
def parties_command() -> None:
    """Show who takes part; add parties, and keep them out.

    A party is whoever a grant can name: an agent, a person, a tool server. Who comes with an access
    token need not stand here.
    """


@parties_command.command("list")
@url_option
@config_option
@json_option
def list_parties(url: str, config: Path | None, as_json: bool) -> int:
    """List every party; the same as `comity parties`."""
    found = AdminClient(url, config).pages("parties")
    if as_json:
        show_json({"parties": found})
    elif not found:
        show_output(line_text("No party is known yet; `comity keys create PARTY` makes one known."))
    else:
        rows = [
            (
                party["id"],
                party["kind"],
                line_text("kept out", "red") if party["disabled"] else line_text("let in", "green"),
                describe_age(party["created_at"]),
                party["created_by"],
                party["label"],
            )
            for party in found
        ]
        show_output(build_table(("PARTY", "KIND", "STANDING", "AGE", "ADDED BY", "LABEL"), rows))
    return FINE


@parties_command.command("add")
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
def add_principal_command(
    party: str, kind: str | None, label: str | None, url: str, *, config: Path | None, as_json: bool
) -> int:
    """Make PARTY known, as agent:ci or person:ana@example.org."""
    known = next((each for each in ("person", "server") if party.startswith(f"{each}:")), "agent")
    added = AdminClient(url, config).post("parties", id=party, kind=kind or known, label=label)
    return _show(added, as_json, "is known now")


def _order(deed: str, told: str, done: str) -> None:
    @parties_command.command(deed, help=told)
    @click.argument("party")
    @url_option
    @config_option
    @json_option
    def order(party: str, url: str, config: Path | None, as_json: bool) -> int:
        return _show(AdminClient(url, config).post("parties", party, deed), as_json, done)


def _show(party: Answer, as_json: bool, done: str) -> int:
    if as_json:
        show_json(party)
    else:
        show_output(line_text(f"{party['id']} {done}.", "green"))
    return FINE


_order(
    "disable",
    "Keep PARTY out, whatever it shows, until it is enabled again; its grants and keys stay.",
    "does not come in any more",
)
_order("enable", "Let PARTY in again.", "may come in again")
