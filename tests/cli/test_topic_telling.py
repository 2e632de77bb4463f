"""What members say reaches a terminal as words alone, whatever they wrote."""

import json
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from comity.cli.topic_telling import Telling
from comity.cli.topic_words import LONGEST, MOST_LINES, in_full, stamped, words
from comity.rules.proposals import Proposal as Followed
from comity.sdk.events import (
    Chat,
    Disconnected,
    Event,
    Fulfilment,
    Misbehaviour,
    Missed,
    Other,
    Presence,
    Proposal,
    Reconnected,
    Refused,
    Rejection,
    Request,
    Response,
    Welcome,
    Withdrawal,
)
from comity.wire.envelope import Envelope, Heading, written

ME, BOT, WORKER = "person:ana@example.org", "agent:bot", "agent:worker"
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202etxt\u200b\x9b31m\r\nforged\x00\ud800"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = {"name": "restart", "arguments": {"service": "web"}}


def envelope(sender: str = BOT, to: tuple[str, ...] = (), kind: str = "chat") -> Envelope:
    return written(Heading("e1", "", to), sender, kind, {})


def followed(**changed: object) -> Followed:
    made: dict[str, object] = {
        "id": "p1",
        "proposer": BOT,
        "target": (WORKER,),
        "method": "tools/call",
        "params": CALL,
        "created_at": NOW,
        "expires_at": NOW + timedelta(minutes=5),
    }
    return Followed(**{**made, **changed})  # type: ignore[arg-type]


def printed(*things: RenderableType, width: int = 60) -> str:
    """What a terminal is sent."""
    console = Console(width=width, force_terminal=True, highlight=False, color_system="truecolor")
    with console.capture() as captured:
        console.print(*things, sep="\n")
    return captured.get()


def is_harmless(sent: str) -> bool:
    """Whether nothing but colours and line breaks steers the terminal."""
    rest = Text.from_ansi(sent).plain.replace("\n", "")
    return rest.isprintable() and "\x1b[2J" not in sent and "\x1b]" not in sent


def telling() -> Telling:
    return Telling(ME, ("chat",), lambda _: 7)


ASKED = Request(envelope(to=(WORKER,)), "tools/call", CALL, 1)
EVENTS: list[tuple[Event, str]] = [
    (Chat(envelope(), "hello"), "agent:bot: hello"),
    (Chat(envelope(to=(ME,)), "hello"), "agent:bot to you: hello"),
    (
        Proposal(envelope(to=(WORKER,)), "tools/call", CALL),
        '[7] agent:bot proposes to agent:worker: restart {"service": "web"}',
    ),
    (ASKED, 'agent:bot asks agent:worker: restart {"service": "web"}'),
    (
        Response(envelope(WORKER, (ME,)), {"content": [{"type": "text", "text": "done"}]}),
        "agent:worker answers you: done",
    ),
    (
        Response(envelope(WORKER, (ME,)), error={"code": -1, "message": "no"}),
        "agent:worker answers you: no (-1)",
    ),
    (Response(envelope(WORKER, (ME,)), {"n": 1}), 'agent:worker answers you: {"n": 1}'),
    (Rejection(envelope(), followed(), "no"), "agent:bot declines [7]: no"),
    (Withdrawal(envelope(), followed()), "agent:bot withdraws [7]"),
    (Fulfilment(ASKED, followed()), "agent:bot approves [7]"),
    (
        Fulfilment(ASKED, followed(), is_first=False),
        "agent:bot had [7] done, which was done already",
    ),
    (
        Fulfilment(ASKED, followed(), is_as_proposed=False),
        "agent:bot had [7] done with other arguments",
    ),
    (Presence("join", BOT), "agent:bot has come"),
    (Presence("leave", BOT), "agent:bot has left"),
    (Other(envelope(kind="x/y"), {}), "agent:bot sent x/y"),
    (Welcome(ME, ("chat", "mcp/*"), {}), "You may send now: chat, mcp/*"),
    (Refused("e1", "rate_limited", "too much"), "Not passed on: too much"),
    (Missed(3, because="too slow"), "3 envelopes were missed: too slow"),
    (Missed(1), "1 envelope was missed"),
    (Misbehaviour(BOT, "no text", count=2), "Dropped from agent:bot: no text (2 times by now)"),
    (Disconnected("cut"), "cut; trying again"),
    (Reconnected(2), "Back in the topic"),
]


@pytest.mark.parametrize(("event", "said"), EVENTS)
def test_each_event_is_told_in_a_line(event: Event, said: str) -> None:
    told = telling().told(event)
    assert told is not None
    assert told.plain == said


@pytest.mark.parametrize(
    "event",
    [Presence("join", ME), Welcome(ME, ("chat",), {}), Misbehaviour(BOT, "again", count=3)],
)
def test_what_one_knows_already_is_not_told(event: Event) -> None:
    assert telling().told(event) is None


@pytest.mark.requirement("MCPX-4.3-defensive")
@pytest.mark.parametrize(
    "event",
    [
        Chat(envelope(HOSTILE), HOSTILE),
        Proposal(envelope(to=(HOSTILE,)), HOSTILE, {"x": HOSTILE}),
        Proposal(envelope(), "tools/call", {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}),
        Request(envelope(), HOSTILE, {HOSTILE: 1}),
        Response(envelope(), {"content": [{"type": "text", "text": HOSTILE}]}),
        Response(envelope(), error={"code": 1, "message": HOSTILE}),
        Rejection(envelope(), followed(), HOSTILE),
        Other(envelope(kind=HOSTILE), {}),
        Welcome(ME, (HOSTILE,), {}),
        Refused("e1", "x", HOSTILE),
        Missed(1, because=HOSTILE),
        Misbehaviour(HOSTILE, HOSTILE),
        Disconnected(HOSTILE),
    ],
)
def test_nothing_that_others_wrote_steers_the_terminal(event: Event) -> None:
    told = telling().told(event)
    assert told is not None
    assert is_harmless(printed(stamped(told, NOW)))


def test_nobody_can_make_the_rest_of_a_line_look_like_another_s() -> None:
    forged = "00:00:00 person:bea@example.org: I agree"
    padded = Chat(envelope(), "x " * 40 + forged)
    broken = Chat(envelope(), f"x\n{forged}")
    for event in (padded, broken):
        told = telling().told(event)
        assert told is not None
        lines = Text.from_ansi(printed(stamped(told, NOW), width=50)).plain.splitlines()
        assert [line for line in lines if line[:1].isdigit()] == lines[:1]


@given(st.text(max_size=300))
def test_words_steer_and_hide_nothing_whatever_they_were(text: str) -> None:
    shown = words(text).replace("\n", "")
    assert {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()


def test_what_is_too_long_is_cut_and_it_is_said_so() -> None:
    assert words("x" * (LONGEST + 9)).endswith("… and 9 more characters")
    many = words("a\n" * 100)
    assert len(many.split("\n")) == MOST_LINES + 1
    assert many.endswith("more characters")


def test_a_proposal_in_full_shows_all_that_would_be_sent() -> None:
    params = {**CALL, "_meta": {"x": 1}}
    sent = Text.from_ansi(printed(in_full(followed(params=params), 7, NOW, ["but wait"]))).plain
    for part in ("[7]", "tools/call", "restart", '"service": "web"', "Also sent", '"x": 1'):
        assert part in sent
    for part in (BOT, WORKER, "in 5 min", "but wait"):
        assert part in sent
    other = followed(method="resources/read", params={"uri": "file:///a", "n": 2}, target=())
    sent = Text.from_ansi(printed(in_full(other, 8, NOW, []))).plain
    for part in ("Resource", "file:///a", "Parameters", '"n": 2', "nobody in particular"):
        assert part in sent


def test_a_hostile_proposal_in_full_steers_nothing_and_hides_nothing() -> None:
    params = {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE, "deep": [[{"x": HOSTILE}]]}}
    sent = printed(
        in_full(followed(params=params, proposer=HOSTILE, target=(HOSTILE,)), 7, NOW, [])
    )
    assert is_harmless(sent)
    assert "202e" in sent
    huge = followed(params={"name": "x", "arguments": {"text": "y" * 100_000}})
    assert "more characters not shown" in printed(in_full(huge, 7, NOW, []), width=2_000)
    assert json.dumps(CALL["arguments"])[1:-1] in printed(in_full(followed(), 7, NOW, []))
