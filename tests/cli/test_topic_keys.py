"""What a terminal sends becomes keys, and keys a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.cli.topic_keys import LONGEST_LINE, Key, LineEditor, Stroke, Strokes, Typed

PASTED = b"\x1b[200~", b"\x1b[201~"


@pytest.mark.parametrize(
    ("sent", "pressed"),
    [
        (b"hello", [Typed("hello")]),
        ("grüß".encode(), [Typed("grüß")]),
        (b"a\r", [Typed("a"), Key.ENTER]),
        (b"\t\x1b[Z", [Key.TAB, Key.BACK_TAB]),
        (b"\x1b[A\x1bOB\x1b[1;5C\x1b[3~", [Key.UP, Key.DOWN, Key.DELETE]),
        (b"\x7f\x17\x15\x04\x0c", [*(Key.BACKSPACE, Key.ERASE_WORD, Key.ERASE_LINE)]),
        (b"\x1ba", [Key.ESCAPE]),
        (b"\x00\x1b[99;99x", []),
    ],
)
def test_bytes_are_read_as_keys(sent: bytes, pressed: list[Stroke]) -> None:
    found = Strokes().feed(sent)
    assert found[: len(pressed)] == pressed
    assert bool(found) is bool(pressed)


def test_escape_alone_is_known_when_nothing_follows_it() -> None:
    strokes = Strokes()
    assert strokes.feed(b"\x1b") == []
    assert strokes.is_waiting
    assert strokes.give_up() == [Key.ESCAPE]
    assert not strokes.is_waiting
    assert strokes.feed(b"\x1b") + strokes.feed(b"[A") == [Key.UP]


def test_what_is_pasted_is_text_whatever_it_holds() -> None:
    begin, end = PASTED
    strokes = Strokes()
    assert strokes.feed(begin + b"a\r\x1b[A\x03") == []
    assert not strokes.is_waiting
    assert strokes.feed(b"d" + end[:3]) == []
    assert strokes.feed(end[3:] + b"x") == [Typed("a\r\x1b[A\x03d", is_pasted=True), Typed("x")]


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_whatever_comes_is_read_the_same_in_pieces_and_leaves_no_control_behind(
    pieces: list[bytes],
) -> None:
    strokes, editor = Strokes(), LineEditor()
    for piece in pieces:
        for stroke in strokes.feed(piece):
            editor.press(stroke)
            assert all(each == "\n" or each.isprintable() for each in editor.text)
            assert 0 <= editor.place <= len(editor.text)


def typed(*strokes: Stroke | str) -> LineEditor:
    editor = LineEditor()
    for stroke in strokes:
        editor.press(Typed(stroke) if isinstance(stroke, str) else stroke)
    return editor


@pytest.mark.parametrize(
    ("strokes", "text", "place"),
    [
        (["abc", Key.LEFT, "X"], "abXc", 3),
        (["abc", Key.HOME, Key.DELETE, Key.END, Key.BACKSPACE], "b", 1),
        (["one two", Key.ERASE_WORD], "one ", 4),
        (["one two", Key.LEFT, Key.ERASE_REST, Key.HOME, Key.LEFT], "one tw", 0),
        (["one", Key.ERASE_LINE, Key.BACKSPACE, Key.ERASE_WORD], "", 0),
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
        editor.press(Typed(line))
        assert editor.press(Key.ENTER) == line
    editor.press(Typed("third"))
    seen: list[str] = []
    for way in (Key.UP, Key.UP, Key.UP, Key.DOWN, Key.DOWN):
        editor.press(way)
        seen.append(editor.text)
    assert seen == ["second", "first", "first", "second", "third"]


def test_a_line_has_an_end_and_the_cursor_is_always_in_sight() -> None:
    editor = typed("x" * (LONGEST_LINE + 5))
    assert len(editor.text) == LONGEST_LINE
    before, under, after = editor.shown(20)
    assert (len(before), under, after) == (19, " ", "")
    editor.press(Key.HOME)
    before, under, after = editor.shown(20)
    assert (before, under, len(after)) == ("", "x", 19)
    assert typed("日本語\nx", Key.LEFT).shown(6) == ("本語⏎", "x", "")
    assert typed("日本語\nx", Key.LEFT).shown(5) == ("語⏎", "x", "")
