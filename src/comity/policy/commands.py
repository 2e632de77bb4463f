"""`comity grants` and `comity permissions`."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from comity.app.administration import AdminClient, config_option, parse_expiry
from comity.approvals.commands import suggest
from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_servers
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import Decorator, DefaultListGroup, json_option, url_option
from comity.cli.output import build_table, line_text, show_json, show_output
from comity.config.document import ConfigValue
from comity.errors import Misconfigured

STYLE_BY_EFFECT: Final = {"allow": "green", "ask": "yellow", "deny": "red"}
FILE_SOURCE: Final = "file"
CONDITION_EXAMPLE: Final = '{"paths": {"/path": {"under": "/project"}}, "only": ["path"]}'

verb_option: Final[Decorator] = click.option(
    "--verb",
    metavar="VERB",
    default="tools/call",
    show_default=True,
    help="What is done with it: a method, a family as 'tools/*', or '*'.",
)


@click.group("grants", cls=DefaultListGroup)
def grants_command() -> None:
    """Show and change who may do what, and explain it.

    A TARGET is server/tool, server/* or *; a TOOL may be named as clients name it. A running
    gateway is asked, by somebody who may administer it. Without one, grants are read from the
    store, and changed there with --offline.
    """


@grants_command.command("list")
@click.option(
    "--subject", metavar="PARTY", help="Only what this party was granted; * is everybody."
)
@url_option
@config_option
@json_option
def list_grants(subject: str | None, url: str, config: Path | None, as_json: bool) -> int:
    """List every grant, with who gave it; the same as `comity grants`."""
    records = AdminClient(url, config)
    first = page = records.get("grants", **({} if subject is None else {"subject": subject}))
    grants: list[Answer] = [*first["grants"]]
    while "next" in page:
        page = records.get("grants", cursor=page["next"])
        grants += page["grants"]
    if as_json:
        decided = {name: first[name] for name in ("forbid", "default_policy", "policies")}
        show_json({"grants": grants, **decided})
        return FINE
    _print_grants(grants)
    _print_static_rules(first)
    return FINE


def _print_grants(grants: list[Answer]) -> None:
    if not grants:
        show_output(
            line_text("Nothing is granted to anybody; `comity grants add PARTY TARGET` grants it.")
        )
        return
    # Most have no condition, and then nobody has to see that there can be one.
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
    only = ("ONLY",) if conditional else ()
    show_output(build_table(("WHO", "EFFECT", "VERB", "TARGET", "UNTIL", *only, "BY", "WHY"), rows))


def _print_static_rules(found: Answer) -> None:
    if found["forbid"]:
        names = ("subject", "verb", "target", "why")
        rows = [[each[name] for name in names] for each in found["forbid"]]
        show_output("", line_text("Forbidden, whatever is granted:", "bold"))
        show_output(build_table(("WHO", "VERB", "TARGET", "WHY"), rows))
    policies = [f"{server}: {policy}" for server, policy in sorted(found["policies"].items())]
    told = ", ".join((found["default_policy"], *policies))
    show_output("", line_text(f"Without a grant: {told}", "dim"))


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
    return grant["where_words"] or "a condition that nothing meets"


def _author_text(grant: Answer) -> str:
    if grant["source"] == "records":
        return grant["granted_by"]
    return "the file" if grant["source"] == FILE_SOURCE else "built in"


@grants_command.command("add")
@click.argument("party")
@click.argument("target")
@verb_option
@click.option("--ask", "effect", flag_value="ask", help="A person is asked each time.")
@click.option("--deny", "effect", flag_value="deny", help="Deny it, over what is less specific.")
@click.option(
    "--expires",
    metavar="WHEN",
    help="When it ends: after a while, as 8h or 90d, or at a time, as 2027-01-31T18:00:00+01:00.",
)
@click.option("--why", metavar="TEXT", help="For people who read it later.")
@click.option(
    "--where",
    metavar="JSON",
    help="Only answer in a person's place: a condition on the arguments of one tool.",
)
@url_option
@config_option
@json_option
def add(party: str, target: str, url: str, config: Path | None, **said: Any) -> int:
    """Let PARTY use TARGET, or another way with --ask or --deny; at once, on every node."""
    made = AdminClient(url, config).post(
        "grants",
        subject=party,
        target=target,
        verb=said["verb"],
        effect=said["effect"] or "allow",
        expires_at=parse_expiry(said["expires"]),
        justification=said["why"],
        where=_parse_condition(said["where"]),
    )
    if said["as_json"]:
        show_json(made)
    else:
        _print_grants([made])
    return FINE


def _parse_condition(text: str | None) -> object:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        raise Misconfigured(f"--where is no JSON; write it as {CONDITION_EXAMPLE}") from None


@grants_command.command("remove")
@click.argument("party")
@click.argument("target")
@verb_option
@click.option(
    "--standing", is_flag=True, help="Take its standing answers back, and leave the plain entry."
)
@url_option
@config_option
@json_option
def remove(party: str, target: str, url: str, config: Path | None, **said: Any) -> int:
    """Take the entry for PARTY and TARGET back; the exit status is 1 if there is none."""
    as_json, standing = said["as_json"], said["standing"] or None
    named = {"subject": party, "target": target, "verb": said["verb"], "standing": standing}
    done = AdminClient(url, config).post("grants", "revoke", **named)
    if as_json:
        show_json(done)
    elif done["revoked"]:
        show_output(line_text("It is taken back.", "green"))
    else:
        show_output(
            line_text("There is no such entry; `comity grants` lists those that there are.")
        )
    if done["stands_in_the_file"] and not as_json:
        show_output(
            line_text("The configuration file grants it as well; take it out there.", "yellow")
        )
    if done["standing_answers"] and not as_json:
        told = f"Standing answers about it: {done['standing_answers']}; --standing removes them."
        show_output(line_text(told, "yellow"))
    return FINE if done["revoked"] else SOMETHING_WRONG


@grants_command.command("explain")
@click.argument("party")
@click.argument("tool")
@verb_option
@click.option("--key", metavar="KEY", help="As it would be with this key, by its id.")
@url_option
@config_option
@json_option
def explain(party: str, tool: str, url: str, config: Path | None, **said: Any) -> int:
    """Say what PARTY may do with TOOL, which entry decides, and why."""
    query = {"party": party, "tool": tool, "verb": said["verb"]}
    if said["key"]:
        query["key"] = said["key"]
    found = AdminClient(url, config).get("grants", "explain", **query)
    if said["as_json"]:
        show_json(found)
        return FINE
    show_output(line_text(found["sentence"], STYLE_BY_EFFECT.get(found["effect"], "")))
    if found["entries"]:
        conditional = any(entry["where"] is not None for entry in found["entries"])
        rows = [
            (
                line_text(entry["part"], "bold" if entry["part"] == "decides" else "dim"),
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
        only = ("ONLY",) if conditional else ()
        columns = ("", "EFFECT", "WHO", "VERB", "TARGET", "UNTIL", *only, "BY")
        show_output("", build_table(columns, rows))
    _print_tool_review(found)
    return FINE


grants_command.add_command(suggest)


def _print_tool_review(found: Answer) -> None:
    """How the tool itself stands, beside what was granted."""
    tool: Answer = found["tool"] or {}
    by_itself = any(e["part"] == "decides" and e["level"] == "offer" for e in found["entries"])
    if tool.get("refusal"):
        show_output("", line_text(f"Nobody can call it just now: {tool['refusal']}.", "yellow"))
    elif tool.get("is_asked") and found["effect"] == "allow" and not by_itself:
        told = f"It counts as {tool['risk']}: unless the tool itself is granted, a person is asked."
        show_output("", line_text(told, "yellow"))


STYLE_BY_DECISION = {"approved": "green", "denied": "red", "deferred": "yellow"}


@click.group("permissions", cls=DefaultListGroup)
def permissions_command() -> None:
    """Show what servers need to do their work; approve it, or deny it."""


@permissions_command.command("list")
@click.option(
    "--server", metavar="NAME", shell_complete=complete_servers, help="Only of this server."
)
@url_option
@json_option
def list_permissions(server: str | None, url: str, *, as_json: bool) -> int:
    """List every permission that a server needs, and how it stands; the same as `comity
    permissions`.

    The exit status is 1 if one of them waits for a decision.
    """
    query = {} if server is None else {"server": server}
    found = ApiClient(url).get("permissions", **query)
    needs: list[Answer] = found["permissions"]
    if as_json:
        show_json(found)
    elif needs:
        _print_permissions(needs)
    else:
        show_output(line_text("No server has said that it needs a permission."))
    waits = any(each["decision"] == "deferred" for each in needs)
    return SOMETHING_WRONG if waits else FINE


def _print_permissions(needs: list[Answer]) -> None:
    rows = [
        (
            each["server"],
            each["permission"],
            each["risk"],
            line_text(each["decision"], STYLE_BY_DECISION.get(each["decision"], "")),
            each["by"],
            (each["expires_at"] or "")[:16],
            each["because"],
        )
        for each in needs
    ]
    columns = ("SERVER", "PERMISSION", "RISK", "DECISION", "BY", "UNTIL", "BECAUSE")
    show_output(build_table(columns, rows))


def _make_decision_command(action: str, past_participle: str) -> None:
    """Make the command for one decision."""

    @permissions_command.command(action, help=past_participle)
    @click.argument("server", shell_complete=complete_servers)
    @click.argument("permission")
    @click.option("--expires", metavar="TIME", help="How long it holds, as 8h or 30d; for good.")
    @click.option("--because", metavar="TEXT", default="", help="Why; it is kept with it.")
    @url_option
    @json_option
    def order(
        server: str, permission: str, expires: str | None, because: str, url: str, *, as_json: bool
    ) -> None:
        body: dict[str, object] = {
            "server": server,
            "permission": permission,
            "justification": because,
        }
        if expires is not None:
            length = ConfigValue(expires, "--expires").duration()
            body["expires_in_seconds"] = max(1, int(length.total_seconds()))
        found = ApiClient(url).post("permissions", action, body=body)
        if as_json:
            show_json(found)
        elif found["permissions"]:
            _print_permissions(found["permissions"])
        else:
            show_output(line_text(f"Noted; {server} has not said that it needs {permission}."))


_make_decision_command("approve", "Give the server SERVER the permission PERMISSION.")
_make_decision_command("deny", "Deny the server SERVER the permission PERMISSION.")
_make_decision_command(
    "forget", "Forget what was decided here of SERVER's PERMISSION; its policy decides again."
)
