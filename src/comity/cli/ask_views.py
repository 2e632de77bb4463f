"""Asks as a gateway tells them, shown at a terminal: as a table, as lines, or one in full."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from comity.cli.asking import Answer, members
from comity.cli.show import stacked, table, width
from comity.rules import ask_words
from comity.wire import asks
from comity.wire.asks import Ask, Kind, State, Verdict

RISKS: Final = {"dangerous": "bold red", "moderate": "yellow", "safe": "green"}
STATES: Final = {"pending": "yellow", "deferred": "yellow", "accepted": "green", "used": "green"}
LONGEST_ARGUMENTS: Final = 1_000


def ask_of(view: Answer) -> Ask:
    """The ask that a gateway told of; what is missing is empty."""
    return Ask(
        id=str(view["id"]),
        kind=Kind(view["kind"]),
        asker=str(view["asker"]),
        server=str(view["server"]),
        tool=str(view["tool"]),
        digest=str(view.get("digest", "")),
        message=str(view.get("message", "")),
        about=members(view.get("about")),
        created_at=_moment(view["created_at"]),
        expires_at=_moment(view["expires_at"]),
        state=State(view["state"]),
        quorum=int(view.get("quorum", 1)),
        trace=str(view.get("trace", "")),
        answers=tuple(_word(each) for each in _list(view.get("answers"))),
    )


def _word(said: object) -> asks.Answer:
    word = members(said)
    reason = str(word.get("reason", ""))
    return asks.Answer(str(word["by"]), Verdict(word["verdict"]), _moment(word["at"]), reason)


def _list(found: object) -> Sequence[object]:
    return cast("list[object]", found) if isinstance(found, list) else ()


def _moment(said: Any) -> datetime:
    return datetime.fromisoformat(str(said)).astimezone(UTC)


def plain(said: str, style: str = "") -> Text:
    """Words that were made harmless already."""
    return Text(said, style=style)


def listed(found: Iterable[Ask]) -> RenderableType:
    """A table; what is asked for stands below the rest where one line has no room for both."""
    asks = ask_words.ordered(found)
    now, ids = datetime.now(UTC), ask_words.short_ids(ask.id for ask in asks)
    has_ended = any(not ask.is_open for ask in asks)
    rows = [_row(ask, now, ids[ask.id], has_ended) for ask in asks]
    state = ("STATE",) if has_ended else ()
    columns = ("ID", "AGE", *state, "RISK", "EXPIRES IN", "WHO", "WHAT")
    widest = [max(map(cell_len, column)) for column in zip(columns, *_texts(rows), strict=True)]
    if sum(widest) + 2 * len(widest) <= width():
        return table(columns, rows)
    return stacked(columns, rows, len(columns) - 1)


def _texts(rows: Iterable[Sequence[Text]]) -> list[list[str]]:
    return [[cell.plain for cell in row] for row in rows]


def _row(ask: Ask, now: datetime, id: str, has_ended: bool) -> list[Text]:
    state = [plain(ask.state, STATES.get(ask.state, "dim"))] if has_ended else []
    is_live = ask.is_open or ask.state is State.ACCEPTED
    return [
        plain(id, "bold"),
        plain(ask_words.ago(now - ask.created_at)),
        *state,
        plain(ask_words.risk_of(ask), RISKS.get(ask_words.risk_of(ask), "")),
        plain(ask_words.ago(ask.expires_at - now) if is_live else ""),
        plain(ask_words.one_line(ask.asker)),
        plain(briefly(ask)),
    ]


def briefly(ask: Ask) -> str:
    """What is asked for, on one line, with the beginning of what it would run with."""
    if ask.kind is not Kind.CONFIRM:
        return ask_words.what(ask)
    arguments = ask.about.get("arguments")
    said = "" if arguments is None else json.dumps(arguments, ensure_ascii=False, default=str)
    shown = ask_words.one_line(said[: LONGEST_ARGUMENTS + 1])
    if len(said) > LONGEST_ARGUMENTS:
        shown = f"{shown[:LONGEST_ARGUMENTS]}…"
    return f"call {ask_words.name_of(ask)} {shown}".rstrip()


def in_full(ask: Ask, likeness: str = "") -> list[Text | Table]:
    """Everything that somebody should have seen who answers it."""
    found: list[Text | Table] = [plain(ask_words.what(ask), "bold")]
    rows = ask_words.rows(ask, datetime.now(UTC), likeness)
    grid = table(("", ""), [_named(row) for row in rows])
    return [*found, grid]


def _named(row: ask_words.Row) -> list[Text]:
    style = RISKS.get(row.text, "") if row.name == "Risk" else ""
    return [plain(row.name, "dim"), plain(row.text, style)]


def line(ask: Ask) -> str:
    """One change on one line, for a log or a pipe."""
    at = datetime.now(UTC).strftime("%H:%M:%S")
    risk = ask_words.risk_of(ask) or "-"
    return f"{at} {ask.id} {ask.state} {risk} {ask_words.one_line(ask.asker)} {briefly(ask)}"
