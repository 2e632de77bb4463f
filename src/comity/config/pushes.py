"""What can be decided of pushes, as rows: where each goes, which webhooks come in, and bounds."""

from collections.abc import Mapping
from typing import Any, Final

from comity.config.kinds import DURATION, TEXT, Kind, number, one_of, table_of
from comity.config.members import all_of, members_of, shaped
from comity.config.setting import Setting
from comity.rules.channels import place_in
from comity.rules.documents import Written
from comity.rules.pushes import HookRow, Row, why_no_template
from comity.rules.topics import is_topic
from comity.wire.errors import MalformedMessage
from comity.wire.inbound_hooks import ALGORITHMS, HookKind
from comity.wire.pushes import Goal, Route

MOST_ROWS: Final = 1_000
_SERVER: Final = r"\*|[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_SET: Final = r"\*|[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?"
_OF_TURNS: Final = ("conversation", "party", "say_in")


def _to(written: Written) -> str:
    goal, _, topic = written.text().partition(":")
    is_fine = is_topic(topic) if goal == Goal.TOPIC else goal in list(Goal) and not topic
    if not is_fine or written.text().endswith(":"):
        raise written.wrong("must be one of: nothing, events, webhooks, turn, topic:NAME")
    return written.text()


def _template(written: Written) -> str:
    if problem := why_no_template(written.text()) or _too_long(written.text()):
        raise written.wrong(problem)
    return written.text()


def _too_long(text: str) -> str:
    return "" if len(text) <= 4_000 else "has more than 4000 characters"


def _places(written: Written) -> tuple[str, ...]:
    for each in written.items():
        try:
            place_in(each.text())
        except MalformedMessage as wrong:
            raise each.wrong(str(wrong)) from None
    return tuple(each.text() for each in written.items())


_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_GOAL: Final[Mapping[str, tuple[Kind, str]]] = {
    "to": (
        Kind(_to, {"type": "string"}),
        "what follows: nothing, events, webhooks, turn or topic:NAME",
    ),
    "conversation": (
        Kind(_template, {"type": "string"}),
        "in which conversation a turn is: a name; one for each event, {event}; or {/field}",
    ),
    "party": (shaped(r"(agent|system):[!-~]{1,120}", "agent:host"), "in whose name a turn is"),
    "say_in": (Kind(_places, _TEXTS), "where a turn is answered: topic:NAME, channel:SERVER/ID"),
}
_PUSHES: Final[Mapping[str, tuple[Kind, str]]] = {
    "from": (
        shaped(f"({_SERVER})(/({_SET}))?", "SERVER/FEATURE_SET, as ci/builds.* or */*"),
        "whose pushes, and by which feature sets",
    ),
    **_GOAL,
}
_HOOKS: Final[Mapping[str, tuple[Kind, str]]] = {
    "name": (
        shaped(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", "a name, as github"),
        "its address is /hooks/NAME",
    ),
    "kind": (one_of(*HookKind), "how it is signed"),
    "secret_file": (TEXT, "the file of the secret, or of several, each in a line"),
    "header": (
        shaped(r"[A-Za-z0-9-]{1,100}", "a header, as X-Signature"),
        "of the kind plain: where the HMAC of the body stands",
    ),
    "algorithm": (one_of(*ALGORITHMS), "of the kind plain: how it is made"),
    "id": (
        shaped(r"body|header:[A-Za-z0-9-]{1,100}|/[^\x00-\x1f]{1,200}", "header:X-Id, /id or body"),
        "where its event's id stands, if not where its kind has it",
    ),
    "content": (
        Kind(_template, {"type": "string"}),
        "what is told of it, with {/fields} of its body; without this, the body",
    ),
    **_GOAL,
}


def _route(said: dict[str, Any], entry: Written) -> Route:
    goal, _, topic = str(said.pop("to")).partition(":")
    for_turns = {name: said.pop(name) for name in _OF_TURNS if name in said}
    if for_turns and goal != Goal.TURN:
        raise entry.wrong(f'has {next(iter(for_turns))}, which is for to = "turn"')
    if goal == Goal.TURN:
        for_turns.setdefault("conversation", "{event}")
    return Route(Goal(goal), topic, **for_turns)


def _push_row(entry: Written) -> Row:
    said = members_of(entry, _PUSHES, ("from", "to"))
    server, _, feature = str(said["from"]).partition("/")
    return Row(server, feature or "*", _route(said, entry))


def _hook_row(entry: Written) -> HookRow:
    said = members_of(entry, _HOOKS, ("name", "kind", "secret_file", "to"))
    route, kind = _route(said, entry), HookKind(said.pop("kind"))
    if kind is HookKind.PLAIN and "header" not in said:
        raise entry.wrong("needs its header: where the HMAC of the body stands")
    if kind is not HookKind.PLAIN and not {"header", "algorithm"}.isdisjoint(said):
        raise entry.wrong(f"has header or algorithm, which the kind {kind} has by itself")
    return HookRow(**said, kind=kind, route=route)


def _hooks(written: Written) -> tuple[HookRow, ...]:
    found = all_of(_hook_row, MOST_ROWS)(written)
    if len({each.name for each in found}) < len(found):
        raise written.wrong("names one webhook twice; rename one")
    return found


PUSHES: Final = (
    Setting(
        "pushes",
        "",
        Kind(
            all_of(_push_row, MOST_ROWS),
            {"type": "array", "items": table_of(_PUSHES, required=["from", "to"])},
        ),
        "where what servers push goes; the first row counts that names it",
        "push_rows",
    ),
    Setting(
        "hooks",
        "",
        Kind(
            _hooks,
            {
                "type": "array",
                "items": table_of(_HOOKS, required=["name", "kind", "secret_file", "to"]),
            },
        ),
        "webhooks that come in at /hooks/NAME, and where they go",
        "hook_rows",
    ),
    Setting(
        "push_rate",
        "limits",
        number(0, 10_000_000),
        "events that one server may push in a minute, at each node; 0: any",
    ),
    Setting(
        "push_set_rate",
        "limits",
        number(0, 10_000_000),
        "of them, by one feature set; 0: any",
    ),
    Setting("push_bytes", "limits", number(1024, 2**24), "the longest event that is pushed"),
    Setting(
        "push_waiting",
        "limits",
        number(1, 10_000_000),
        "events of one server that wait for what follows",
    ),
    Setting(
        "push_remembered",
        "limits",
        DURATION,
        "how long it is known that an event was pushed, so that it counts once",
    ),
)
