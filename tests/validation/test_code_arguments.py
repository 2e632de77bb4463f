"""Which arguments are code."""

from comity.validation.rules import UNRULED, ValidationRules
from comity.validation.service import code_in, form_refusal


def names(arguments: dict[str, object], rules: ValidationRules = UNRULED) -> list[str]:
    return [each.where for each in code_in(arguments, rules) or []]


def test_code_is_known_by_its_name_or_the_operators_word() -> None:
    assert names({"code": "x", "title": "a b"}) == ["code"]
    assert names(
        {"body": "x = 1", "title": "a b"}, ValidationRules(arguments={"body": "code"})
    ) == ["body"]


def test_where_no_name_says_so_everything_may_be_code() -> None:
    assert names({"body": "import os", "title": "plain-word", "path": "/a b"}) == ["body"]


def test_code_in_parts_or_too_much_of_it_is_refused() -> None:
    assert form_refusal(code_in({"code": "x"}, UNRULED)) is None
    in_parts = form_refusal(code_in({"code": ["import", " os"]}, UNRULED))
    assert in_parts is not None
    assert in_parts.field == "code[0]"
    assert form_refusal(code_in({"a": ["x"] * 20_000}, UNRULED)) is not None
