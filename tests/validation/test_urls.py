"""Which places a text names; the named cases are in `tests/security/cases/network.toml`."""

import time
from collections.abc import Callable

from comity.validation.arguments import MOST_CHARACTERS, ArgumentKind
from comity.validation.network import examine_url_text
from comity.validation.rules import UNRULED, ValidationRules
from tests.support.cases import loop_over


def test_names_that_have_to_be_resolved_are_told() -> None:
    seen = examine_url_text(
        "see https://a.example.org/x and https://b.example.org", ArgumentKind.UNKNOWN, UNRULED
    )
    assert seen.problem is None
    assert seen.names == ("a.example.org", "b.example.org")
    assert examine_url_text("https://A.example.org:443/", ArgumentKind.URL, UNRULED).names == (
        "a.example.org",
    )
    assert examine_url_text("8.8.8.8", ArgumentKind.HOST, UNRULED) == (None, ())


def test_schemes_are_the_operators_to_choose() -> None:
    rules = ValidationRules(schemes=frozenset({"wss"}))
    assert examine_url_text("wss://example.org/", ArgumentKind.URL, rules).problem is None
    assert examine_url_text("https://example.org/", ArgumentKind.URL, rules).problem is not None


def test_many_numbers_are_no_places() -> None:
    assert examine_url_text("1.5 2.25 " * 900, ArgumentKind.UNKNOWN, UNRULED).problem is None


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


@loop_over("piece", PIECES)
def test_no_text_takes_long_to_look_at(piece: str) -> None:
    whole = looking_at(piece * (MOST_CHARACTERS // len(piece)))
    if whole > ALWAYS_FINE:
        part = looking_at(piece * (MOST_CHARACTERS // GROWTH // len(piece)))
        assert whole < 2.5 * GROWTH * part


def looking_at(text: str) -> float:
    return quickest(lambda: examine_url_text(text, ArgumentKind.UNKNOWN, UNRULED))


def quickest(look: Callable[[], object]) -> float:
    """The processor time of the best of three tries: what a busy machine adds is not ours."""
    tries: list[float] = []
    for _ in range(3):
        before = time.thread_time()
        look()
        tries.append(time.thread_time() - before)
    return min(tries)
