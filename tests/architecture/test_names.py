"""The report of `scripts/names`, and the limits that `scripts/check` holds it against."""

from tests.architecture import names
from tests.support.cases import loop_over


@loop_over(
    ("name", "words"),
    [
        ("ApprovalRequest", ["approval", "request"]),
        ("HTTPServer", ["http", "server"]),
        ("_Held", ["held"]),
        ("list_tools", ["list", "tools"]),
    ],
)
def test_a_name_is_split_into_its_words(name: str, words: list[str]) -> None:
    assert names.words_of(name) == words


@loop_over("name", ["Held", "Caring", "turn_taking", "told", "HeldInTopicWaiting"])
def test_a_gerund_or_participle_at_the_end_is_a_verb_form(name: str) -> None:
    assert names.is_verb_form(name)


@loop_over(
    "name", ["ToolRouting", "signing", "AcceptedDefinitions", "pending_calls", "feed", "string"]
)
def test_a_word_of_the_field_or_a_noun_is_no_verb_form(name: str) -> None:
    assert not names.is_verb_form(name)


def test_every_limit_is_about_a_figure_and_is_kept() -> None:
    figures = names.measure()
    assert names.read_limits().keys() <= figures.keys()
    assert names.worse_than_the_limits(figures) == []


def test_a_figure_above_its_limit_is_told() -> None:
    figures = {**names.measure(), "modules": 1_000_000.0}
    (told,) = names.worse_than_the_limits(figures)
    assert told.startswith("modules is 1e+06")
