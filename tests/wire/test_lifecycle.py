"""The states, conditions and reasons of a server, in the words that MGP has for them."""

from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import pytest

from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.lifecycle import (
    Reason,
    RestartPolicy,
    State,
    Status,
    changed,
    moment,
    shutdown_in,
)


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (
            State,
            "registered connecting connected draining disconnected error restarting",
        ),
        (Status, "healthy degraded unhealthy"),
        (
            Reason,
            "operator_request configuration_change resource_limit idle_timeout kernel_shutdown",
        ),
        (RestartPolicy, "never on_failure always"),
    ],
)
def test_the_words_are_those_of_the_document(words: type[StrEnum], written: str) -> None:
    assert [str(word) for word in words] == written.split()


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=9))])
def test_a_moment_is_written_in_universal_time(zone: timezone) -> None:
    at = datetime(2026, 11, 2, 8, 0, 0, 5499, UTC).astimezone(zone)
    assert moment(at) == "2026-11-02T08:00:00.005Z"


def test_a_change_of_state_is_told_in_the_words_of_the_document() -> None:
    at = datetime(2026, 11, 2, 8, 0, tzinfo=UTC)
    frame = changed("mind", State.CONNECTED, State.DRAINING, Reason.OPERATOR_REQUEST, at)
    assert frame.method == "notifications/mgp.lifecycle"
    assert jsonrpc.value(jsonrpc.to_raw(jsonrpc.params_of(frame))) == {
        "server_id": "mind",
        "previous_state": "connected",
        "new_state": "draining",
        "reason": "operator_request",
        "timestamp": "2026-11-02T08:00:00.000Z",
    }


@pytest.mark.parametrize("reason", list(Reason))
def test_an_end_is_wanted_for_one_of_the_known_reasons(reason: Reason) -> None:
    assert shutdown_in({"reason": jsonrpc.to_raw(reason)}) is reason


@pytest.mark.parametrize("params", [{}, {"reason": 7}, {"reason": "boredom"}, {"reason": None}])
def test_no_other_reason_is_one(params: dict[str, object]) -> None:
    with pytest.raises(MalformedMessage):
        shutdown_in({name: jsonrpc.to_raw(value) for name, value in params.items()})
