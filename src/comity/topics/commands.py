"""`comity topics`."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click

from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_topics
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import CliGroup, DefaultListGroup, current_options, gateway_options
from comity.cli.output import (
    build_table,
    describe_age,
    line_text,
    show_document,
    show_hint,
    show_output,
)
from comity.cli.target import connect_gateway
from comity.errors import Misconfigured, Unavailable
from comity.policy.grants import ANY_TARGET
from comity.topics.rules import PROFILES, SEND, DeliveryMode, can_send_kind

EVERYWHERE: Final = "every topic"


@click.group("topics", cls=DefaultListGroup)
def topics_command() -> None:
    """List and join topics, and set capabilities.

    In a topic agents and people work together. A member that may not do something proposes it, and
    a member that may do it carries it out.

    \b
    Examples:
      comity topics
      comity topics join deploys
      comity topics capabilities set deploys agent:ci --profile propose
    """


@topics_command.command("list")
@gateway_options
def list_topics() -> None:
    """List topics that have members.

    \b
    Examples:
      comity topics list
    """
    found = connect_gateway().get("topics")
    topics: list[Answer] = found["topics"]

    def print_table() -> None:
        if topics:
            rows = [(each["topic"], str(each["members"])) for each in topics]
            show_output(build_table(("TOPIC", "MEMBERS"), rows))
        else:
            show_output(line_text("No topic has members."))
            show_hint("`comity topics join NAME` opens one.")
        left_out = found["total"] - len(topics)
        if left_out > 0:
            show_output(line_text(f"and {left_out} more", "dim"))

    show_document(found, print_table, [each["topic"] for each in topics])


@topics_command.command("show")
@click.argument("name", shell_complete=complete_topics)
@gateway_options
def show_topic(name: str) -> None:
    """Show the members of a topic and their capabilities.

    MISSED counts envelopes that a slow or disconnected member has not received yet.

    \b
    Examples:
      comity topics show deploys
    """
    found = connect_gateway().get("topics", name)
    members: list[Answer] = found["participants"]
    names = [each["participantId"] for each in members]
    show_document(found, lambda: _show_members(members), names)


def _show_members(found: Sequence[Answer]) -> None:
    # A member of this node needs no column for its node.
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
    show_output(
        build_table(("PRINCIPAL", "MODE", "CONNECTED", "MISSED", *node, "CAPABILITIES"), rows)
    )


@topics_command.group("capabilities", cls=CliGroup)
def capabilities() -> None:
    """Show and set what a member may send in a topic.

    \b
    Examples:
      comity topics capabilities get deploys agent:ci
      comity topics capabilities set deploys agent:ci --add chat
    """


@capabilities.command("get")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("principal")
@gateway_options
def get_capabilities(topic: str, principal: str) -> None:
    """Show what a principal may send in a topic.

    TOPIC can be '*' for every topic.

    \b
    Examples:
      comity topics capabilities get deploys agent:ci
    """
    with _store_advice(topic, principal):
        done = _CapabilityUpdate(connect_gateway(), topic, principal).apply((), (), None)
    document = {"topic": topic, **done}
    show_document(document, lambda: _show_change(topic, done), done["newCapabilities"])


@capabilities.command("set")
@click.argument("topic", shell_complete=complete_topics)
@click.argument("principal")
@click.option("--add", metavar="CAPABILITY", multiple=True, help="Allow this.")
@click.option("--remove", metavar="CAPABILITY", multiple=True, help="Do not allow this.")
@click.option(
    "--profile",
    type=click.Choice(list(PROFILES)),
    metavar="PROFILE",
    help="Allow exactly this profile, and what --add names.",
)
@gateway_options
def set_capabilities(topic: str, principal: str, **said: Any) -> int:
    """Set what a principal may send in a topic.

    TOPIC can be '*' for every topic. A CAPABILITY is a kind of envelope such as chat or
    mcp/request:tools/call, or a pattern such as 'mcp/proposal:*'. The change takes effect at once,
    on every node. Exits with 1 if another grant or rule prevents the change.

    \b
    Profiles:
      full       mcp/*, chat
      propose    mcp/proposal:*, mcp/response:*, chat
      respond    mcp/response:*, chat
      read-only  mcp/request:resources/read, mcp/request:*/list,
                 mcp/response:*, chat
      tools      mcp/request:tools/*, mcp/response:tools/*, chat

    \b
    Examples:
      comity topics capabilities set deploys agent:ci --profile propose
      comity topics capabilities set deploys agent:ci --add chat
    """
    if not said["add"] and not said["remove"] and said["profile"] is None:
        raise Misconfigured("name a change with --add, --remove or --profile")
    wanted = _CapabilityUpdate(connect_gateway(), topic, principal)
    with _store_advice(topic, principal):
        done = wanted.apply(said["add"], said["remove"], said["profile"])
    document = {"topic": topic, **done}
    show_document(document, lambda: _show_change(topic, done), done["newCapabilities"])
    return DONE if _is_in_force(done, wanted, principal) else FAILED


@contextmanager
def _store_advice(topic: str, principal: str) -> Generator[None]:
    try:
        yield
    except Unavailable as away:
        raise Unavailable(
            f"{away}; or run `comity grants create {principal} '{topic}/CAPABILITY' "
            "--verb topic/send --offline`"
        ) from None


class _CapabilityUpdate:
    """A change of the capabilities of a principal in a topic."""

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
        """Revoke earlier denials of the capabilities that the principal shall have."""
        cursor: dict[str, str] = {"subject": self._party}
        while cursor:
            page = self._gateway.get("grants", **cursor)
            for grant in page["grants"]:
                topic, _, capability = grant["target"].partition("/")
                is_denial = (grant["effect"], grant["verb"], topic) == ("deny", SEND, self._topic)
                if is_denial and _is_covered(capability, whole):
                    named = {name: grant[name] for name in ("subject", "verb", "target")}
                    self._gateway.post("grants", "delete", body=named)
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
        show_output(line_text("It may send nothing there."))
        return
    show_output(
        build_table(("BEFORE", "NOW", "CAPABILITY"), [_row(each, before, now) for each in every])
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
        told = f"comity: {each}; `comity grants list --principal {party}` shows other grants"
        click.echo(line_text(told), err=True)
    return not stands


@topics_command.command("join")
@click.argument("name", shell_complete=complete_topics)
@click.option("--as", "alias", metavar="NAME", help="Your name, if the gateway needs no keys.")
@click.option(
    "--mode",
    type=click.Choice([str(mode) for mode in DeliveryMode]),
    default=str(DeliveryMode.ALL),
    show_default=True,
    help="Receive everything, or only what concerns you.",
)
@click.option("--plain", "is_plain", is_flag=True, help="Print lines, also at a terminal.")
@click.option("--stay", "is_staying", is_flag=True, help="Stay after the end of the input.")
@gateway_options
def join_command(name: str, **wishes: Any) -> int:
    """Join a topic, talk, and decide about proposals.

    The topic receives what you type. At a terminal the open proposals are below the messages. Tab
    shows a proposal in full, then `a` approves it and `d` declines it. Without a terminal the
    command reads and writes lines, with -o json one envelope per line.

    \b
    /to PRINCIPAL TEXT                send to one member
    /propose PRINCIPAL TOOL [ARGS]    propose a call; ARGS are KEY=VALUE or JSON
    /call PRINCIPAL TOOL [ARGS]       call, or propose if you may not call
    /show N, /approve N, /decline N [REASON]    the proposal with that number
    /who, /proposals, /help, /quit

    \b
    Examples:
      comity topics join deploys
      comity topics join deploys --as ana --plain
    """
    # Imported here because the other commands of this module do not need it.
    from comity.cli.topics.join import run_topic_session

    as_json = current_options().is_for_programs
    return run_topic_session(connect_gateway(), name, {**wishes, "as_json": as_json})
