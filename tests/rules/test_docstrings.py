"""What a docstring says of a function and of its parameters."""

import pytest

from comity.rules.docstrings import read


def test_no_docstring_says_nothing() -> None:
    told = read(None)
    assert (told.description, told.parameters) == ("", {})


def test_what_is_in_no_form_is_description() -> None:
    told = read("""Finds things.

        In all places: also in `a: b`.
        """)
    assert told.description == "Finds things.\n\nIn all places: also in `a: b`."
    assert told.parameters == {}


def test_a_section_of_arguments_is_read_and_left_out_of_the_description() -> None:
    told = read("""Finds things.

        Args:
            where: The place,
                in two lines: with a colon.
            how (str, optional): The way.
            *rest: What is left.

        Returns:
            thing: the thing.

        It ends here.
        """)
    assert told.description == "Finds things.\n\nIt ends here."
    assert told.parameters == {
        "where": "The place, in two lines: with a colon.",
        "how": "The way.",
        "rest": "What is left.",
    }


def test_fields_are_read_wherever_they_stand() -> None:
    told = read("""Finds things.

        :param where: The place,
            in two lines.
        :param str how: The way.
        :returns: the thing
        """)
    assert told.description == "Finds things."
    assert told.parameters == {"where": "The place, in two lines.", "how": "The way."}


@pytest.mark.parametrize("text", [":", ":param", ":param x", "Args:", "Args:\n  :", "\x00", "  "])
def test_half_a_form_harms_nobody(text: str) -> None:
    assert read(text).parameters == {}
