"""What each kind of value may be, and how a wrong one is told of."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.documents import Written
from comity.wire.errors import Misconfigured

SECRET = "hunter2"


def written(value: object) -> Written:
    return Written(value, "comity.toml", "limits.it")


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
def test_an_unknown_key_is_refused_with_the_nearest_known_one(key: str, hint: str) -> None:
    with pytest.raises(Misconfigured, match=f"f: {key}: there is no such key; {hint}"):
        Written({key: 1}, "f").refuse_unknown({"host", "port"})
    Written({"port": 1}, "f").refuse_unknown({"host", "port"})


READERS: list[Callable[[Written], object]] = [
    Written.text,
    Written.truth,
    Written.duration,
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
