"""`comity channels`, `features`, `pushes`, `state` and `turns`."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
import msgspec
from rich.console import RenderableType
from rich.text import Text

from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_servers
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import DefaultListGroup, json_option, url_option
from comity.cli.output import build_table, describe_age, line_text, show_json, show_output
from comity.errors import Misconfigured
from comity.toolkit.text import count_noun

CHANNELS_PATH = "channels"
_COLUMNS = ("SERVER", "ID", "LABEL", "TYPE", "DIRECTION", "STATE")


@click.group("channels", cls=DefaultListGroup)
def channels_command() -> None:
    """Show the channels of live servers, and say something in one.

    Which of them a server may use is decided in its `live` table; where what comes from them goes,
    in `[[channels]]`.
    """


@channels_command.command("list")
@url_option
@json_option
def list_channels(url: str, *, as_json: bool) -> int:
    """List every channel; the same as `comity channels`.

    The exit status is 1 if one of them is away or forbidden.
    """
    found: list[Answer] = ApiClient(url).get(CHANNELS_PATH)[CHANNELS_PATH]
    if as_json:
        show_json({CHANNELS_PATH: found})
    elif found:
        show_output(build_table(_COLUMNS, [_row(each) for each in found]))
    else:
        show_output(line_text("No server has channels here; a server that has registers them."))
    return SOMETHING_WRONG if any(_is_wrong(each) for each in found) else FINE


@channels_command.command("open")
@click.argument("server")
@click.argument("channel", default="")
@click.option("--type", "kind", default="", help="Of what type a new channel is, as mail.")
@click.option("--address", default="{}", help="Where it is, as JSON.")
@url_option
@json_option
def open_channel(
    server: str, channel: str, kind: str, address: str, url: str, *, as_json: bool
) -> int:
    """Open CHANNEL of SERVER again; or a new one, by --type and --address."""
    if bool(channel) == bool(kind):
        raise Misconfigured("name a channel that is known, or give the --type of a new one")
    told: dict[str, object] = {"server": server}
    told |= {"channel": channel} if channel else {"type": kind, "address": _object(address)}
    done = ApiClient(url).post(CHANNELS_PATH, "open", body=told)
    if as_json:
        show_json(done)
    else:
        show_output(line_text(f"{done['id']} of {server} is open.", "green"))
    return FINE


@channels_command.command("close")
@click.argument("server")
@click.argument("channel")
@url_option
@json_option
def close_channel(server: str, channel: str, url: str, *, as_json: bool) -> int:
    """Close CHANNEL of SERVER: nothing goes there or comes from there any more."""
    done = ApiClient(url).post(CHANNELS_PATH, "close", body={"server": server, "channel": channel})
    if as_json:
        show_json(done)
    else:
        its = "" if done["closed"] else "; its server has not closed it"
        show_output(line_text(f"{channel} of {server} is closed{its}.", "green"))
    return FINE if done["closed"] else SOMETHING_WRONG


@channels_command.command("say")
@click.argument("server")
@click.argument("channel")
@click.argument("text")
@url_option
@json_option
def say(server: str, channel: str, text: str, url: str, *, as_json: bool) -> int:
    """Say TEXT in CHANNEL of SERVER; what is secret in it is hidden first."""
    told = {"server": server, "channel": channel, "text": text}
    done = ApiClient(url).post(CHANNELS_PATH, "say", body=told)
    if as_json:
        show_json(done)
    else:
        named = f", as {done['message']}" if done["message"] else ""
        show_output(line_text(f"It was delivered{named}.", "green"))
    return FINE


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
    """Show what live servers would do by themselves; enable it, or disable it.

    A feature set is enabled by the table `live` of its server, or here; what is disabled here is,
    whatever the configuration says.
    """


@features_command.command("list")
@click.option(
    "--server", metavar="NAME", shell_complete=complete_servers, help="Only of this server."
)
@url_option
@json_option
def list_features(server: str | None, url: str, *, as_json: bool) -> None:
    """List every feature set of every live server; the same as `comity features`."""
    query = {} if server is None else {"server": server}
    _told(ApiClient(url).get(FEATURES_PATH, **query), as_json=as_json)


def _told(found: Answer, *, as_json: bool) -> None:
    servers: list[Answer] = found["servers"]
    if as_json:
        show_json(found)
    elif servers:
        rows = [_features_row(each["server"], one) for each in servers for one in each["features"]]
        columns = ("SERVER", "FEATURE SET", "STANDS", "BY", "USES", "BECAUSE")
        show_output(build_table(columns, rows))
    else:
        show_output(line_text("No live server is there; plain MCP servers have no feature sets."))
        show_output(line_text("One that still starts is there soon: `comity servers` shows it."))


def _features_row(server: str, each: Answer) -> tuple[str | Text, ...]:
    is_on = each["enabled"]
    stands = line_text("enabled" if is_on else "disabled", "green" if is_on else "yellow")
    uses = ", ".join(each["uses"])
    return (server, each["feature"], stands, each["by"], uses, "; ".join(_reasons(each)))


def _reasons(each: Answer) -> list[str]:
    """Why it stands so, until when, and how far it reaches."""
    said = [each["because"]]
    if each["until"]:
        said.append(f"until {each['until'][:16]}")
    if each["enabled"] and "whitelist" in each:
        never = [f"never {pattern}" for pattern in each["blacklist"]]
        said.append(f"reaches {', '.join([*each['whitelist'], *never])}, else asks")
    elif each["enabled"] and each["scoped"]:
        said.append("asks how far it may reach")
    return said


def _order(deed: str, told: str) -> None:
    """Make the command for one decision."""

    @features_command.command(deed, help=told)
    @click.argument("server", shell_complete=complete_servers)
    @click.argument("feature")
    @click.option("--because", metavar="TEXT", default="", help="Why; it is kept with it.")
    @url_option
    @json_option
    def order(server: str, feature: str, because: str, url: str, *, as_json: bool) -> None:
        body = {"server": server, "feature": feature, "justification": because}
        _told(ApiClient(url).post(FEATURES_PATH, deed, body=body), as_json=as_json)


_order("enable", "Let the server SERVER use its feature set FEATURE, or a family as 'memory.*'.")
_order("disable", "Do not let the server SERVER use its feature set FEATURE.")
_order("forget", "Forget what was decided here of SERVER's FEATURE; its configuration decides.")


PUSHES_PATH = "pushes"
_STYLES = {"done": "green", "waiting": "yellow", "failed": "red"}
_PUSHES_COLUMNS = (
    "NUMBER",
    "SERVER",
    "EVENT",
    "CAME",
    "TO",
    "STATE",
    "TRIES",
    "TURN",
    "LAST ERROR",
)


@click.group("pushes", cls=DefaultListGroup)
def pushes_command() -> None:
    """Show what was pushed, where it went, and what came of it.

    Where pushes go is said in [[pushes]] and [[hooks]] of the configuration.
    """


@pushes_command.command("list")
@click.option("--server", default="", help="Only those of this server, or of hook:NAME.")
@url_option
@json_option
def list_pushes(server: str, url: str, *, as_json: bool) -> int:
    """List the last pushes, the newest first; the same as `comity pushes`.

    The exit status is 1 if something has failed.
    """
    found = ApiClient(url).get(PUSHES_PATH, **({"server": server} if server else {}))
    if as_json:
        show_json(found)
    elif found[PUSHES_PATH]:
        show_output(
            build_table(_PUSHES_COLUMNS, [_pushes_row(each) for each in found[PUSHES_PATH]])
        )
        counted = (f"{found[state]} {state}" for state in ("done", "waiting", "failed"))
        show_output(line_text(", ".join(counted)))
    else:
        show_output(line_text("Nothing was pushed; [[pushes]] says where it would go."))
    return SOMETHING_WRONG if found["failed"] else FINE


@pushes_command.command("retry")
@click.argument("number", type=click.IntRange(1))
@url_option
@json_option
def retry(number: int, url: str, *, as_json: bool) -> int:
    """Have the push NUMBER done that has failed; it has no second effect if it had one."""
    done = ApiClient(url).post(PUSHES_PATH, str(number), "retry")
    if as_json:
        show_json(done)
    else:
        show_output(line_text(f"Push {number} waits to be done again.", "green"))
    return FINE


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
    """Show the state that servers left, and its branches; roll it back.

    SERVER is the server's id and SET one of its feature sets, or * for the server as a whole.
    """


@state_command.command("list")
@url_option
@json_option
def list_state(url: str, *, as_json: bool) -> int:
    """Show every feature set with state, and its latest checkpoints; the same as `comity state`."""
    gateway = ApiClient(url)
    found = gateway.get(STATE_PATH)[STATE_PATH]
    if as_json:
        show_json({STATE_PATH: found})
    elif not found:
        show_output(line_text("No server has left any state."))
    else:
        for number, each in enumerate(found):
            tree = gateway.get(STATE_PATH, each["server"], each["feature_set"] or AS_A_WHOLE)
            show_output(*([""] if number else []), *_drawn(tree, MAX_SHOWN))
    return FINE


@state_command.command("show")
@click.argument("server")
@click.argument("feature", metavar="SET")
@click.argument("checkpoint", required=False)
@url_option
@json_option
def show_state(
    server: str, feature: str, checkpoint: str | None, url: str, *, as_json: bool
) -> int:
    """Show all checkpoints of SET; or one of them, and what stands in it."""
    gateway = ApiClient(url)
    if checkpoint is not None:
        one = gateway.get(STATE_PATH, server, feature, checkpoint)
        if as_json:
            show_json(one)
        elif "data" in one:
            show_json(one["data"])
        else:
            show_output(line_text(f"Only server {server} has this state. {_why(one)}"))
        return FINE
    tree = gateway.get(STATE_PATH, server, feature)
    if as_json:
        show_json(tree)
    else:
        show_output(*_drawn(tree))
    return FINE


@state_command.command("rollback")
@click.argument("server")
@click.argument("feature", metavar="SET")
@click.argument("checkpoint")
@url_option
@json_option
def roll_back(server: str, feature: str, checkpoint: str, url: str, *, as_json: bool) -> int:
    """Have SERVER go back to CHECKPOINT of SET; what follows from there is another branch.

    The exit status is 1 if the server does not; then everything is as it was.
    """
    done = ApiClient(url).post(
        STATE_PATH, server, feature, "rollback", body={"checkpoint": checkpoint}
    )
    if as_json:
        show_json(done)
    elif done["success"]:
        show_output(line_text(f"{server} is at {checkpoint} of {feature}.", "green"))
    else:
        reason = done["reason"] or "it says no reason"
        show_output(line_text(f"{server} is not rolled back: {reason}", "red"))
    return FINE if done["success"] else SOMETHING_WRONG


@state_command.command("forget")
@click.argument("server")
@click.argument("feature", metavar="SET")
@url_option
@json_option
def forget(server: str, feature: str, url: str, *, as_json: bool) -> int:
    """Drop all that is kept of SET; the server's next call of it begins with nothing."""
    done = ApiClient(url).post(STATE_PATH, server, feature, "forget")
    if as_json:
        show_json(done)
    else:
        dropped = count_noun(done["dropped"], "checkpoint")
        show_output(line_text(f"Removed {dropped} of {feature} at {server}.", "green"))
    return FINE


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
            line_text(f"  ({left_out} before these; `comity state show` has them all)", "dim")
        )
    rows = [_state_row(prefix, each) for prefix, each in lines[left_out:]]
    return [*shown, build_table(("CHECKPOINT", "HOLDS", "BYTES", "SINCE", "NOTE"), rows)]


def draw_branches(checkpoints: Sequence[Answer]) -> Iterator[Line]:
    """Each checkpoint below the one that it follows, behind the lines of its branch.

    What follows one by one stays in its column; only where there are two ways, each gets its own.
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
        *(["its server no longer has it"] if node["is_lost"] else []),
        *([_why(node)] if node["not_kept_because"] else []),
    ]
    return line_text(
        "; ".join(said), "red" if node["not_kept_because"] or node["is_lost"] else "green"
    )


def _why(node: Answer) -> str:
    reason = node["not_kept_because"]
    return f"its state is not kept: {reason}" if reason else ""


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
    "WHEN",
)


@click.group("turns", cls=DefaultListGroup)
def turns_command() -> None:
    """Say something to a model, and show the last turns.

    Of each turn: why it was taken, by which model, and what came of it.
    """


@turns_command.command("list")
@click.option("--conversation", metavar="NAME", default="", help="Only of this conversation.")
@url_option
@json_option
def list_turns(conversation: str, url: str, *, as_json: bool) -> int:
    """List the last turns; the same as `comity turns`."""
    query = {"conversation": conversation} if conversation else {}
    found = ApiClient(url).get(TURNS_PATH, **query)["turns"]
    if as_json:
        show_json({"turns": found})
    elif found:
        show_output(build_table(_TURNS_COLUMNS, [_turns_row(each) for each in found]))
    else:
        show_output(line_text('No turn was taken yet; begin one with `comity turns say "hello"`.'))
    return FINE


@turns_command.command("show")
@click.argument("id")
@url_option
@json_option
def show_turn(id: str, url: str, *, as_json: bool) -> int:
    """Show the turn ID: what was asked and said, and who had to do with it."""
    one = ApiClient(url).get(TURNS_PATH, id)
    if as_json:
        show_json(one)
    else:
        show_output(build_table(_TURNS_COLUMNS, [_turns_row(one)]))
        show_output(line_text(one["asked"] or "(went on)", "bold"))
        show_output(line_text(one["said"] or one["error"] or "(nothing was said yet)"))
    return SOMETHING_WRONG if one["error"] else FINE


@turns_command.command("say")
@click.argument("text")
@click.option(
    "--conversation", metavar="NAME", default="main", show_default=True, help="Where it is said."
)
@url_option
@json_option
def say_to_model(text: str, conversation: str, url: str, *, as_json: bool) -> int:
    """Say TEXT to a model, and show its words as they come.

    Who may is a grant of turn/take on conversations/NAME.
    """
    gateway = ApiClient(url)
    id = gateway.post(TURNS_PATH, body={"text": text, "conversation": conversation})["id"]
    known, one = 0, gateway.get(TURNS_PATH, id, wait="0")
    while True:
        known += len(one["words"])
        if not as_json:
            click.echo(one["words"], nl=False)
        if one["is_over"]:
            break
        one = gateway.get(TURNS_PATH, id, after=str(known), wait=WAIT)
    if as_json:
        show_json(one)
    else:
        click.echo("")
    if one["error"]:
        click.echo(f"comity: {one['error']}", err=True)
    return SOMETHING_WRONG if one["error"] else FINE


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
