"""`comity keys`, `comity principals` and `comity groups`."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from comity.app.administration import AdminClient
from comity.cli.api_client import Answer
from comity.cli.arguments import parse_expiry
from comity.cli.exit_status import NOT_FOUND
from comity.cli.options import DefaultListGroup, expires_option, limit_option, store_options
from comity.cli.output import (
    build_table,
    describe_age,
    line_text,
    show_document,
    show_hint,
    show_output,
)
from comity.config.document import ConfigValue
from comity.config.secret_files import reserve_secret, write_secret
from comity.errors import Misconfigured

_PER: Final = click.IntRange(1, 10**9)


@click.group("keys", cls=DefaultListGroup)
def keys_command() -> None:
    """Manage API keys.

    You need admin access to the gateway. With --offline the command works on the database.

    \b
    Examples:
      comity keys
      comity keys create agent:ci --expires 90d --out ci.key
      comity keys revoke 06gu44bi
    """


@keys_command.command("list")
@click.option("--principal", metavar="ID", help="Only the keys of this principal.")
@limit_option()
@store_options
def list_keys(principal: str | None, limit: int | None) -> None:
    """List API keys with their owner and status.

    \b
    Examples:
      comity keys list
      comity keys list --principal agent:ci -o json
    """
    query = {"principal": principal} if principal else {}
    found = AdminClient().pages("keys", limit, **query)

    def print_table() -> None:
        if found:
            _print_keys(found)
        else:
            show_output(line_text("There are no keys."))
            show_hint("`comity keys create PRINCIPAL` creates one.")

    show_document({"keys": found}, print_table, [key["id"] for key in found])


def _print_keys(found: list[Answer]) -> None:
    rows = [
        (
            key["id"],
            key["principal"],
            _key_status(key),
            describe_age(key["created_at"]),
            describe_age(key["last_used"]) or "never",
            ", ".join(key["permissions"]) or "all",
            key["label"],
        )
        for key in found
    ]
    columns = ("KEY", "PRINCIPAL", "STATUS", "AGE", "LAST USED", "PERMISSIONS", "LABEL")
    show_output(build_table(columns, rows, extra=("AGE", "LABEL", "PERMISSIONS")))


def _key_status(key: Answer) -> Text:
    now = datetime.now(UTC)
    if key["revoked_at"]:
        return line_text("revoked", "red")
    if key["expires_at"] and datetime.fromisoformat(key["expires_at"]) <= now:
        return line_text("expired", "red")
    if key["not_before"] and datetime.fromisoformat(key["not_before"]) > now:
        return line_text("not yet valid", "yellow")
    if key["expires_at"]:
        return line_text(f"until {key['expires_at'][:16].replace('T', ' ')}", "green")
    return line_text("active", "green")


@keys_command.command("create")
@click.argument("principal")
@click.option("--label", metavar="TEXT", help="Purpose of the key.")
@expires_option
@click.option(
    "--permission",
    "permissions",
    metavar="PERMISSION",
    multiple=True,
    help="Restrict the key, such as 'ToolInvoke(files/read)', AdminRead or 'tools/call files/*'. "
    "Repeatable. Default: all that the principal may do.",
)
@click.option("--per-minute", metavar="N", type=_PER, help="Maximum requests per minute.")
@click.option("--per-hour", metavar="N", type=_PER, help="Maximum requests per hour.")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the key to a new file that only you can read.",
)
@store_options
def create_key_command(principal: str, **said: Any) -> None:
    """Create an API key and print it once.

    PRINCIPAL is an id such as agent:ci or person:ana@example.org. The command creates the principal
    if it does not exist. Grants decide what it may do.

    \b
    Examples:
      comity keys create agent:ci
      comity keys create person:ana@example.org --out ana.key
      comity keys create agent:ci --expires 90d --permission AdminRead
    """
    with _new_file(said["out"]):
        made = _create(AdminClient(), principal, said)
        if said["out"] is not None:
            write_secret(said["out"], f"{made.pop('key')}\n".encode("ascii"))
    _show_new(made, said["out"])


def _create(records: AdminClient, principal: str, fields: Mapping[str, Any]) -> Answer:
    return records.post(
        "keys",
        principal=principal,
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
        raise Misconfigured(f"{path} exists; name a new file with --out") from None
    except OSError as problem:
        raise Misconfigured(f"{path} cannot be written: {problem.strerror}") from None


@keys_command.command("rotate")
@click.argument("key")
@click.option(
    "--grace",
    metavar="TIME",
    default="1d",
    show_default=True,
    help="How long the old key remains valid. 0 ends it at once.",
)
@store_options
def rotate_key_command(key: str, grace: str) -> None:
    """Replace an API key by a new one.

    KEY is an id of `comity keys list`. The new key has the same owner and restrictions.

    \b
    Examples:
      comity keys rotate 06gu44bi
      comity keys rotate 06gu44bi --grace 0
    """
    is_never = grace in ("0", "0s")
    length = 0.0 if is_never else ConfigValue(grace, "--grace").duration().total_seconds()
    _show_new(AdminClient().post("keys", key, "rotate", grace_seconds=int(length)))


def _show_new(made: Answer, file: Path | None = None) -> None:
    def print_table() -> None:
        if file is not None:
            show_output(
                line_text(f"Wrote key {made['id']} of {made['principal']} to {file}.", "green")
            )
            return
        show_output(line_text(made["key"], "bold"))
        show_output(line_text(f"This is key {made['id']} of {made['principal']}. Store it now."))
        show_hint("Comity shows it only once. Clients send `Authorization: Bearer KEY`.")

    show_document(made, print_table, [made["id"]])


@keys_command.command("revoke")
@click.argument("key")
@store_options
def revoke_key_command(key: str) -> None:
    """Revoke an API key.

    KEY is an id of `comity keys list`.

    \b
    Examples:
      comity keys revoke 06gu44bi
    """
    found = AdminClient().post("keys", key, "revoke")
    done = line_text(f"Revoked key {found['id']} of {found['principal']}.", "green")
    show_document(found, lambda: show_output(done), [found["id"]])


@click.group("principals", cls=DefaultListGroup)
def principals_command() -> None:
    """Manage agents, people and servers.

    A grant names a principal. Principals with an access token of an issuer need no entry here.

    \b
    Examples:
      comity principals
      comity principals create agent:ci --label "build server"
      comity principals groups person:ana@example.org --add sre
      comity principals disable agent:ci
    """


@principals_command.command("list")
@limit_option()
@store_options
def list_principals(limit: int | None) -> None:
    """List principals with their status.

    \b
    Examples:
      comity principals list
      comity principals list -o name
    """
    found = AdminClient().pages("principals", limit)

    def print_table() -> None:
        if found:
            _print_principals(found)
        else:
            show_output(line_text("There are no principals."))
            show_hint("`comity keys create PRINCIPAL` creates one with a key.")

    show_document({"principals": found}, print_table, [each["id"] for each in found])


def _print_principals(found: list[Answer]) -> None:
    rows = [
        (
            each["id"],
            each["kind"],
            _principal_status(each),
            ", ".join(each["groups"]),
            describe_age(each["created_at"]),
            each["created_by"],
            each["label"],
        )
        for each in found
    ]
    columns = ("PRINCIPAL", "KIND", "STATUS", "GROUPS", "AGE", "CREATED BY", "LABEL")
    show_output(build_table(columns, rows, extra=("CREATED BY", "AGE", "LABEL", "GROUPS")))


def _principal_status(principal: Answer) -> Text:
    if principal["disabled"]:
        return line_text("disabled", "red")
    return line_text("enabled", "green")


@principals_command.command("show")
@click.argument("principal")
@store_options
def show_principal(principal: str) -> None:
    """Show a principal with its keys and grants.

    \b
    Examples:
      comity principals show agent:ci
    """
    records = AdminClient()
    found = next((each for each in records.pages("principals") if each["id"] == principal), None)
    if found is None:
        raise Misconfigured(f"there is no principal {principal!r:.80}", NOT_FOUND)
    keys = records.pages("keys", principal=principal)
    grants = records.pages("grants", subject=principal)

    def print_table() -> None:
        _print_principals([found])
        if keys:
            show_output("")
            _print_keys(keys)
        if grants:
            names = ("effect", "verb", "target", "justification")
            rows = [[str(grant[name]) for name in names] for grant in grants]
            columns = ("EFFECT", "VERB", "TARGET", "REASON")
            show_output("", build_table(columns, rows, extra=("REASON",)))

    show_document({**found, "keys": keys, "grants": grants}, print_table, [principal])


@principals_command.command("create")
@click.argument("principal")
@click.option(
    "--kind",
    type=click.Choice(["agent", "person", "server"]),
    help="Kind. Default: the beginning of the id.",
)
@click.option("--label", metavar="TEXT", help="Name for people.")
@store_options
def create_principal(principal: str, kind: str | None, label: str | None) -> None:
    """Create a principal such as agent:ci.

    \b
    Examples:
      comity principals create agent:ci
      comity principals create person:ana@example.org --label Ana
    """
    kinds = (each for each in ("person", "server") if principal.startswith(f"{each}:"))
    wanted = kind or next(kinds, "agent")
    added = AdminClient().post("principals", id=principal, kind=wanted, label=label)
    _show_done(added, "Created")


@principals_command.command("groups")
@click.argument("principal")
@click.option("--add", metavar="GROUP", multiple=True, help="Add to this group. Repeatable.")
@click.option("--remove", metavar="GROUP", multiple=True, help="Remove from it. Repeatable.")
@store_options
def change_groups(principal: str, add: tuple[str, ...], remove: tuple[str, ...]) -> None:
    """Show or change the groups of a principal.

    A grant names a group as group:NAME. Provisioning by SCIM and sign-in by an issuer with
    `groups_claim` change these groups too.

    \b
    Examples:
      comity principals groups person:ana@example.org
      comity principals groups person:ana@example.org --add sre --remove interns
    """
    changed = AdminClient().post("principals", principal, "groups", add=add, remove=remove)
    names = ", ".join(changed["groups"])
    said = f"Groups of {principal}: {names}" if names else f"{principal} is in no group."
    show_document(changed, lambda: show_output(line_text(said)), changed["groups"])


@principals_command.command("delete")
@click.argument("principal")
@store_options
def delete_principal(principal: str) -> None:
    """Delete a principal and its keys.

    Its grants remain stored without effect. An access token of an issuer needs no principal here:
    disable the principal to refuse its tokens too.

    \b
    Examples:
      comity principals delete agent:ci
    """
    _show_done(AdminClient().post("principals", principal, "delete"), "Deleted")


def _make_switch(action: str, done: str, help_text: str) -> None:
    """Make the command that enables or disables a principal."""

    @principals_command.command(
        action, help=f"{help_text}\n\n\b\nExamples:\n  comity principals {action} agent:ci"
    )
    @click.argument("principal")
    @store_options
    def order(principal: str) -> None:
        _show_done(AdminClient().post("principals", principal, action), done)


def _show_done(principal: Answer, done: str) -> None:
    text = line_text(f"{done} {principal['id']}.", "green")
    show_document(principal, lambda: show_output(text), [principal["id"]])


_make_switch(
    "disable", "Disabled", "Refuse all requests of a principal. Its grants and keys remain stored."
)
_make_switch("enable", "Enabled", "Accept requests of a principal again.")


@click.group("groups", cls=DefaultListGroup)
def groups_command() -> None:
    """List groups of principals.

    A grant can name a group, such as group:sre. A group exists as long as a principal is in it.

    \b
    Examples:
      comity groups
      comity grants create group:sre files/read
    """


@groups_command.command("list")
@store_options
def list_groups() -> None:
    """List groups and their members.

    \b
    Examples:
      comity groups list
      comity groups list -o json
    """
    found = AdminClient().get("groups")["groups"]

    def print_table() -> None:
        if not found:
            show_output(line_text("There are no groups."))
            show_hint("`comity principals groups PRINCIPAL --add GROUP` makes one.")
            return
        rows = [(each["name"], str(each["member_count"]), _members_text(each)) for each in found]
        show_output(build_table(("GROUP", "COUNT", "MEMBERS"), rows))

    show_document({"groups": found}, print_table, [each["name"] for each in found])


def _members_text(group: Answer) -> str:
    shown: list[str] = group["members"][:10]
    more = group["member_count"] - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
