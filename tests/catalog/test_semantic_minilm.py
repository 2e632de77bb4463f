"""The built-in embedder: its tokenizer and its vectors are those of the original model."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.catalog.semantic.minilm import (
    GET_WEIGHTS,
    VOCABULARY,
    WEIGHTS,
    MiniLm,
    WordPieces,
    find_weights,
)
from comity.errors import Misconfigured, Unavailable
from tests.support.weights import FOLDER, needs_weights

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


# Cosines of the original in full precision, by sentence-transformers' own recipe.
ORIGINAL = (
    ("read a file from disk", "open a document and show what is in it", 0.2856),
    ("read a file from disk", "what is the weather like tomorrow", 0.0126),
    ("send an email to the team", "mail this to my colleagues", 0.5138),
)


def model() -> MiniLm:
    assert FOLDER is not None
    return MiniLm(FOLDER)


@needs_weights
@pytest.mark.timeout(120)
async def test_vectors_are_those_of_the_original_but_for_rounding() -> None:
    embedder = model()
    texts = [text for one, other, _ in ORIGINAL for text in (one, other)]
    found = np.asarray(await embedder.embed(texts))
    await embedder.close()
    assert found.shape == (6, embedder.size)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-4)
    cosines = [float(found[at] @ found[at + 1]) for at in range(0, 6, 2)]
    assert cosines == pytest.approx([cosine for *_, cosine in ORIGINAL], abs=0.04)


@needs_weights
@pytest.mark.timeout(120)
async def test_a_vector_does_not_depend_on_what_stands_beside_it() -> None:
    embedder = model()
    alone = np.asarray(await embedder.embed(["read a file"]))[0]
    beside = np.asarray(await embedder.embed(["x" * 5_000, "read a file", ""]))[1]
    await embedder.close()
    assert (alone == beside).all()


@needs_weights
@pytest.mark.timeout(120)
async def test_a_question_is_answered_while_a_catalog_is_read() -> None:
    embedder = model()
    await embedder.embed(["load the model"])
    catalog = asyncio.ensure_future(embedder.embed(["a tool that does something " * 40] * 500))
    await embedder.embed(["read a file"])
    assert not catalog.done()
    await embedder.close()
    with pytest.raises(Unavailable, match="closing"):
        await catalog


def test_without_weights_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str) -> None:
        return None

    monkeypatch.setattr("comity.catalog.semantic.minilm.find_spec", nowhere)
    with pytest.raises(Misconfigured) as told:
        find_weights()
    assert str(told.value) == GET_WEIGHTS
    with pytest.raises(Misconfigured, match=r"has no model\.safetensors and vocab\.txt"):
        find_weights(str(tmp_path))


@needs_weights
async def test_weights_that_were_changed_are_not_used(tmp_path: Path) -> None:
    assert FOLDER is not None
    for name in (WEIGHTS, VOCABULARY):
        shutil.copy(FOLDER / name, tmp_path / name)
    assert find_weights(str(tmp_path)) == tmp_path
    with (tmp_path / WEIGHTS).open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\1\2\3\4")
    embedder = MiniLm(find_weights(str(tmp_path)))
    with pytest.raises(Unavailable, match="its hash differs"):
        await embedder.embed(["read a file"])
    await embedder.close()
    (tmp_path / WEIGHTS).write_bytes(b"short")
    with pytest.raises(Misconfigured, match="its length differs"):
        find_weights(str(tmp_path))


async def test_weights_that_are_gone_make_it_unavailable(tmp_path: Path) -> None:
    embedder = MiniLm(tmp_path)
    with pytest.raises(Unavailable, match="cannot be read"):
        await embedder.embed(["read a file"])
    await embedder.close()
