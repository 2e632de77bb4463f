"""Figures that a test says where they are seen, also when nothing fails."""

from collections.abc import Callable

import pytest

type Tell = Callable[[str], None]


@pytest.fixture
def tell(
    capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> Tell:
    def say(words: str) -> None:
        record_property("size", words)
        with capsys.disabled():
            print(f"\n  size: {words}", end="", flush=True)

    return say
