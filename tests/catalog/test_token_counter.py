"""How tokens are counted: by o200k where all of it is at hand, else by a stated estimate."""

import json
import math
import time
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from comity.catalog import token_counter
from comity.catalog.discovery_messages import DEFINITIONS
from comity.catalog.token_counter import ENCODING_FILE, MAX_EXACT_BYTES, open_token_counter
from tests.pace import here
from tests.support.cases import loop_over
from tests.support.o200k import encoding_folder

HELLO = b'{"name":"read_file","description":"Reads the text of a file"}'


@given(st.binary(max_size=5000))
def test_the_estimate_is_the_length_over_what_a_token_has_rounded_up(text: bytes) -> None:
    tokens = open_token_counter({})
    assert (tokens.method, tokens.is_exact) == ("bytes/4.3", False)
    assert tokens.count(text) == math.ceil(len(text) / 4.3)


def test_with_its_file_at_hand_the_tokenizer_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(encoding_folder())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)
    tokens = open_token_counter({"TIKTOKEN_CACHE_DIR": folder})
    assert (tokens.method, tokens.is_exact) == ("o200k", True)
    said = tiktoken.get_encoding("o200k_base")
    for text in (HELLO, "日本語 <|endoftext|> ü".encode(), *DEFINITIONS.values()):
        assert tokens.count(text) == len(said.encode(text.decode(), disallowed_special=()))
    # What is no text is counted all the same, and what is endless is only measured.
    assert tokens.count(b"\xff\xfe") > 0
    assert tokens.count(b"a" * (MAX_EXACT_BYTES + 1)) == math.ceil((MAX_EXACT_BYTES + 1) / 4.3)


def test_no_text_keeps_it_busy_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(encoding_folder())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)
    tokens = open_token_counter({"TIKTOKEN_CACHE_DIR": folder})
    for piece in (b"a", b" ", b"\n", b"ab", "日".encode(), b"\xcc\x81"):
        before = time.thread_time()
        tokens.count(piece * (MAX_EXACT_BYTES // len(piece)))
        assert time.thread_time() - before < here(0.5)


def test_the_estimate_is_near_what_the_tokenizer_says(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(encoding_folder())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)
    exact, estimate = open_token_counter({"TIKTOKEN_CACHE_DIR": folder}), open_token_counter({})
    both = [(exact.count(each), estimate.count(each)) for each in DEFINITIONS.values()]
    off = sorted(abs(said - guessed) / said for said, guessed in both)
    assert off[len(off) // 2] < 0.2, json.dumps(both)


@loop_over("held", [None, b"", b"IQ== 0\n"])
def test_without_the_very_file_nothing_is_fetched_and_tokens_are_estimated(
    tmp_path: Path, held: bytes | None
) -> None:
    if held is not None:
        (tmp_path / ENCODING_FILE).write_bytes(held)
    assert not open_token_counter({"TIKTOKEN_CACHE_DIR": str(tmp_path)}).is_exact
    # Whatever it was, it is still there: tiktoken was not asked, which would have removed it.
    assert (tmp_path / ENCODING_FILE).exists() is (held is not None)


def test_without_the_package_tokens_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(encoding_folder())

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(token_counter.importlib, "import_module", missing)
    assert not open_token_counter({"TIKTOKEN_CACHE_DIR": folder}).is_exact
