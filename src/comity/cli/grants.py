"""`comity grants`: who may do what; and why somebody may, or may not."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.text import Text

from comity.cli.administering import Records, config_option, moment
from comity.cli.asking import Answer
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Decorator, Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, table
from comity.cli.suggest import suggest
from comity.wire.errors import Misconfigured

EFFECTS: Final = {"allow": "green", "ask": "yellow", "deny": "red"}
FILE: Final = "file"
EXAMPLE: Final = '{"paths": {"/path": {"under": "/project"}}, "only": ["path"]}'

verb_option: Final[Decorator] = click.option(
    "--verb",
    metavar="VERB",
    default="tools/call",
    show_default=True,
    help="What is done with it: a method, a family as 'tools/*', or '*'.",
)


@click.group("grants", cls=Listing)
def command() -> None:
    """Show and change who may do what, and explain it.

    A TARGET is server/tool, server/* or *; a TOOL may be named as clients name it. A running
    gateway is asked, by somebody who may administer it. Without one, grants are read from the
    store, and changed there with --offline.
    """


@command.command("list")
@click.option(
    "--subject", metavar="PARTY", help="Only what this party was granted; * is everybody."
)
@url_option
@config_option
@json_option
def list_grants(subject: str | None, url: str, config: Path | None, as_json: bool) -> int:
    """List every grant, with who gave it; the same as `comity grants`."""
    records = Records(url, config)
    first = page = records.get("grants", **({} if subject is None else {"subject": subject}))
    grants: list[Answer] = [*first["grants"]]
    while "next" in page:
        page = records.get("grants", cursor=page["next"])
        grants += page["grants"]
    if as_json:
        decided = {name: first[name] for name in ("forbid", "default_policy", "policies")}
        show_json({"grants": grants, **decided})
        return FINE
    _show_all(grants)
    _show_decided(first)
    return FINE


def _show_all(grants: list[Answer]) -> None:
    if not grants:
        show(plain("Nothing is granted to anybody; `comity grants add PARTY TARGET` grants it."))
        return
    # Most have no condition, and then nobody has to see that there can be one.
    conditional = any(grant["where"] is not None for grant in grants)
    rows = [
        (
            grant["subject"],
            _effect(grant),
            grant["verb"],
            grant["target"],
            _until(grant),
            *((_only(grant),) if conditional else ()),
            _by(grant),
            grant["justification"],
        )
        for grant in grants
    ]
    only = ("ONLY",) if conditional else ()
    show(table(("WHO", "EFFECT", "VERB", "TARGET", "UNTIL", *only, "BY", "WHY"), rows))


def _show_decided(found: Answer) -> None:
    if found["forbid"]:
        names = ("subject", "verb", "target", "why")
        rows = [[each[name] for name in names] for each in found["forbid"]]
        show("", plain("Forbidden, whatever is granted:", "bold"))
        show(table(("WHO", "VERB", "TARGET", "WHY"), rows))
    policies = [f"{server}: {policy}" for server, policy in sorted(found["policies"].items())]
    told = ", ".join((found["default_policy"], *policies))
    show("", plain(f"Without a grant: {told}", "dim"))


def _effect(grant: Answer) -> Text:
    return plain(grant["effect"], EFFECTS.get(grant["effect"], ""))


def _until(grant: Answer) -> Text:
    if not grant["expires_at"]:
        return plain("")
    at = datetime.fromisoformat(grant["expires_at"])
    if at <= datetime.now(UTC):
        return plain("expired", "red")
    return plain(f"{at:%Y-%m-%d %H:%M}")


def _only(grant: Answer) -> str:
    if grant["where"] is None:
        return ""
    return grant["where_words"] or "a condition that nothing meets"


def _by(grant: Answer) -> str:
    if grant["source"] == "records":
        return grant["granted_by"]
    return "the file" if grant["source"] == FILE else "built in"


@command.command("add")
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
    made = Records(url, config).post(
        "grants",
        subject=party,
        target=target,
        verb=said["verb"],
        effect=said["effect"] or "allow",
        expires_at=moment(said["expires"]),
        justification=said["why"],
        where=_condition(said["where"]),
    )
    if said["as_json"]:
        show_json(made)
    else:
        _show_all([made])
    return FINE


def _condition(written: str | None) -> object:
    try:
        return None if written is None else json.loads(written)
    except ValueError:
        raise Misconfigured(f"--where is no JSON; write it as {EXAMPLE}") from None


@command.command("remove")
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
    done = Records(url, config).post("grants", "revoke", **named)
    if as_json:
        show_json(done)
    elif done["revoked"]:
        show(plain("It is taken back.", "green"))
    else:
        show(plain("There is no such entry; `comity grants` lists those that there are."))
    if done["stands_in_the_file"] and not as_json:
        show(plain("The configuration file grants it as well; take it out there.", "yellow"))
    if done["standing_answers"] and not as_json:
        told = f"Standing answers about it: {done['standing_answers']}; --standing removes them."
        show(plain(told, "yellow"))
    return FINE if done["revoked"] else SOMETHING_WRONG


@command.command("explain")
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
    found = Records(url, config).get("grants", "explain", **query)
    if said["as_json"]:
        show_json(found)
        return FINE
    show(plain(found["sentence"], EFFECTS.get(found["effect"], "")))
    if found["entries"]:
        conditional = any(entry["where"] is not None for entry in found["entries"])
        rows = [
            (
                plain(entry["part"], "bold" if entry["part"] == "decides" else "dim"),
                _effect(entry),
                entry["subject"],
                entry["verb"],
                entry["target"],
                _until(entry),
                *((_only(entry),) if conditional else ()),
                _by(entry),
            )
            for entry in found["entries"]
        ]
        only = ("ONLY",) if conditional else ()
        columns = ("", "EFFECT", "WHO", "VERB", "TARGET", "UNTIL", *only, "BY")
        show("", table(columns, rows))
    _show_tool(found)
    return FINE


command.add_command(suggest)


def _show_tool(found: Answer) -> None:
    """How the tool itself stands, beside what was granted."""
    tool: Answer = found["tool"] or {}
    by_itself = any(e["part"] == "decides" and e["level"] == "offer" for e in found["entries"])
    if tool.get("refusal"):
        show("", plain(f"Nobody can call it just now: {tool['refusal']}.", "yellow"))
    elif tool.get("is_asked") and found["effect"] == "allow" and not by_itself:
        told = f"It counts as {tool['risk']}: unless the tool itself is granted, a person is asked."
        show("", plain(told, "yellow"))
