"""What a server says on stderr is kept within bounds and can be shown to a person."""

from hypothesis import given
from hypothesis import strategies as st

from comity.servers.process.stderr import StderrTail, find_fault, sanitize_line
from tests.support.cases import loop_over


def read(tail: StderrTail) -> list[str]:
    return tail.read({})


def test_lines_are_kept_in_order_with_an_unfinished_one() -> None:
    tail = StderrTail()
    tail.feed(b"one\n\n  \ntw")
    assert read(tail) == ["one", "tw"]
    tail.feed(b"o\r\nthree\n")
    assert read(tail) == ["one", "two", "three"]


def test_only_the_last_lines_are_kept() -> None:
    tail = StderrTail(lines=3)
    for number in range(10):
        tail.feed(b"line %d\n" % number)
    assert read(tail) == ["line 7", "line 8", "line 9"]
    tail.feed(b"first\n" + b"".join(b"line %d\n" % number for number in range(10_000)))
    assert read(tail) == ["line 9997", "line 9998", "line 9999"]


def test_the_lines_together_stay_within_their_bytes() -> None:
    tail = StderrTail(lines=100, size=100, line_size=50)
    tail.feed(b"".join(b"%d" % digit * 40 + b"\n" for digit in range(10)))
    assert read(tail) == ["8" * 40, "9" * 40]


@loop_over("pieces", [[b"x" * 10_000 + b"\ny\n"], [b"x"] * 500 + [b"\ny\n"]])
def test_a_long_line_is_cut(pieces: list[bytes]) -> None:
    tail = StderrTail(line_size=100)
    for piece in pieces:
        tail.feed(piece)
    assert read(tail) == ["x" * 100, "y"]


def test_a_long_line_among_others_is_cut() -> None:
    tail = StderrTail(line_size=4)
    tail.feed(b"a\n123456\n123456")
    tail.feed(b"78\nb\n")
    assert read(tail) == ["a", "1234", "1234", "b"]


@loop_over(
    ("said", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]never ended", ""),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bcreset", "reset"),
        ("\x1b(Bplain", "plain"),
        ("one\x1b", "one\ufffd"),
        ("bell\x07 back\x08\x08", "bell\ufffd back\ufffd\ufffd"),
        ("10%\r20%\tdone", "10% 20% done"),
        ("line\u2028forged\x85line", "line forged line"),
        ("abc\u202edcba", "abc\ufffddcba"),
        ("zero\u200bwidth", "zero\ufffdwidth"),
        ("größe 大 ok", "größe 大 ok"),
    ],
)
def test_what_could_harm_a_terminal_or_a_log_is_taken_out(said: str, shown: str) -> None:
    assert sanitize_line(said) == shown


@given(st.lists(st.binary()))
def test_whatever_is_said_can_be_printed(pieces: list[bytes]) -> None:
    tail = StderrTail()
    for piece in pieces:
        tail.feed(piece)
    assert all(line.isprintable() for line in read(tail))


def test_the_values_of_configured_variables_are_shown_by_name() -> None:
    tail = StderrTail()
    tail.feed(b"bad token s3cret-token!\nbad key AAAA1111\nlong s3cret-token!-2 in level 1\n")
    hidden = {
        "TOKEN": "s3cret-token!",
        "LONGER": "s3cret-token!-2",
        "KEY": "---\nAAAA1111\n---",
        "LEVEL": "1",
    }
    assert tail.read(hidden) == [
        "bad token ${TOKEN}",
        "bad key ${KEY}",
        "long ${LONGER} in level 1",
    ]


@loop_over(
    ("lines", "fault"),
    [
        (
            ["Traceback", "  ^^^^^^", "AttributeError: no 'x'", "  ^^^", "try y"],
            "AttributeError: no 'x'",
        ),
        (
            ["ImportError: Bad git executable.", "set $GIT", "- error|e|exception", "Example:"],
            "ImportError: Bad git executable.",
        ),
        (["fatal: not a repository", "^^^^"], "fatal: not a repository"),
        (["starting", "listening", "----"], "listening"),
        (["----"], ""),
        ([], ""),
    ],
)
def test_the_line_that_names_the_fault_is_found(lines: list[str], fault: str) -> None:
    assert find_fault(lines) == fault
