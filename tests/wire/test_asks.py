"""What an ask says of itself."""

from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.wire.asks import Answer, Ask, Kind, State, Verdict

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
ASK = Ask("0a", Kind.CONFIRM, "agent:ci", "files", "delete", "d1", "may it?", {}, NOW, LATER)


@pytest.mark.parametrize("state", State)
def test_an_ask_is_open_while_somebody_may_answer_it(state: State) -> None:
    assert replace(ASK, state=state).is_open == (state in (State.PENDING, State.DEFERRED))


def test_a_new_ask_needs_one_who_is_not_its_asker() -> None:
    assert (ASK.state, ASK.quorum, ASK.own, ASK.answers) == (State.PENDING, 1, False, ())


def test_what_was_said_cannot_be_changed_afterwards() -> None:
    answer: Any = Answer("person:ana@example.org", Verdict.ACCEPT, NOW)
    with pytest.raises(FrozenInstanceError):
        answer.verdict = Verdict.DECLINE
    with pytest.raises(TypeError):
        answer.content["a"] = 1
