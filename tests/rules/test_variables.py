"""Which texts change when variables are put in, and which must not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.variables import expand
from comity.wire.errors import Misconfigured

VARIABLES = {"KEY": "k3y", "EMPTY": "", "ODD": "${KEY} $${KEY}"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${KEY}", "k3y"),
        ("a${KEY}b${KEY}c", "ak3ybk3yc"),
        ("${env:KEY}", "k3y"),
        ("${EMPTY}", ""),
        ("${EMPTY:-other}", "other"),
        ("${MISSING:-other}", "other"),
        ("${MISSING:-}", ""),
        ("${KEY:-other}", "k3y"),
        ("${ODD}", "${KEY} $${KEY}"),
        ("$${KEY}", "${KEY}"),
        ("$${", "${"),
        ("pa$$word$1$KEY", "pa$$word$1$KEY"),
        ("{KEY}", "{KEY}"),
    ],
)
def test_a_text_becomes(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES) == expanded


def test_a_missing_variable_is_named_and_no_other() -> None:
    with pytest.raises(Misconfigured, match=r"variable MISSING is not set.*\$\{MISSING:-default\}"):
        expand("${KEY} ${MISSING}", VARIABLES)


@pytest.mark.parametrize("text", ["${", "${}", "${KEY", "${KEY:other}", "${1}"])
def test_what_looks_like_a_variable_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="no variable"):
        expand(text, VARIABLES)


@given(st.text().filter(lambda text: "${" not in text))
def test_a_text_without_variables_is_left_alone(text: str) -> None:
    assert expand(text, VARIABLES) == text


@given(st.text())
def test_a_value_arrives_as_it_is(value: str) -> None:
    assert expand("<${V}>", {"V": value}) == f"<{value}>"


def test_what_an_editor_would_ask_for_is_refused_with_what_to_write() -> None:
    with pytest.raises(Misconfigured, match=r"nobody can be asked here; write \$\{NAME\}"):
        expand("Bearer ${input:token}", VARIABLES)
