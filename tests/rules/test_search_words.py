"""The words of names and texts, and what they weigh, however much a server writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.search_words import (
    MOST_IMPACT,
    MOST_TERMS,
    Field,
    apart,
    impacts,
    one_word,
    saturated,
    words,
)


@pytest.mark.parametrize(
    "name", ["readFile", "read_file", "read-file", "READ FILE", "Read.File", "read/files"]
)
def test_a_name_is_its_words_however_they_are_set_apart(name: str) -> None:
    assert words(name) == ["read", "file"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HTTPServer", ["http", "server"]),
        ("parseMP3s", ["pars", "mp3", "s"]),
        ("the state of a file", ["state", "file"]),
        ("Café résumé", ["cafe", "resum"]),
        ("поиск файлов", ["поиск", "фаилов"]),
        ("搜索网页", ["搜索", "索网", "网页"]),
        ("天", ["天"]),
        ("파일 읽기", ["파일", "읽기"]),
        ("2 + 2", ["2", "2"]),
        ("😀 \ud800", []),
        ("", []),
    ],
)
def test_a_text_of_any_script_has_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert all(words(text))
    assert one_word(text) == one_word(one_word(text)) or not text.isascii()


def test_a_name_weighs_more_than_a_description_and_this_more_than_a_parameter() -> None:
    found = impacts(
        [(Field.NAME, "weather"), (Field.DESCRIPTION, "rain"), (Field.PARAMETERS, "city")]
    )
    assert found["weather"] > found["rain"] > found["citi"] > 0


def test_a_word_of_several_fields_weighs_more() -> None:
    both = impacts([(Field.NAME, "rain"), (Field.DESCRIPTION, "rain")])["rain"]
    assert both > impacts([(Field.NAME, "rain")])["rain"]


def test_a_word_that_is_repeated_a_thousand_times_gains_nothing_by_it() -> None:
    honest = impacts([(Field.DESCRIPTION, "send a mail to somebody")])["mail"]
    stuffed = impacts([(Field.DESCRIPTION, "mail " * 1_000)])["mail"]
    assert stuffed < honest


def test_of_a_description_of_a_megabyte_little_is_read() -> None:
    text = " ".join(f"word{number:06}" for number in range(100_000))
    assert len(impacts([(Field.DESCRIPTION, text)])) <= MOST_TERMS


def test_of_too_many_words_the_weightiest_are_kept() -> None:
    parameters = " ".join(f"p{number:03}" for number in range(400))
    found = impacts([(Field.PARAMETERS, parameters), (Field.NAME, "send_mail")])
    assert len(found) == MOST_TERMS
    assert {"send", "mail"} <= found.keys()


def test_an_impact_is_a_whole_number_that_fits_two_bytes() -> None:
    assert saturated(0.0) == 1
    assert saturated(1e9) <= MOST_IMPACT < 65_536


def test_a_name_is_one_word_without_what_sets_its_words_apart() -> None:
    assert one_word("Read_File-2") == one_word("readfile2") == "readfile2"
    assert one_word("Größe") == one_word("grosse") or one_word("Größe") == "grosse"


def test_a_name_for_a_model_has_its_words_set_apart() -> None:
    assert apart("readFile_v2-ofHTTPServer") == "read file v2 of http server"
