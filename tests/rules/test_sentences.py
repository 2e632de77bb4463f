"""A request of several sentences asks for several things."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.sentences import MOST, sentences


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("read a file", []),
        (
            "Read that file. Then mail it to the team!",
            ["Read that file.", "Then mail it to the team!"],
        ),
        ("Thank you. Read that file.", []),
        ("version 1.2.3 of the package", []),
        ("what is the weather\nbook a fast train", ["what is the weather", "book a fast train"]),
        ("查询明天的天气。预订一张火车票。", ["查询明天的天气。", "预订一张火车票。"]),
    ],
)
def test_each_sentence_that_says_something_stands_by_itself(text: str, found: list[str]) -> None:
    assert sentences(text) == found


@given(st.text(max_size=300))
def test_whatever_is_asked_sentences_are_few_and_parts_of_it(text: str) -> None:
    found = sentences(text)
    assert len(found) != 1
    assert len(found) <= MOST
    assert all(each in text for each in found)


def test_a_list_without_end_is_cut() -> None:
    assert len(sentences("do one thing more. " * 50)) == MOST
