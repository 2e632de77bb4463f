"""Which places a text names; the named cases are in `tests/security/cases/network.toml`."""

import time
from collections.abc import Callable

import pytest

from comity.rules.arguments import MOST_CHARACTERS
from comity.rules.meanings import Meaning
from comity.rules.urls import examine
from comity.rules.validators import UNRULED, Rules


def test_names_that_have_to_be_resolved_are_told() -> None:
    seen = examine(
        "see https://a.example.org/x and https://b.example.org", Meaning.UNKNOWN, UNRULED
    )
    assert seen.problem is None
    assert seen.names == ("a.example.org", "b.example.org")
    assert examine("https://A.example.org:443/", Meaning.URL, UNRULED).names == ("a.example.org",)
    assert examine("8.8.8.8", Meaning.HOST, UNRULED) == (None, ())


def test_schemes_are_the_operators_to_choose() -> None:
    rules = Rules(schemes=frozenset({"wss"}))
    assert examine("wss://example.org/", Meaning.URL, rules).problem is None
    assert examine("https://example.org/", Meaning.URL, rules).problem is not None


def test_many_numbers_are_no_places() -> None:
    assert examine("1.5 2.25 " * 900, Meaning.UNKNOWN, UNRULED).problem is None


PIECES = (
    "http://a.example.org/ ",
    "10.5 ",
    "a",
    "a:",
    ":",
    "1.",
    "localhost ",
    "a+",
    "::",
    "8.8.8.8 ",
)


ALWAYS_FINE = 0.1
GROWTH = 4
"""Four times the text takes four times as long, or sixteen times where each part looks at all."""


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_long_to_look_at(piece: str) -> None:
    whole = looking_at(piece * (MOST_CHARACTERS // len(piece)))
    if whole > ALWAYS_FINE:
        part = looking_at(piece * (MOST_CHARACTERS // GROWTH // len(piece)))
        assert whole < 2.5 * GROWTH * part


def looking_at(text: str) -> float:
    return quickest(lambda: examine(text, Meaning.UNKNOWN, UNRULED))


def quickest(look: Callable[[], object]) -> float:
    """The processor time of the best of three tries: what a busy machine adds is not ours."""
    tries: list[float] = []
    for _ in range(3):
        before = time.thread_time()
        look()
        tries.append(time.thread_time() - before)
    return min(tries)
