"""Who a body says has acted: its sender, or it is refused."""

import pytest

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.http.api_input import AUTHOR_FIELDS, RequestBody, decode_body
from tests.support.cases import loop_over


class LabelBody(RequestBody, frozen=True):
    """A body without a field for its author."""

    label: str = ""


@loop_over("name", sorted(AUTHOR_FIELDS))
@loop_over("value", ["person:root", "Agent:ci", "agent:ci ", 7, ["agent:ci"], True])
def test_a_message_that_names_another_as_who_acts_is_refused(name: str, value: object) -> None:
    with pytest.raises(MalformedMessage, match=name) as refused:
        decode_body(LabelBody, {name: value, "label": "x"}, "agent:ci")
    assert refused.value.fault is INVALID_PARAMS


@loop_over("value", [None, "", "agent:ci"])
def test_a_message_may_name_its_sender_or_nobody(value: object) -> None:
    said = {**dict.fromkeys(AUTHOR_FIELDS, value), "label": "y"}
    assert decode_body(LabelBody, said, "agent:ci") == LabelBody("y")


def test_what_is_written_down_is_never_what_a_message_says() -> None:
    assert AUTHOR_FIELDS.isdisjoint(LabelBody.__struct_fields__)
    said: dict[str, object] = {**dict.fromkeys(AUTHOR_FIELDS, "x"), "label": "y"}
    assert decode_body(LabelBody, said, "x") == LabelBody("y")
