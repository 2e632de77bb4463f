"""The states of a server, in the words that MGP has for them."""

from comity.wire.lifecycle import State


def test_a_server_has_the_seven_states_of_the_document() -> None:
    assert [str(state) for state in State] == [
        "registered",
        "connecting",
        "connected",
        "draining",
        "disconnected",
        "error",
        "restarting",
    ]
