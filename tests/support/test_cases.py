"""One test goes through many cases, and tells each that fails."""

import asyncio
from pathlib import Path

import pytest

from tests.support.cases import loop_over


@loop_over("number", [1, 2, 3])
def odd(number: int) -> None:
    assert number % 2, f"{number} is even"


def test_each_case_that_fails_is_told_with_its_values() -> None:
    @loop_over(("a", "b"), [(1, 1), (1, 2), pytest.param(3, 4, id="the last")])
    def equal(a: int, b: int) -> None:
        assert a == b

    with pytest.raises(pytest.fail.Exception, match="2 of 3 cases failed") as caught:
        equal()
    assert "[1, 2]\n" in str(caught.value)
    assert "[the last]\n" in str(caught.value)
    assert "in equal" in str(caught.value)


def test_a_loop_in_a_loop_tells_both_cases() -> None:
    @loop_over("outer", ["x", "y"])
    @loop_over("inner", [1, 2])
    def differ(outer: str, inner: int) -> None:
        assert (outer, inner) != ("y", 2)

    with pytest.raises(pytest.fail.Exception) as caught:
        differ()
    assert "['y']\n1 of 2 cases failed\n[2]\n" in str(caught.value)


def test_a_loop_over_nothing_proves_nothing() -> None:
    @loop_over("number", [])
    def never(number: int) -> None:
        raise AssertionError(number)

    with pytest.raises(pytest.fail.Exception, match="0 of 0"):
        never()


def test_only_where_every_case_is_skipped_is_the_test() -> None:
    with pytest.raises(pytest.fail.Exception, match="2 is even"):
        odd()

    @loop_over("is_here", [True, False])
    def sometimes(is_here: bool) -> None:
        if not is_here:
            pytest.skip("not here")

    @loop_over("number", [1, 2])
    def never(number: int) -> None:
        pytest.skip("nowhere")

    sometimes()
    with pytest.raises(pytest.skip.Exception, match="nowhere"):
        never()


@loop_over("name", ["a", "b"])
async def test_each_case_has_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    await asyncio.sleep(0)
    (tmp_path / "taken").mkdir(exist_ok=False)
    assert tmp_path.name == f"case-{'ab'.index(name)}"
