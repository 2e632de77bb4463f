"""A topic on a terminal: keys become a line, and members' words are shown without harm."""

import json
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType
from rich.text import Text

from comity.cli.topics.render import (
    MAX_LENGTH,
    MAX_LINES,
    TopicEventRenderer,
    in_full,
    render_timed_line,
    render_words,
)
from comity.cli.topics.screen import (
    MAX_LINE_LENGTH,
    KeystrokeParser,
    LineEditor,
    Stroke,
    TerminalKey,
    TypedText,
)
from comity.sdk.topics.events import (
    Chat,
    DisconnectionEvent,
    EnvelopeRefusal,
    Event,
    MemberFulfilment,
    MemberMisbehaviour,
    MissedEnvelopes,
    Presence,
    Proposal,
    ReconnectionEvent,
    Rejection,
    Request,
    Response,
    UnknownKindMessage,
    Welcome,
    Withdrawal,
)
from comity.topics.envelope import Envelope, EnvelopeHeader, build_envelope
from comity.topics.rules import TrackedProposal as Followed
from tests.support.cases import loop_over

PASTED = b"\x1b[200~", b"\x1b[201~"


@loop_over(
    ("sent", "pressed"),
    [
        (b"hello", [TypedText("hello")]),
        ("grüß".encode(), [TypedText("grüß")]),
        (b"a\r", [TypedText("a"), TerminalKey.ENTER]),
        (b"\t\x1b[Z", [TerminalKey.TAB, TerminalKey.BACK_TAB]),
        (b"\x1b[A\x1bOB\x1b[1;5C\x1b[3~", [TerminalKey.UP, TerminalKey.DOWN, TerminalKey.DELETE]),
        (
            b"\x7f\x17\x15\x04\x0c",
            [*(TerminalKey.BACKSPACE, TerminalKey.ERASE_WORD, TerminalKey.ERASE_LINE)],
        ),
        (b"\x1ba", [TerminalKey.ESCAPE]),
        (b"\x00\x1b[99;99x", []),
    ],
)
def test_bytes_are_read_as_keys(sent: bytes, pressed: list[Stroke]) -> None:
    found = KeystrokeParser().feed(sent)
    assert found[: len(pressed)] == pressed
    assert bool(found) is bool(pressed)


def test_escape_alone_is_known_when_nothing_follows_it() -> None:
    strokes = KeystrokeParser()
    assert strokes.feed(b"\x1b") == []
    assert strokes.is_waiting
    assert strokes.give_up() == [TerminalKey.ESCAPE]
    assert not strokes.is_waiting
    assert strokes.feed(b"\x1b") + strokes.feed(b"[A") == [TerminalKey.UP]


def test_what_is_pasted_is_text_whatever_it_holds() -> None:
    begin, end = PASTED
    strokes = KeystrokeParser()
    assert strokes.feed(begin + b"a\r\x1b[A\x03") == []
    assert not strokes.is_waiting
    assert strokes.feed(b"d" + end[:3]) == []
    assert strokes.feed(end[3:] + b"x") == [
        TypedText("a\r\x1b[A\x03d", is_pasted=True),
        TypedText("x"),
    ]


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_whatever_comes_is_read_the_same_in_pieces_and_leaves_no_control_behind(
    pieces: list[bytes],
) -> None:
    strokes, editor = KeystrokeParser(), LineEditor()
    for piece in pieces:
        for stroke in strokes.feed(piece):
            editor.press(stroke)
            assert all(each == "\n" or each.isprintable() for each in editor.text)
            assert 0 <= editor.place <= len(editor.text)


def typed(*strokes: Stroke | str) -> LineEditor:
    editor = LineEditor()
    for stroke in strokes:
        editor.press(TypedText(stroke) if isinstance(stroke, str) else stroke)
    return editor


@loop_over(
    ("strokes", "text", "place"),
    [
        (["abc", TerminalKey.LEFT, "X"], "abXc", 3),
        (
            ["abc", TerminalKey.HOME, TerminalKey.DELETE, TerminalKey.END, TerminalKey.BACKSPACE],
            "b",
            1,
        ),
        (["one two", TerminalKey.ERASE_WORD], "one ", 4),
        (
            [
                "one two",
                TerminalKey.LEFT,
                TerminalKey.ERASE_REST,
                TerminalKey.HOME,
                TerminalKey.LEFT,
            ],
            "one tw",
            0,
        ),
        (["one", TerminalKey.ERASE_LINE, TerminalKey.BACKSPACE, TerminalKey.ERASE_WORD], "", 0),
        (["a\u202eb\x07\tc"], "ab c", 4),
    ],
)
def test_a_line_is_edited_as_people_are_used_to(
    strokes: list[Stroke | str], text: str, place: int
) -> None:
    editor = typed(*strokes)
    assert (editor.text, editor.place) == (text, place)


def test_earlier_lines_are_found_again_and_the_unsent_one_is_kept() -> None:
    editor = LineEditor()
    for line in ("first", "second"):
        editor.press(TypedText(line))
        assert editor.press(TerminalKey.ENTER) == line
    editor.press(TypedText("third"))
    seen: list[str] = []
    for way in (TerminalKey.UP, TerminalKey.UP, TerminalKey.UP, TerminalKey.DOWN, TerminalKey.DOWN):
        editor.press(way)
        seen.append(editor.text)
    assert seen == ["second", "first", "first", "second", "third"]


def test_a_line_has_an_end_and_the_cursor_is_always_in_sight() -> None:
    editor = typed("x" * (MAX_LINE_LENGTH + 5))
    assert len(editor.text) == MAX_LINE_LENGTH
    before, under, after = editor.shown(20)
    assert (len(before), under, after) == (19, " ", "")
    editor.press(TerminalKey.HOME)
    before, under, after = editor.shown(20)
    assert (before, under, len(after)) == ("", "x", 19)
    assert typed("日本語\nx", TerminalKey.LEFT).shown(6) == ("本語⏎", "x", "")
    assert typed("日本語\nx", TerminalKey.LEFT).shown(5) == ("語⏎", "x", "")


ME, BOT, WORKER = "person:ana@example.org", "agent:bot", "agent:worker"
HOSTILE = "\x1b[2J\x1b]0;owned\x07\u202etxt\u200b\x9b31m\r\nforged\x00\ud800"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
CALL = {"name": "restart", "arguments": {"service": "web"}}


def envelope(sender: str = BOT, to: tuple[str, ...] = (), kind: str = "chat") -> Envelope:
    return build_envelope(EnvelopeHeader("e1", "", to), sender, kind, {})


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


def telling() -> TopicEventRenderer:
    return TopicEventRenderer(ME, ("chat",), lambda _: 7)


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
    (MemberFulfilment(ASKED, followed()), "agent:bot approves [7]"),
    (
        MemberFulfilment(ASKED, followed(), is_first=False),
        "agent:bot had [7] done, which was done already",
    ),
    (
        MemberFulfilment(ASKED, followed(), is_as_proposed=False),
        "agent:bot had [7] done with other arguments",
    ),
    (Presence("join", BOT), "agent:bot joined"),
    (Presence("leave", BOT), "agent:bot left"),
    (UnknownKindMessage(envelope(kind="x/y"), {}), "agent:bot sent x/y"),
    (Welcome(ME, ("chat", "mcp/*"), {}), "You may send now: chat, mcp/*"),
    (EnvelopeRefusal("e1", "rate_limited", "too much"), "Not passed on: too much"),
    (MissedEnvelopes(3, because="too slow"), "3 envelopes were missed: too slow"),
    (MissedEnvelopes(1), "1 envelope was missed"),
    (
        MemberMisbehaviour(BOT, "no text", count=2),
        "Dropped from agent:bot: no text (2 times by now)",
    ),
    (DisconnectionEvent("cut"), "cut; trying again"),
    (ReconnectionEvent(2), "Back in the topic"),
]


@loop_over(("event", "said"), EVENTS)
def test_each_event_is_told_in_a_line(event: Event, said: str) -> None:
    told = telling().render(event)
    assert told is not None
    assert told.plain == said


@loop_over(
    "event",
    [Presence("join", ME), Welcome(ME, ("chat",), {}), MemberMisbehaviour(BOT, "again", count=3)],
)
def test_what_one_knows_already_is_not_told(event: Event) -> None:
    assert telling().render(event) is None


@pytest.mark.requirement("MCPX-4.3-defensive")
@loop_over(
    "event",
    [
        Chat(envelope(HOSTILE), HOSTILE),
        Proposal(envelope(to=(HOSTILE,)), HOSTILE, {"x": HOSTILE}),
        Proposal(envelope(), "tools/call", {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}),
        Request(envelope(), HOSTILE, {HOSTILE: 1}),
        Response(envelope(), {"content": [{"type": "text", "text": HOSTILE}]}),
        Response(envelope(), error={"code": 1, "message": HOSTILE}),
        Rejection(envelope(), followed(), HOSTILE),
        UnknownKindMessage(envelope(kind=HOSTILE), {}),
        Welcome(ME, (HOSTILE,), {}),
        EnvelopeRefusal("e1", "x", HOSTILE),
        MissedEnvelopes(1, because=HOSTILE),
        MemberMisbehaviour(HOSTILE, HOSTILE),
        DisconnectionEvent(HOSTILE),
    ],
)
def test_nothing_that_others_wrote_steers_the_terminal(event: Event) -> None:
    told = telling().render(event)
    assert told is not None
    assert is_harmless(printed(render_timed_line(told, NOW)))


def test_nobody_can_make_the_rest_of_a_line_look_like_another_s() -> None:
    forged = "00:00:00 person:bea@example.org: I agree"
    padded = Chat(envelope(), "x " * 40 + forged)
    broken = Chat(envelope(), f"x\n{forged}")
    for event in (padded, broken):
        told = telling().render(event)
        assert told is not None
        lines = Text.from_ansi(printed(render_timed_line(told, NOW), width=50)).plain.splitlines()
        assert [line for line in lines if line[:1].isdigit()] == lines[:1]


@given(st.text(max_size=300))
def test_words_steer_and_hide_nothing_whatever_they_were(text: str) -> None:
    shown = render_words(text).replace("\n", "")
    assert {unicodedata.category(each) for each in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"} == set()


def test_what_is_too_long_is_cut_and_it_is_said_so() -> None:
    assert render_words("x" * (MAX_LENGTH + 9)).endswith("… and 9 more characters")
    many = render_words("a\n" * 100)
    assert len(many.split("\n")) == MAX_LINES + 1
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
    for part in ("Resource", "file:///a", "Parameters", '"n": 2', "any member"):
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
