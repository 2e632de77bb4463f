"""`comity grants` and `comity servers permissions`."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any, Final

import click
from rich.text import Text

from comity.app.administration import AdminClient
from comity.cli.api_client import Answer
from comity.cli.arguments import parse_expiry
from comity.cli.completion import complete_servers
from comity.cli.exit_status import DONE, FAILED, NOT_FOUND
from comity.cli.options import (
    Decorator,
    DefaultListGroup,
    check_option,
    confirm,
    dry_run_option,
    exit_code_option,
    expires_option,
    gateway_options,
    limit_option,
    reason_option,
    store_options,
    yes_option,
)
from comity.cli.output import build_table, line_text, show_document, show_hint, show_output
from comity.cli.target import connect_gateway
from comity.config.toml_writer import toml_value
from comity.errors import Misconfigured
from comity.policy import grant_files
from comity.policy.grant_files import GrantChanges, GrantEntry
from comity.toolkit.text import count_noun

STYLE_BY_EFFECT: Final = {"allow": "green", "ask": "yellow", "deny": "red"}
FILE_SOURCE: Final = "file"
CONDITION_EXAMPLE: Final = '{"paths": {"/path": {"under": "/project"}}, "only": ["path"]}'

verb_option: Final[Decorator] = click.option(
    "--verb",
    metavar="VERB",
    default="tools/call",
    show_default=True,
    help="Method, family such as 'tools/*', or '*'.",
)


@click.group(
    "grants",
    cls=DefaultListGroup,
    lazy_commands={"suggestions": "comity.approvals.commands:suggestions_command"},
)
def grants_command() -> None:
    """Manage and explain grants.

    A TARGET is server/tool, server/* or *. You need admin access to the gateway. With --offline the
    command works on the database.

    \b
    Examples:
      comity grants
      comity grants create agent:ci 'files/*'
      comity grants explain agent:ci files__read
      comity grants export > grants.toml
    """


@grants_command.command("list")
@click.option("--principal", metavar="ID", help="Only this principal. * is every principal.")
@limit_option()
@store_options
def list_grants(principal: str | None, limit: int | None) -> None:
    """List grants with their author.

    \b
    Examples:
      comity grants list
      comity grants list --principal agent:ci
    """
    found = fetch_grants(AdminClient(), principal)
    grants: list[Answer] = found["grants"][:limit]

    def print_table() -> None:
        _print_grants(grants)
        _print_static_rules(found)

    names = [f"{each['subject']} {each['verb']} {each['target']}" for each in grants]
    show_document({**found, "grants": grants}, print_table, names)


def fetch_grants(records: AdminClient, principal: str | None = None) -> Answer:
    """Return all grants, and the rules that the configuration sets."""
    first = page = records.get("grants", **({} if principal is None else {"subject": principal}))
    grants: list[Answer] = [*first["grants"]]
    while "next" in page:
        page = records.get("grants", cursor=page["next"])
        grants += page["grants"]
    rules = {name: first[name] for name in ("forbid", "default_policy", "policies")}
    return {"grants": grants, **rules}


def _print_grants(grants: list[Answer]) -> None:
    if not grants:
        show_output(line_text("There are no grants."))
        show_hint("`comity grants create PRINCIPAL TARGET` creates one.")
        return
    # Most grants have no condition, and then there is no column for it.
    conditional = any(grant["where"] is not None for grant in grants)
    rows = [
        (
            grant["subject"],
            _effect_text(grant),
            grant["verb"],
            grant["target"],
            _expiry_text(grant),
            *((_condition_text(grant),) if conditional else ()),
            _author_text(grant),
            grant["justification"],
        )
        for grant in grants
    ]
    only = ("CONDITION",) if conditional else ()
    columns = (
        *("PRINCIPAL", "EFFECT", "VERB", "TARGET", "EXPIRES"),
        *(*only, "GRANTED BY", "REASON"),
    )
    show_output(build_table(columns, rows, extra=("GRANTED BY", "REASON")))


def _print_static_rules(found: Answer) -> None:
    if found["forbid"]:
        names = ("subject", "verb", "target", "reason")
        rows = [[each[name] for name in names] for each in found["forbid"]]
        show_output("", line_text("Forbidden by the configuration:", "bold"))
        show_output(build_table(("PRINCIPAL", "VERB", "TARGET", "REASON"), rows))
    policies = [f"{server}: {policy}" for server, policy in sorted(found["policies"].items())]
    told = ", ".join((found["default_policy"], *policies))
    show_output("", line_text(f"Default without a grant: {told}", "dim"))


def _effect_text(grant: Answer) -> Text:
    return line_text(grant["effect"], STYLE_BY_EFFECT.get(grant["effect"], ""))


def _expiry_text(grant: Answer) -> Text:
    if not grant["expires_at"]:
        return line_text("")
    at = datetime.fromisoformat(grant["expires_at"])
    if at <= datetime.now(UTC):
        return line_text("expired", "red")
    return line_text(f"{at:%Y-%m-%d %H:%M}")


def _condition_text(grant: Answer) -> str:
    if grant["where"] is None:
        return ""
    return grant["where_text"] or "a condition that no call meets"


def _author_text(grant: Answer) -> str:
    if grant["source"] == "records":
        return grant["granted_by"]
    return "configuration" if grant["source"] == FILE_SOURCE else "built in"


@grants_command.command("create")
@click.argument("principal")
@click.argument("target")
@verb_option
@click.option("--ask", "effect", flag_value="ask", help="Require approval for each call.")
@click.option("--deny", "effect", flag_value="deny", help="Deny. A more specific grant can allow.")
@expires_option
@reason_option
@click.option(
    "--where",
    metavar="JSON",
    help="Approve calls of one tool whose arguments match this condition.",
)
@store_options
def create_grant(principal: str, target: str, **said: Any) -> None:
    """Allow a principal to use a target.

    With --ask each call needs approval. With --deny the principal may not use the target. The grant
    takes effect at once, on every node.

    \b
    Examples:
      comity grants create agent:ci files/read
      comity grants create agent:ci 'github/*' --ask --reason "trial"
      comity grants create person:me '*' --verb '*'
    """
    made = AdminClient().post(
        "grants",
        subject=principal,
        target=target,
        verb=said["verb"],
        effect=said["effect"] or "allow",
        expires_at=parse_expiry(said["expires"]),
        justification=said["reason"],
        where=_parse_condition(said["where"]),
    )
    name = f"{made['subject']} {made['verb']} {made['target']}"
    show_document(made, lambda: _print_grants([made]), [name])


def _parse_condition(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        raise Misconfigured(f"--where is no JSON; write it as {CONDITION_EXAMPLE}") from None


@grants_command.command("delete")
@click.argument("principal")
@click.argument("target")
@verb_option
@click.option(
    "--conditional", is_flag=True, help="Delete the conditional grants, and keep the plain one."
)
@store_options
def delete_grant(principal: str, target: str, **said: Any) -> int:
    """Delete a grant of a principal.

    \b
    Examples:
      comity grants delete agent:ci files/read
      comity grants delete agent:ci files/read --conditional
    """
    named = {"subject": principal, "target": target, "verb": said["verb"]}
    done = AdminClient().post("grants", "delete", **named, conditional=said["conditional"] or None)
    show_document(done, lambda: _print_deletion(done), [f"{principal} {said['verb']} {target}"])
    return DONE if done["deleted"] else NOT_FOUND


def _print_deletion(done: Answer) -> None:
    if done["deleted"]:
        show_output(line_text("Deleted the grant.", "green"))
    else:
        show_output(line_text("There is no such grant."))
        show_hint("`comity grants list` lists all grants.")
    if done["is_in_file"]:
        show_output(line_text("The configuration has this grant too. Remove it there.", "yellow"))
    if done["conditional_grants"]:
        told = f"Conditional grants that remain: {done['conditional_grants']}."
        show_output(line_text(told, "yellow"))
        show_hint("--conditional deletes them.")


@grants_command.command("explain")
@click.argument("principal")
@click.argument("tool")
@verb_option
@click.option("--key", metavar="KEY", help="Explain for this key, by its id.")
@store_options
def explain(principal: str, tool: str, **said: Any) -> None:
    """Explain what a principal may do with a tool.

    \b
    Examples:
      comity grants explain agent:ci files__read
      comity grants explain agent:ci files/read --verb tools/list
    """
    query = {"principal": principal, "tool": tool, "verb": said["verb"]}
    if said["key"]:
        query["key"] = said["key"]
    found = AdminClient().get("grants", "explain", **query)
    show_document(found, lambda: _print_explanation(found), [found["effect"]])


def _print_explanation(found: Answer) -> None:
    show_output(line_text(found["sentence"], STYLE_BY_EFFECT.get(found["effect"], "")))
    if found["entries"]:
        conditional = any(entry["where"] is not None for entry in found["entries"])
        rows = [
            (
                line_text(entry["role"], "bold" if entry["role"] == "decides" else "dim"),
                _effect_text(entry),
                entry["subject"],
                entry["verb"],
                entry["target"],
                _expiry_text(entry),
                *((_condition_text(entry),) if conditional else ()),
                _author_text(entry),
            )
            for entry in found["entries"]
        ]
        only = ("CONDITION",) if conditional else ()
        columns = ("", "EFFECT", "PRINCIPAL", "VERB", "TARGET", "EXPIRES", *only, "GRANTED BY")
        show_output("", build_table(columns, rows))
    for each in found["views"]:
        told = f"In the view {each['view']}, as {each['name']}: {each['sentence']}"
        show_output("", line_text(told, STYLE_BY_EFFECT.get(each["effect"], "")))
    _print_tool_review(found)


def _print_tool_review(found: Answer) -> None:
    """Print what the review of the tool adds to the grants."""
    tool: Answer = found["tool"] or {}
    by_itself = any(e["role"] == "decides" and e["level"] == "offer" for e in found["entries"])
    if tool.get("refusal"):
        show_output("", line_text(f"No principal can call it now: {tool['refusal']}.", "yellow"))
    elif tool.get("is_asked") and found["effect"] == "allow" and not by_itself:
        told = (
            f"Its risk is {tool['risk']}: without a grant on the tool itself, calls need approval."
        )
        show_output("", line_text(told, "yellow"))


_file_option: Final[Decorator] = click.option(
    "-f",
    "--file",
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    required=True,
    help="Grants in TOML or JSON. - is standard input.",
)
_prune_option: Final[Decorator] = click.option(
    "--prune", is_flag=True, help="Delete stored grants that the file does not have."
)


@grants_command.command("export")
@store_options
def export_grants() -> None:
    """Print the stored grants as TOML, in a stable order.

    The output has no grants of the configuration. With -o json it is JSON.

    \b
    Examples:
      comity grants export > grants.toml
      comity grants export -o json
    """
    entries = grant_files.entries_of(fetch_grants(AdminClient())["grants"])
    # On lines of their own, however long, because the output is a file.
    show_document(
        {"grants": entries},
        lambda: click.echo(_to_toml(entries), nl=False),
        [_entry_name(each) for each in entries],
    )


def _to_toml(entries: Sequence[GrantEntry]) -> str:
    if any("null" in json.dumps(each.get("where")) and "where" in each for each in entries):
        raise Misconfigured("TOML cannot hold the null of a condition; export with -o json")
    tables = (
        "\n".join(["[[grants]]", *(f"{key} = {toml_value(each[key])}" for key in each), ""])
        for each in entries
    )
    return "\n".join(tables)


def _entry_name(entry: GrantEntry) -> str:
    return f"{entry['principal']} {entry.get('verb', grant_files.DEFAULT_VERB)} {entry['target']}"


@grants_command.command("diff")
@_file_option
@_prune_option
@exit_code_option("there are differences")
@store_options
def diff_grants(file: IO[str], *, prune: bool, exit_code: bool) -> int:
    """Compare the stored grants with a file.

    \b
    Examples:
      comity grants diff -f grants.toml
      comity grants diff -f grants.toml --prune --exit-code
    """
    changes = _compare(AdminClient(), file, prune=prune)
    _show_changes(changes, "")
    return FAILED if exit_code and changes else DONE


@grants_command.command("apply")
@_file_option
@_prune_option
@dry_run_option
@yes_option
@store_options
def apply_grants(file: IO[str], *, prune: bool, dry_run: bool, yes: bool) -> None:
    """Store the grants of a file.

    The command creates and changes grants. Only with --prune it deletes grants.

    \b
    Examples:
      comity grants apply -f grants.toml --dry-run
      comity grants apply -f grants.toml --prune --yes
    """
    records = AdminClient()
    changes = _compare(records, file, prune=prune)
    if not dry_run:
        if changes.deleted:
            confirm(f"Delete {count_noun(len(changes.deleted), 'grant')}?", yes=yes)
        for entry in (*changes.created, *changes.changed):
            records.post("grants", **grant_files.body_of(entry))
        for entry in changes.deleted:
            records.post("grants", "delete", **grant_files.body_of(entry))
    _show_changes(changes, "Nothing was changed (--dry-run)." if dry_run else "Applied.")


def _compare(records: AdminClient, file: IO[str], *, prune: bool) -> GrantChanges:
    wanted = grant_files.read_grants(file.read(), file.name)
    stored = grant_files.entries_of(fetch_grants(records)["grants"])
    return grant_files.compare_grants(stored, wanted, prune=prune)


def _show_changes(changes: GrantChanges, outcome: str) -> None:
    kinds = (
        ("+", "create", "green", changes.created),
        ("~", "change", "yellow", changes.changed),
        ("-", "delete", "red", changes.deleted),
    )
    rows = [
        (line_text(mark, style), line_text(word, style), *_change_cells(each))
        for mark, word, style, entries in kinds
        for each in entries
    ]

    def print_table() -> None:
        if not rows:
            show_output(line_text("The stored grants match the file."))
            return
        columns = ("", "CHANGE", "PRINCIPAL", "EFFECT", "VERB", "TARGET", "EXPIRES", "REASON")
        show_output(build_table(columns, rows))
        if outcome:
            show_output(line_text(outcome))

    document = {f"{word}d": list(entries) for _, word, _, entries in kinds}
    names = [f"{mark} {_entry_name(each)}" for mark, _, _, entries in kinds for each in entries]
    show_document(document, print_table, names)


def _change_cells(entry: GrantEntry) -> tuple[str, ...]:
    names = ("principal", "effect", "verb", "target", "expires", "reason")
    shown = {"effect": "allow", "verb": grant_files.DEFAULT_VERB, **entry}
    return tuple(str(shown.get(name, "")) for name in names)


STYLE_BY_DECISION = {"approved": "green", "denied": "red", "deferred": "yellow"}


@click.group("permissions", cls=DefaultListGroup)
def permissions_command() -> None:
    """Approve or deny permissions that servers need.

    \b
    Examples:
      comity servers permissions
      comity servers permissions approve files filesystem.read
    """


@permissions_command.command("list")
@click.option("--server", metavar="NAME", shell_complete=complete_servers, help="Only this server.")
@check_option("a permission waits for a decision")
@gateway_options
def list_permissions(server: str | None, *, check: bool) -> int:
    """List permissions that servers need.

    \b
    Examples:
      comity servers permissions list
      comity servers permissions list --server files --check
    """
    query = {} if server is None else {"server": server}
    found = connect_gateway().get("permissions", **query)
    needs: list[Answer] = found["permissions"]
    _show_permissions(found, "No server needs a permission.")
    waits = any(each["decision"] == "deferred" for each in needs)
    return FAILED if check and waits else DONE


def _show_permissions(found: Answer, if_empty: str) -> None:
    needs: list[Answer] = found["permissions"]

    def print_table() -> None:
        if needs:
            _print_permissions(needs)
        else:
            show_output(line_text(if_empty))

    names = [f"{each['server']} {each['permission']}" for each in needs]
    show_document(found, print_table, names)


def _print_permissions(needs: list[Answer]) -> None:
    rows = [
        (
            each["server"],
            each["permission"],
            each["risk"],
            line_text(each["decision"], STYLE_BY_DECISION.get(each["decision"], "")),
            each["by"],
            (each["expires_at"] or "")[:16],
            ", ".join(each["reach"]),
            each["reason"],
        )
        for each in needs
    ]
    columns = ("SERVER", "PERMISSION", "RISK", "STATUS", "DECIDED BY", "EXPIRES", "REACH", "REASON")
    show_output(build_table(columns, rows, extra=("REASON",)))


@permissions_command.command("approve")
@click.argument("server", shell_complete=complete_servers)
@click.argument("permission")
@click.option(
    "--reach",
    metavar="PLACE",
    multiple=True,
    help="Folder, host or program of the permission. It is added to those approved before.",
)
@expires_option
@reason_option
@gateway_options
def approve_permission(server: str, permission: str, **said: Any) -> None:
    """Approve a permission of a server.

    A confined server gets the folders of filesystem.read and filesystem.write, the hosts of
    network.outbound, and the programs of shell.execute. Approve again to add a place. Without
    --expires, it expires with the others. 'reset' and 'deny' remove all places. The server
    restarts.

    \b
    Examples:
      comity servers permissions approve files filesystem.read --reach /srv
      comity servers permissions approve web network.outbound --reach example.com
      comity servers permissions approve git shell.execute --reach /usr/bin/git
    """
    _decide("approve", server, permission, said)


def _make_decision_command(action: str, help_text: str) -> None:
    """Make the command for a decision that has no reach."""
    example = f"comity servers permissions {action} files filesystem.read"

    @permissions_command.command(action, help=f"{help_text}\n\n\b\nExamples:\n  {example}")
    @click.argument("server", shell_complete=complete_servers)
    @click.argument("permission")
    @expires_option
    @reason_option
    @gateway_options
    def order(server: str, permission: str, **said: Any) -> None:
        _decide(action, server, permission, said)


def _decide(action: str, server: str, permission: str, said: Mapping[str, Any]) -> None:
    body: dict[str, object] = {
        "server": server,
        "permission": permission,
        "justification": said["reason"] or "",
    }
    if ends := parse_expiry(said["expires"]):
        left = datetime.fromisoformat(ends) - datetime.now(UTC)
        body["expires_in_seconds"] = max(1, round(left.total_seconds()))
    if said.get("reach"):
        body["reach"] = said["reach"]
    found = connect_gateway().post("permissions", action, body=body)
    _show_permissions(found, f"Stored. {server} has not requested {permission} yet.")


_make_decision_command("deny", "Deny a permission of a server.")
_make_decision_command(
    "reset", "Delete a decision about a permission. Then the policy of the server decides."
)
