"""What each kind of value may be, and how a wrong one is told of."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.documents import Mistake, Mistakes, Written, nearest, shown
from comity.rules.positions import Place
from comity.wire.errors import Misconfigured

SECRET = "hunter2"


def written(value: object) -> Written:
    return Written(value, "comity.toml", ("limits", "it"))


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (1, timedelta(seconds=1)),
        (0.5, timedelta(milliseconds=500)),
        ("500ms", timedelta(milliseconds=500)),
        ("10s", timedelta(seconds=10)),
        ("1.5 m", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("366d", timedelta(days=366)),
    ],
)
def test_a_duration_is_read(value: object, length: timedelta) -> None:
    assert written(value).duration() == length


NO_DURATIONS: tuple[object, ...] = (
    *(0, -1, 1e300, float("nan"), float("inf"), True, None, [1]),
    *("", "0s", "10", "s", "10 weeks", "367d", "9" * 40 + "s", "-1s", " 1s ", "1\u0663s"),
)


@pytest.mark.parametrize("value", NO_DURATIONS)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(Misconfigured, match=r"comity.toml: limits.it: must be a time"):
        written(value).duration()


@pytest.mark.parametrize("value", [True, "7", 7.0, None, [7]])
def test_only_a_whole_number_is_a_number(value: object) -> None:
    with pytest.raises(Misconfigured, match="whole number"):
        written(value).number(0, 10)


@pytest.mark.parametrize(("value", "fits"), [(1, True), (9, True), (0, False), (10, False)])
def test_a_number_stays_within_its_bounds(value: int, fits: bool) -> None:
    if fits:
        assert written(value).number(1, 9) == value
    else:
        with pytest.raises(Misconfigured, match="between 1 and 9"):
            written(value).number(1, 9)


@pytest.mark.parametrize("value", ["yes", 1, 0, None])
def test_only_true_and_false_are_truths(value: object) -> None:
    with pytest.raises(Misconfigured, match="true or false"):
        written(value).truth()
    assert written(value=True).truth()


def test_a_text_may_hold_anything_but_nul() -> None:
    assert written("a\nb").text() == "a\nb"
    with pytest.raises(Misconfigured, match="NUL"):
        written("a\0b").text()


def test_a_choice_is_one_of_those_offered() -> None:
    assert written("b").one_of(("a", "b")) == "b"
    with pytest.raises(Misconfigured, match="one of: a, b"):
        written("c").one_of(("a", "b"))


def test_parts_know_where_they_stand() -> None:
    document = Written({"servers": [{"env": {"KEY": 1.5}}]}, "comity.toml")
    value = document.table()["servers"].items()[0].table()["env"].table()["KEY"]
    assert value.keys == "servers[0].env.KEY"


@pytest.mark.parametrize(
    ("key", "hint"), [("prot", "did you mean 'port'"), ("zzz", "known are: host, port")]
)
def test_an_unknown_key_is_told_with_the_nearest_known_one(key: str, hint: str) -> None:
    (problem,) = Written({key: 1, "port": 1}, "f").unknown({"host", "port"})
    assert str(problem).startswith(f"f: {key}: there is no such key; {hint}")


def test_of_very_many_unknown_keys_the_first_are_told() -> None:
    document = Written({f"k{number}": 1 for number in range(5000)} | {"x" * 100_000: 1}, "f")
    assert len(document.unknown({"host", "port"})) == 20


@pytest.mark.parametrize(
    ("name", "near"), [("mcpservers", "mcpServers"), ("mcp_servers", "mcpServers"), ("zzz", None)]
)
def test_what_was_meant_is_found_in_spite_of_letters(name: str, near: str | None) -> None:
    assert nearest(name, ("mcpServers", "theme")) == near


def test_a_mistake_is_a_line_that_an_editor_can_follow() -> None:
    mistake = Mistake("a.toml", ("x",), "x", "is odd; change it")
    assert str(mistake) == "a.toml: x: is odd; change it"
    assert str(replace(mistake, line=3)) == "a.toml:3: x: is odd; change it"


def test_several_mistakes_are_a_list_and_one_is_a_line() -> None:
    mistakes = [Mistake("a.toml", (), "", f"is odd {number}") for number in range(22)]
    assert str(Mistakes(mistakes[:1])) == "a.toml: is odd 0"
    assert str(Mistakes(mistakes[:2])).splitlines()[1:] == [
        "  a.toml: is odd 0",
        "  a.toml: is odd 1",
    ]
    assert str(Mistakes(mistakes)).splitlines()[-2:] == ["  a.toml: is odd 19", "  and 2 more"]


def test_reading_goes_on_after_a_mistake() -> None:
    mistakes = Mistakes()
    assert mistakes.read(written(1).text, "otherwise") == "otherwise"
    assert mistakes.read(written("b").text, "otherwise") == "b"
    mistakes.note(written(1).wrong("no"), written(1).wrong("neither"))
    assert [each.problem.split(";")[0] for each in mistakes.found] == [
        "must be a text",
        "no",
        "neither",
    ]


def test_a_value_can_be_known_by_a_better_name() -> None:
    entry = written([{"a": 1}]).items()[0].known("servers[search]")
    assert entry.table()["a"].keys == "servers[search].a"
    assert entry.table()["a"].place == ("limits", "it", 0, "a")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("a", 0, "b"), "a[0].b"),
        (("My Server!", "x"), "My Server!.x"),
        (("a\nb",), '"a\\nb"'),
        (("\x1b[2J",), '"\\u001b[2J"'),
        ((" ",), '" "'),
        (("x" * 1000,), "x" * 80),
    ],
)
def test_keys_are_shown_as_they_are_unless_that_could_upset_a_terminal(
    place: Place, text: str
) -> None:
    assert shown(place) == text


@pytest.mark.parametrize(
    ("value", "length"), [(0, timedelta()), ("0s", timedelta()), ("1s", timedelta(seconds=1))]
)
def test_a_length_may_be_never_where_that_is_offered(value: object, length: timedelta) -> None:
    assert written(value).duration_or_never() == length


@pytest.mark.parametrize("value", [False, "0", "never", -1, None])
def test_what_is_neither_a_length_nor_never_is_refused(value: object) -> None:
    with pytest.raises(Misconfigured, match="must be a time"):
        written(value).duration_or_never()


READERS: list[Callable[[Written], object]] = [
    Written.text,
    Written.truth,
    Written.duration,
    Written.duration_or_never,
    Written.items,
    Written.table,
    lambda value: value.number(0, 1),
    lambda value: value.one_of(("a",)),
]


def complaint(read: Callable[[Written], object], value: object) -> str:
    try:
        read(written(value))
    except Misconfigured as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("value", [SECRET, [SECRET], {SECRET: SECRET}, 4711.5])
def test_a_mistake_never_quotes_the_value(read: Callable[[Written], object], value: object) -> None:
    told = complaint(read, value)
    assert SECRET not in told
    assert "4711" not in told
    assert SECRET not in repr(written(value))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING, st.sampled_from(READERS))
def test_any_value_is_read_or_refused(value: object, read: Callable[[Written], object]) -> None:
    told = complaint(read, value)
    assert told == "" or told.startswith("comity.toml: limits.it: ")
