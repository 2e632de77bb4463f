"""How the terminals that the pages show are read."""

from tests.docs.transcript import Step, steps_of
from tests.support.cases import loop_over


def test_each_command_has_the_lines_that_follow_it() -> None:
    text = "$ comity init\nWrote it.\n\nNext: go on.\n\n$ comity serve\n"
    assert steps_of(text) == [
        Step("comity init", ("Wrote it.", "", "Next: go on.")),
        Step("comity serve", ()),
    ]


@loop_over(
    ("expected", "said", "is_met"),
    [
        (("one", "two"), "one\ntwo\n", True),
        (("one", "two"), "one\ntwo", True),
        (("one", "two"), "one  \ntwo\n", True),
        (("one", "two"), "one\ntwo\nthree\n", False),
        (("one", "two"), "one\n", False),
        (("one", "…", "three"), "one\ntwo\nthree\n", True),
        (("one", "…", "three"), "one\nthree\n", True),
        (("one", "…", "three"), "one\ntwo\n", False),
        (("one", "…"), "one\ntwo\nthree", True),
        (("took … s",), "took 0.3 s\n", True),
        (("took … s",), "took 0.3\ns\n", False),
        ((), "anything\nat all\n", True),
        (("a.c",), "abc\n", False),
    ],
)
def test_output_is_met_line_by_line(expected: tuple[str, ...], said: str, is_met: bool) -> None:
    assert Step("x", expected).is_met_by(said) is is_met
