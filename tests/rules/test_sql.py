"""Whether SQL may write; the named cases are in `tests/security/cases/readonly.toml`."""

import time

import pytest

from comity.rules.sql import MOST_CHARACTERS, looks_like_writing, writing
from tests.pace import here


def test_why_a_statement_may_write_is_told() -> None:
    assert writing("SELECT 1") is None
    assert writing("SELECT 1; SELECT 2") == "it holds more than one statement"
    assert writing("UPDATE t SET a = 1") == "the statement is not one that only reads"
    assert writing("WITH x AS (INSERT INTO t VALUES (1)) SELECT 1") == "the statement holds INSERT"


@pytest.mark.parametrize(
    "text", ["/*" * 20_000, "'" * 30_001, '"x' * 20_000, "[" * 40_000, "-- " * 9000]
)
def test_no_text_takes_long_to_read(text: str) -> None:
    before = time.thread_time()
    writing(text)
    looks_like_writing(text)
    assert time.thread_time() - before < here(0.1)


def test_a_text_that_is_too_long_is_not_read() -> None:
    assert writing("SELECT " + "1," * MOST_CHARACTERS + "1") is not None
