"""`comity topic`."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_topics
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import DefaultListGroup, json_option, url_option
from comity.cli.output import build_table, describe_age, line_text, show_json, show_output
from comity.errors import Misconfigured, Unavailable
from comity.policy.grants import ANY_TARGET
from comity.topics.rules import PROFILES, SEND, DeliveryMode, can_send_kind

EVERYWHERE: Final = "every topic"


@click.group("topic", cls=DefaultListGroup)
def topic_command() -> None:
    """Talk in a topic, see who is there, and say what each may send.

    In a topic agents and people share what they do: who may not do something itself proposes it,
    and somebody who may has it done.
    """


@topic_command.command("list")
@url_option
@json_option
def list_topics(url: str, as_json: bool) -> int:
    """List the topics in which somebody is; the same as `comity topic`."""
    found = ApiClient(url).get("topics")
    if as_json:
        show_json(found)
        return FINE
    rows = [(each["topic"], str(each["members"])) for each in found["topics"]]
    if rows:
        show_output(build_table(("TOPIC", "MEMBERS"), rows))
    else:
        show_output(line_text("Nobody is in any topic; `comity topic join NAME` begins one."))
    left_out = found["total"] - len(rows)
    if left_out > 0:
        show_output(line_text(f"… and {left_out} more", "dim"))
    return FINE


@topic_command.command("show")
@click.argument("name", shell_complete=complete_topics)
@url_option
@json_option
def show_topic(name: str, url: str, as_json: bool) -> int:
    """Show who is in the topic NAME, and what each may send there.

    MISSED is how many envelopes a member was not given yet, because it takes them too slowly or
    is away for a moment.
    """
    found = ApiClient(url).get("topics", name)
    if as_json:
        show_json(found)
    else:
        _show_members(found["participants"])
    return FINE


def _show_members(found: Sequence[Answer]) -> None:
    # Who is at this very node needs no word about where it is.
    is_spread = any("node" in each for each in found)
    rows = [
        (
            each["participantId"],
            str(each.get("mode", "")),
            describe_age(each.get("connectedAt")),
            line_text(each.get("missed", ""), "yellow" if each.get("missed") else ""),
            *((str(each.get("node", "")),) if is_spread else ()),
            ", ".join(each["capabilities"]) or line_text("nothing", "dim"),
        )
        for each in found
    ]
    node = ("NODE",) if is_spread else ()
    show_output(build_table(("WHO", "MODE", "SINCE", "MISSED", *node, "MAY SEND"), rows))


@topic_command.command("caps")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("party")
@click.option("--add", metavar="CAP", multiple=True, help="Let it send this as well.")
@click.option("--remove", metavar="CAP", multiple=True, help="Let it send this no longer.")
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    help="Let it send exactly what this stands for, and what --add says.",
)
@url_option
@json_option
def caps(topic: str, party: str, url: str, as_json: bool, **said: Any) -> int:
    """Show what PARTY may send in TOPIC, or change it; at once, on every node.

    TOPIC may be '*', which is every topic. A CAP is a kind of envelope, as chat or
    mcp/request:tools/call, or a pattern, as 'mcp/proposal:*'. Where PARTY is in the topic, it is
    told. Only who may administer the gateway can do this. The exit status is 1 if something else
    that was granted or forbidden stands against the change.

    \b
    Profiles:
      full       mcp/*, chat
      propose    mcp/proposal:*, mcp/response:*, chat
      respond    mcp/response:*, chat
      read-only  mcp/request:resources/read, mcp/request:*/list, mcp/response:*, chat
      tools      mcp/request:tools/*, mcp/response:tools/*, chat
    """
    gateway = ApiClient(url)
    wanted = _CapabilityUpdate(gateway, topic, party)
    try:
        done = wanted.apply(said["add"], said["remove"], said["profile"])
    except Unavailable as away:
        raise Unavailable(
            f"{away}; where none runs, `comity grants add {party} '{topic}/CAP' --verb topic/send` "
            "says the same to the store"
        ) from None
    if as_json:
        show_json({"topic": topic, **done})
    else:
        _show_change(topic, done)
    return FINE if _is_in_force(done, wanted, party) else SOMETHING_WRONG


class _CapabilityUpdate:
    """What somebody is to be able to send, and how to get there from what it can."""

    def __init__(self, gateway: ApiClient, topic: str, party: str) -> None:
        self._gateway = gateway
        self._topic = topic
        self._party = party
        self.add: list[str] = []
        self.remove: list[str] = []

    def apply(self, add: Iterable[str], remove: Iterable[str], profile: str | None) -> Answer:
        self.add, self.remove = list(dict.fromkeys(add)), list(dict.fromkeys(remove))
        both = set(self.add) & set(self.remove)
        if both:
            raise Misconfigured(f"{min(both)!r:.80} cannot be both added and removed")
        if profile is None:
            return self._send_change(self.add, self.remove)
        before = self._send_change([], [])["oldCapabilities"]
        whole = [*dict.fromkeys([*PROFILES[profile], *self.add])]
        self._revoke_denials(whole)
        self.add = [each for each in whole if each not in (*before, *self.remove)]
        # What something wider covers is not in the way of it; to deny it would take from that.
        self.remove += [
            each for each in before if not _is_covered(each, whole) and each not in self.remove
        ]
        return {**self._send_change(self.add, self.remove), "oldCapabilities": before}

    def _revoke_denials(self, whole: Sequence[str]) -> None:
        """What was taken from it earlier, and stands against what it is to have now."""
        cursor: dict[str, str] = {"subject": self._party}
        while cursor:
            page = self._gateway.get("grants", **cursor)
            for grant in page["grants"]:
                topic, _, capability = grant["target"].partition("/")
                is_denial = (grant["effect"], grant["verb"], topic) == ("deny", SEND, self._topic)
                if is_denial and _is_covered(capability, whole):
                    named = {name: grant[name] for name in ("subject", "verb", "target")}
                    self._gateway.post("grants", "revoke", body=named)
            cursor = {"cursor": page["next"]} if "next" in page else {}

    def _send_change(self, add: list[str], remove: list[str]) -> Answer:
        body = {"topic": self._topic, "add": add, "remove": remove}
        return self._gateway.promote(self._party, body)


def _is_covered(capability: str, by: Iterable[str]) -> bool:
    return any(each == capability or can_send_kind(each, capability) for each in by)


def _show_change(topic: str, done: Answer) -> None:
    before, now = done["oldCapabilities"], done["newCapabilities"]
    where = EVERYWHERE if topic == ANY_TARGET else topic
    show_output(line_text(f"{done['participantId']} in {where}", "bold"))
    every = [*before, *(each for each in now if each not in before)]
    if not every:
        show_output(line_text("It may send nothing there; --add or --profile lets it."))
        return
    show_output(
        build_table(("BEFORE", "NOW", "MAY SEND"), [_row(each, before, now) for each in every])
    )


def _row(capability: str, before: Sequence[str], now: Sequence[str]) -> list[Any]:
    was, is_so = capability in before, capability in now
    style = "" if was == is_so else "green" if is_so else "red"
    return [
        line_text("yes" if was else "no", "dim"),
        line_text("yes" if is_so else "no", style),
        line_text(capability, style),
    ]


def _is_in_force(done: Answer, wanted: _CapabilityUpdate, party: str) -> bool:
    now = done["newCapabilities"]
    stands = [f"it may still not send {each}" for each in wanted.add if each not in now]
    stands += [f"it may still send {each}" for each in wanted.remove if each in now]
    for each in stands:
        told = f"comity: {each}; see what else decides with `comity grants --subject {party}`"
        click.echo(line_text(told), err=True)
    return not stands


@topic_command.command("join")
@click.argument("name", shell_complete=complete_topics)
@click.option("--as", "alias", metavar="ALIAS", help="Be called so, where nobody shows a key.")
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in DeliveryMode]),
    default=str(DeliveryMode.ALL),
    show_default=True,
    help="Be given everything, or what is for all or has to do with you.",
)
@click.option("--plain", "is_plain", is_flag=True, help="Lines alone, at a terminal too.")
@click.option("--stay", "is_staying", is_flag=True, help="Listen on when the input has ended.")
@url_option
@json_option
def join_command(name: str, url: str, **wishes: Any) -> int:
    """Sit down in the topic NAME: see what is said, talk, and decide about proposals.

    What you type is said to all. At a terminal what was said scrolls by, and proposals that wait
    stand below it: Tab shows one in full, and then a approves it, which has it done by whom it was
    proposed to, and d declines it. Elsewhere lines go out and come in; with --json each envelope is
    a line.

    \b
    /to PARTY TEXT                say it to one party
    /propose PARTY TOOL [ARGS]    suggest a call; ARGS are KEY=VALUE or a JSON object
    /call PARTY TOOL [ARGS]       make it, or propose it where you may not
    /show N, /approve N, /decline N [WHY]    the proposal with that number
    /who, /proposals, /help, /quit
    """
    # Loaded only now: whoever lists topics does not wait for what talks in them.
    from comity.cli.topics.join import run_topic_session

    return run_topic_session(ApiClient(url), name, wishes)
