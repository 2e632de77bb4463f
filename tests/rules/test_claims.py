"""Who a message says has done something: itself, or it is refused."""

import pytest

from comity.rules.claims import DONE_BY, refuse_claims, without_claims
from comity.wire.errors import INVALID_PARAMS, MalformedMessage


@pytest.mark.parametrize("name", sorted(DONE_BY))
@pytest.mark.parametrize("value", ["person:root", "Agent:ci", "agent:ci ", 7, ["agent:ci"], True])
def test_a_message_that_names_another_as_who_acts_is_refused(name: str, value: object) -> None:
    with pytest.raises(MalformedMessage, match=name) as refused:
        refuse_claims({name: value, "party": "x"}, "agent:ci")
    assert refused.value.fault is INVALID_PARAMS


@pytest.mark.parametrize("value", [None, "", "agent:ci"])
def test_a_message_may_name_its_sender_or_nobody(value: object) -> None:
    refuse_claims(dict.fromkeys(DONE_BY, value), "agent:ci")


def test_what_is_written_down_is_never_what_a_message_says() -> None:
    said: dict[str, object] = {**dict.fromkeys(DONE_BY, "x"), "label": "y"}
    assert without_claims(said) == {"label": "y"}
