"""Texts become the numbers that the model was trained with, whoever wrote them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.adapters.embedders_words import WordPieces
from comity.wire.errors import Misconfigured
from tests.adapters.weights import FOLDER, needs_weights

# What Hugging Face's `tokenizers` 0.23.3 says of these texts with the same vocabulary.
SAID = json.loads(Path(__file__).with_name("word_pieces.json").read_text(encoding="utf-8"))
SMALL = WordPieces("[PAD]\n[UNK]\n[CLS]\n[SEP]\nread\n##er\nfile\n-\ne", 8)


def vocabulary() -> WordPieces:
    assert FOLDER is not None
    return WordPieces((FOLDER / "vocab.txt").read_text(encoding="utf-8"), 256)


@needs_weights
def test_texts_are_the_numbers_of_the_usual_tokenizer() -> None:
    pieces = vocabulary()
    assert [pieces(text) for text, _ in SAID] == [numbers for _, numbers in SAID]


@needs_weights
def test_of_a_long_text_no_more_is_read_than_the_model_reads() -> None:
    assert len(vocabulary()("the quick brown fox " * 10_000)) == 256


def test_the_longest_piece_comes_first_and_what_is_unknown_is_one() -> None:
    assert SMALL("Reader") == [2, 4, 5, 3]
    assert SMALL("read-file") == [2, 4, 7, 6, 3]
    assert SMALL("readx") == [2, 1, 3]
    assert SMALL("é") == SMALL("E") == [2, 8, 3]


def test_a_word_of_a_megabyte_is_one_unknown_piece() -> None:
    assert SMALL("x" * 1_000_000) == [2, 1, 3]


@given(st.text(max_size=200))
def test_whatever_the_text_the_numbers_are_few_and_known(text: str) -> None:
    numbers = SMALL(text)
    assert numbers[0] == 2
    assert numbers[-1] == 3
    assert len(numbers) <= 8
    assert all(0 <= number < 9 for number in numbers)


def test_a_vocabulary_without_marks_is_none() -> None:
    with pytest.raises(Misconfigured, match="no '\\[UNK\\]'"):
        WordPieces("read\nfile", 8)
