"""Whether SQL may write; the named cases are in `tests/security/cases/readonly.toml`."""

import time

from comity.validation.readonly import MOST_CHARACTERS, looks_like_writing, sql_write_reason
from tests.pace import here
from tests.support.cases import loop_over


def test_why_a_statement_may_write_is_told() -> None:
    assert sql_write_reason("SELECT 1") is None
    assert sql_write_reason("SELECT 1; SELECT 2") == "it holds more than one statement"
    assert sql_write_reason("UPDATE t SET a = 1") == "the statement is not one that only reads"
    assert (
        sql_write_reason("WITH x AS (INSERT INTO t VALUES (1)) SELECT 1")
        == "the statement holds INSERT"
    )


@loop_over("text", ["/*" * 20_000, "'" * 30_001, '"x' * 20_000, "[" * 40_000, "-- " * 9000])
def test_no_text_takes_long_to_read(text: str) -> None:
    before = time.thread_time()
    sql_write_reason(text)
    looks_like_writing(text)
    assert time.thread_time() - before < here(0.1)


def test_a_text_that_is_too_long_is_not_read() -> None:
    assert sql_write_reason("SELECT " + "1," * MOST_CHARACTERS + "1") is not None
