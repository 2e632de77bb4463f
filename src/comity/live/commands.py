"""`comity channels`, `chat`, `pushes`, `servers features` and `servers state`."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from comity.cli.api_client import Answer
from comity.cli.completion import complete_servers
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import (
    DefaultListGroup,
    check_option,
    confirm,
    current_options,
    gateway_options,
    limit_option,
    reason_option,
    yes_option,
)
from comity.cli.output import (
    build_table,
    describe_age,
    line_text,
    show_document,
    show_hint,
    show_json,
    show_output,
)
from comity.cli.target import connect_gateway
from comity.errors import Misconfigured
from comity.toolkit.text import count_noun

CHANNELS_PATH = "channels"
_COLUMNS = ("SERVER", "ID", "LABEL", "TYPE", "DIRECTION", "STATE")


@click.group("channels", cls=DefaultListGroup)
def channels_command() -> None:
    """Manage the channels of live servers.

    The `live` table of a server decides which channels it may use. [[channels]] decides where
    incoming messages go.

    \b
    Examples:
      comity channels
      comity channels send mail inbox "Hello"
    """


@channels_command.command("list")
@check_option("a channel is away or forbidden")
@gateway_options
def list_channels(*, check: bool) -> int:
    """List channels with their state.

    \b
    Examples:
      comity channels list
      comity channels list --check
    """
    found: list[Answer] = connect_gateway().get(CHANNELS_PATH)[CHANNELS_PATH]

    def print_table() -> None:
        if found:
            show_output(build_table(_COLUMNS, [_row(each) for each in found]))
        else:
            show_output(line_text("No server has registered a channel."))

    show_document({CHANNELS_PATH: found}, print_table, [_channel_name(each) for each in found])
    return FAILED if check and any(_is_wrong(each) for each in found) else DONE


def _channel_name(channel: Answer) -> str:
    return f"{channel['server']} {channel['id']}"


@channels_command.command("open")
@click.argument("server", shell_complete=complete_servers)
@click.argument("channel", default="")
@click.option("--type", "kind", default="", metavar="TYPE", help="Type of a new channel.")
@click.option("--address", default="{}", metavar="JSON", help="Address of a new channel.")
@gateway_options
def open_channel(server: str, channel: str, kind: str, address: str) -> None:
    """Open a channel of a server.

    Name a known CHANNEL, or give the --type and --address of a new one.

    \b
    Examples:
      comity channels open mail inbox
      comity channels open mail --type mail --address '{"to": "a@example.org"}'
    """
    if bool(channel) == bool(kind):
        raise Misconfigured("name a known channel, or give the --type of a new one")
    told: dict[str, object] = {"server": server}
    told |= {"channel": channel} if channel else {"type": kind, "address": _object(address)}
    done = connect_gateway().post(CHANNELS_PATH, "open", body=told)
    text = line_text(f"Opened {done['id']} of {server}.", "green")
    show_document(done, lambda: show_output(text), [f"{server} {done['id']}"])


@channels_command.command("close")
@click.argument("server", shell_complete=complete_servers)
@click.argument("channel")
@gateway_options
def close_channel(server: str, channel: str) -> int:
    """Close a channel of a server.

    Exits with 1 if the server did not close it. Comity uses the channel no more in any case.

    \b
    Examples:
      comity channels close mail inbox
    """
    body = {"server": server, "channel": channel}
    done = connect_gateway().post(CHANNELS_PATH, "close", body=body)
    note = "" if done["closed"] else " The server has not closed it."
    text = line_text(f"Closed {channel} of {server}.{note}", "green")
    show_document(done, lambda: show_output(text), [f"{server} {channel}"])
    return DONE if done["closed"] else FAILED


@channels_command.command("send")
@click.argument("server", shell_complete=complete_servers)
@click.argument("channel")
@click.argument("text")
@gateway_options
def send_to_channel(server: str, channel: str, text: str) -> None:
    """Send a text to a channel of a server.

    Comity removes secrets from the text first.

    \b
    Examples:
      comity channels send mail inbox "The build is green."
    """
    body = {"server": server, "channel": channel, "text": text}
    done = connect_gateway().post(CHANNELS_PATH, "send", body=body)
    named = f" as {done['message']}" if done["message"] else ""
    told = line_text(f"Delivered{named}.", "green")
    show_document(done, lambda: show_output(told), [done["message"] or ""])


def _object(text: str) -> object:
    try:
        return msgspec.json.decode(text, type=dict[str, object])
    except msgspec.DecodeError as problem:
        raise Misconfigured(f"--address is no JSON object: {problem}") from None


def _is_wrong(one: Answer) -> bool:
    return one["state"] in ("away", "forbidden")


def _row(one: Answer) -> tuple[str | Text, ...]:
    state = line_text(one["state"], "green" if one["state"] == "open" else "red")
    return (one["server"], one["id"], one["label"], one["type"], one["direction"], state)


FEATURES_PATH = "features"


@click.group("features", cls=DefaultListGroup)
def features_command() -> None:
    """Enable or disable features of live servers.

    The `live` table of a server enables features, and so does this command. A feature that is
    disabled here stays disabled.

    \b
    Examples:
      comity servers features
      comity servers features enable memory memory.recall
    """


@features_command.command("list")
@click.option("--server", metavar="NAME", shell_complete=complete_servers, help="Only this server.")
@gateway_options
def list_features(server: str | None) -> None:
    """List features of live servers.

    \b
    Examples:
      comity servers features list
      comity servers features list --server memory
    """
    query = {} if server is None else {"server": server}
    _show_features(connect_gateway().get(FEATURES_PATH, **query))


def _show_features(found: Answer) -> None:
    features = [(each["server"], one) for each in found["servers"] for one in each["features"]]

    def print_table() -> None:
        if found["servers"]:
            columns = ("SERVER", "FEATURE", "STATUS", "DECIDED BY", "USES", "REASON")
            rows = [_features_row(*each) for each in features]
            show_output(build_table(columns, rows, extra=("REASON", "DECIDED BY")))
        else:
            show_output(line_text("There is no live server. Plain MCP servers have no features."))
            show_hint("A live server may still start: see `comity servers`.")

    show_document(found, print_table, [f"{server} {one['feature']}" for server, one in features])


def _features_row(server: str, each: Answer) -> tuple[str | Text, ...]:
    is_on = each["enabled"]
    stands = line_text("enabled" if is_on else "disabled", "green" if is_on else "yellow")
    uses = ", ".join(each["uses"])
    return (server, each["feature"], stands, each["by"], uses, "; ".join(_reasons(each)))


def _reasons(each: Answer) -> list[str]:
    """Return the reason of the status, its end, and the scope."""
    said = [each["reason"]]
    if each["until"]:
        said.append(f"until {each['until'][:16]}")
    if each["enabled"] and "whitelist" in each:
        never = [f"never {pattern}" for pattern in each["blacklist"]]
        said.append(f"reaches {', '.join([*each['whitelist'], *never])}, others need approval")
    elif each["enabled"] and each["scoped"]:
        said.append("requests its scope")
    return said


def _make_feature_command(action: str, help_text: str) -> None:
    """Make the command for one decision."""
    example = f"comity servers features {action} memory memory.recall"

    @features_command.command(action, help=f"{help_text}\n\n\b\nExamples:\n  {example}")
    @click.argument("server", shell_complete=complete_servers)
    @click.argument("feature")
    @reason_option
    @gateway_options
    def order(server: str, feature: str, reason: str | None) -> None:
        body = {"server": server, "feature": feature, "justification": reason or ""}
        _show_features(connect_gateway().post(FEATURES_PATH, action, body=body))


_make_feature_command("enable", "Enable a feature, or a family such as 'memory.*'.")
_make_feature_command("disable", "Disable a feature of a server.")
_make_feature_command("reset", "Delete a decision. Then the configuration decides.")


PUSHES_PATH = "pushes"
_STYLES = {"done": "green", "waiting": "yellow", "failed": "red"}
_PUSHES_COLUMNS = (
    "NUMBER",
    "SERVER",
    "EVENT",
    "RECEIVED",
    "TARGET",
    "STATE",
    "ATTEMPTS",
    "TURN",
    "LAST ERROR",
)


@click.group("pushes", cls=DefaultListGroup)
def pushes_command() -> None:
    """List and retry pushed events.

    [[pushes]] and [[inbound_webhooks]] of the configuration decide where pushed events go.

    \b
    Examples:
      comity pushes
      comity pushes retry 17
    """


@pushes_command.command("list")
@click.option("--server", default="", metavar="NAME", help="Only this server, or hook:NAME.")
@check_option("an event has failed")
@limit_option()
@gateway_options
def list_pushes(server: str, limit: int | None, *, check: bool) -> int:
    """List pushed events, the newest first.

    \b
    Examples:
      comity pushes list
      comity pushes list --server mail --check
    """
    found = connect_gateway().get(PUSHES_PATH, **({"server": server} if server else {}))
    pushes: list[Answer] = found[PUSHES_PATH][:limit]

    def print_table() -> None:
        if pushes:
            rows = [_pushes_row(each) for each in pushes]
            show_output(build_table(_PUSHES_COLUMNS, rows, extra=("TURN", "ATTEMPTS", "TARGET")))
            counted = (f"{found[state]} {state}" for state in ("done", "waiting", "failed"))
            show_output(line_text(", ".join(counted)))
        else:
            show_output(line_text("There are no pushed events."))

    show_document({**found, PUSHES_PATH: pushes}, print_table, [each["number"] for each in pushes])
    return FAILED if check and found["failed"] else DONE


@pushes_command.command("retry")
@click.argument("number", type=click.IntRange(1))
@gateway_options
def retry(number: int) -> None:
    """Process a failed event again.

    An event that had its effect already has no second one.

    \b
    Examples:
      comity pushes retry 17
    """
    done = connect_gateway().post(PUSHES_PATH, str(number), "retry")
    told = line_text(f"Comity processes event {number} again.", "green")
    show_document(done, lambda: show_output(told), [number])


def _pushes_row(one: Answer) -> tuple[str | Text, ...]:
    return (
        *(
            str(one["number"]),
            one["server"],
            one["event"],
            describe_age(one["received_at"]),
            one["to"],
        ),
        line_text(one["state"], _STYLES.get(one["state"], "")),
        *(str(one["attempts"]), one["inference"] or "", one["last_error"] or ""),
    )


STATE_PATH: Final = "state"
AS_A_WHOLE: Final = "*"
"""How the state of a server is named whose tools say no feature set."""

MAX_SHOWN: Final = 12
CURRENT: Final = "\N{BLACK CIRCLE}"
OTHER: Final = "\N{WHITE CIRCLE}"

type Line = tuple[str, Answer]


@click.group("state", cls=DefaultListGroup)
def state_command() -> None:
    """Show, roll back and delete the state of servers.

    FEATURE is a feature of the server, or * for the whole server.

    \b
    Examples:
      comity servers state
      comity servers state rollback notes '*' c-17
    """


@state_command.command("list")
@gateway_options
def list_state() -> None:
    """List stored state with its latest checkpoints.

    \b
    Examples:
      comity servers state list
    """
    gateway = connect_gateway()
    found: list[Answer] = gateway.get(STATE_PATH)[STATE_PATH]

    def print_table() -> None:
        if not found:
            show_output(line_text("No server has stored state."))
        for number, each in enumerate(found):
            tree = gateway.get(STATE_PATH, each["server"], each["feature_set"] or AS_A_WHOLE)
            show_output(*([""] if number else []), *_drawn(tree, MAX_SHOWN))

    names = [f"{each['server']} {each['feature_set'] or AS_A_WHOLE}" for each in found]
    show_document({STATE_PATH: found}, print_table, names)


@state_command.command("show")
@click.argument("server", shell_complete=complete_servers)
@click.argument("feature")
@click.argument("checkpoint", required=False)
@gateway_options
def show_state(server: str, feature: str, checkpoint: str | None) -> None:
    """Show all checkpoints, or the content of one.

    \b
    Examples:
      comity servers state show notes '*'
      comity servers state show notes '*' c-17
    """
    gateway = connect_gateway()
    if checkpoint is None:
        tree = gateway.get(STATE_PATH, server, feature)
        names = [each["checkpoint"] for each in tree["checkpoints"]]
        show_document(tree, lambda: show_output(*_drawn(tree)), names)
        return
    one = gateway.get(STATE_PATH, server, feature, checkpoint)

    def print_table() -> None:
        if "data" in one:
            show_json(one["data"])
        else:
            show_output(line_text(f"Only server {server} has this state. {_why(one)}"))

    show_document(one, print_table, [checkpoint])


@state_command.command("rollback")
@click.argument("server", shell_complete=complete_servers)
@click.argument("feature")
@click.argument("checkpoint")
@gateway_options
def roll_back(server: str, feature: str, checkpoint: str) -> int:
    """Roll a server back to a checkpoint.

    Later changes form a new branch. Exits with 1 if the server refuses. Then nothing changes.

    \b
    Examples:
      comity servers state rollback notes '*' c-17
    """
    done = connect_gateway().post(
        STATE_PATH, server, feature, "rollback", body={"checkpoint": checkpoint}
    )

    def print_table() -> None:
        if done["success"]:
            told = f"Rolled {server} back to {checkpoint} of {feature}."
            show_output(line_text(told, "green"))
        else:
            reason = done["reason"] or "it gives no reason"
            show_output(line_text(f"{server} is not rolled back: {reason}", "red"))

    show_document(done, print_table, [checkpoint])
    return DONE if done["success"] else FAILED


@state_command.command("delete")
@click.argument("server", shell_complete=complete_servers)
@click.argument("feature")
@yes_option
@gateway_options
def delete_state(server: str, feature: str, *, yes: bool) -> None:
    """Delete all stored state of a feature.

    The next call of the server begins without state.

    \b
    Examples:
      comity servers state delete notes '*'
    """
    confirm(f"Delete all state of {feature} of {server}?", yes=yes)
    done = connect_gateway().post(STATE_PATH, server, feature, "delete")
    dropped = count_noun(done["dropped"], "checkpoint")
    told = line_text(f"Deleted {dropped} of {feature} of {server}.", "green")
    show_document(done, lambda: show_output(told), [f"{server} {feature}"])


def _drawn(tree: Answer, maximum: int | None = None) -> list[RenderableType]:
    """A tree under its name; of a long one the end, which counts."""
    checkpoints = tree["checkpoints"]
    head = Text.assemble(
        line_text(tree["server"], "bold"),
        "  ",
        line_text(tree["feature_set"] or "as a whole", "bold"),
    )
    lines = list(draw_branches(checkpoints))
    left_out = 0 if maximum is None else max(0, len(lines) - maximum)
    shown: list[RenderableType] = [head]
    if left_out:
        shown.append(
            line_text(f"  ({left_out} earlier; `comity servers state show` lists all)", "dim")
        )
    rows = [_state_row(prefix, each) for prefix, each in lines[left_out:]]
    return [*shown, build_table(("CHECKPOINT", "CONTENT", "BYTES", "AGE", "NOTE"), rows)]


def draw_branches(checkpoints: Sequence[Answer]) -> Iterator[Line]:
    """Each checkpoint below the one that it follows, behind the lines of its branch.

    A checkpoint with one successor keeps its column. With several, each branch has its own column.
    """
    after: dict[str | None, list[Answer]] = {}
    for each in checkpoints:
        after.setdefault(each["follows"], []).append(each)
    waiting = [("", "", each) for each in reversed(after.get(None, []))]
    while waiting:
        first, rest, node = waiting.pop()
        yield first, node
        following = after.get(node["checkpoint"], [])
        if len(following) == 1:
            waiting.append((rest, rest, following[0]))
            continue
        for each in reversed(following):
            is_last = each is following[-1]
            fork, onward = ("└─", "  ") if is_last else ("├─", "│ ")
            waiting.append((rest + fork, rest + onward, each))


def _state_row(prefix: str, node: Answer) -> tuple[str | Text, ...]:
    is_current = node["is_current"]
    style = "bold green" if is_current else "" if node["is_on_line"] else "dim"
    mark = f"{prefix}{CURRENT if is_current else OTHER} "
    name = Text.assemble((mark, style), line_text(node["checkpoint"], style))
    holds = line_text(node["holds"], style)
    return name, holds, str(node["bytes"]), describe_age(node["at"]), _note(node)


def _note(node: Answer) -> Text:
    said = [
        *(["current"] if node["is_current"] else []),
        *(["the server has lost it"] if node["is_lost"] else []),
        *([_why(node)] if node["drop_reason"] else []),
    ]
    return line_text("; ".join(said), "red" if node["drop_reason"] or node["is_lost"] else "green")


def _why(node: Answer) -> str:
    reason = node["drop_reason"]
    return f"its state is not stored: {reason}" if reason else ""


TURNS_PATH = "turns"
WAIT = "20"
_TURNS_COLUMNS = (
    "ID",
    "CONVERSATION",
    "CAUSE",
    "MODEL",
    "TOKENS",
    "SERVERS",
    "TOOLS",
    "STATE",
    "AGE",
)


@click.group("chat", cls=DefaultListGroup)
def chat_command() -> None:
    """Talk to a model, and show past turns.

    \b
    Examples:
      comity chat send "What is new?"
      comity chat list
    """


@chat_command.command("list")
@click.option("--conversation", metavar="ID", default="", help="Only this conversation.")
@limit_option()
@gateway_options
def list_turns(conversation: str, limit: int | None) -> None:
    """List the latest turns.

    \b
    Examples:
      comity chat list
      comity chat list --conversation main
    """
    query = {"conversation": conversation} if conversation else {}
    found: list[Answer] = connect_gateway().get(TURNS_PATH, **query)["turns"][:limit]

    def print_table() -> None:
        if found:
            _print_turns(found)
        else:
            show_output(line_text("There are no turns."))
            show_hint('`comity chat send "hello"` starts one.')

    show_document({"turns": found}, print_table, [each["id"] for each in found])


@chat_command.command("show")
@click.argument("id")
@gateway_options
def show_turn(id: str) -> None:
    """Show a turn with its question and answer.

    \b
    Examples:
      comity chat show 06gu44bi
    """
    one = connect_gateway().get(TURNS_PATH, id)

    def print_table() -> None:
        _print_turns([one])
        show_output(line_text(one["asked"] or "(continued)", "bold"))
        show_output(line_text(one["reply"] or one["error"] or "(no answer yet)"))

    show_document(one, print_table, [one["id"]])


@chat_command.command("send")
@click.argument("text")
@click.option(
    "--conversation", metavar="ID", default="main", show_default=True, help="Conversation."
)
@gateway_options
def send_to_model(text: str, conversation: str) -> int:
    """Send a text to a model and print its answer.

    You need a grant of turn/take on conversations/ID. Exits with 1 if the turn fails.

    \b
    Examples:
      comity chat send "What is new?"
      comity chat send "Go on." --conversation planning
    """
    gateway = connect_gateway()
    id = gateway.post(TURNS_PATH, body={"text": text, "conversation": conversation})["id"]
    known, one = 0, gateway.get(TURNS_PATH, id, wait="0")
    is_for_people = not current_options().is_for_programs
    while True:
        known += len(one["text"])
        if is_for_people:
            click.echo(one["text"], nl=False)
        if one["is_over"]:
            break
        one = gateway.get(TURNS_PATH, id, after=str(known), wait=WAIT)
    show_document(one, lambda: click.echo(""), [id])
    if one["error"]:
        click.echo(f"comity: {one['error']}", err=True)
    return FAILED if one["error"] else DONE


def _print_turns(found: list[Answer]) -> None:
    rows = [_turns_row(each) for each in found]
    show_output(build_table(_TURNS_COLUMNS, rows, extra=("TOOLS", "SERVERS", "TOKENS")))


def _turns_row(one: Answer) -> tuple[str | Text, ...]:
    usage, cause = one["usage"], one["cause"]
    servers = [*(f"+{each}" for each in one["injected"]), *(f"~{each}" for each in one["rewrote"])]
    style = {"done": "green", "waiting": "", "decided": ""}.get(one["state"], "red")
    return (
        *(one["id"], f"{one['conversation']}#{one['turn']}"),
        " ".join(filter(None, (cause["origin"], cause["server"]))),
        *(one["model"] or "", f"{usage['inputTokens']}+{usage['outputTokens']}"),
        *(" ".join(servers), str(one["tools_used"])),
        line_text(one["state"], style),
        describe_age(one["at"]),
    )
