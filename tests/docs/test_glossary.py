"""The glossary page is generated from its table, and the table is usable by the prose linter."""

import re

import pytest

from tests.docs.glossary import PAGE, Term, page, terms


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_terms_are_unique_and_sorted() -> None:
    names = [each.term.casefold() for each in terms()]
    assert names == sorted(set(names))


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.term)
def test_a_definition_is_one_sentence(term: Term) -> None:
    assert re.fullmatch(r"[A-Z][^.\n]*(\.[^ \n][^.\n]*)*\.", term.definition)


def test_retired_words_are_plain_and_are_not_terms() -> None:
    retired = [word for each in terms() for word in each.retired]
    assert len(retired) == len(set(retired))
    assert all(re.fullmatch(r"[a-z][a-z -]*", word) for word in retired)
    assert not set(retired) & {each.term.casefold() for each in terms()}
