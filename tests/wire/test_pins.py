"""What was accepted of a server."""

from comity.wire.pins import Pin, Registration


def test_a_pin_is_another_where_its_digest_is() -> None:
    first = Pin("files", "read", "aa", b"{}")
    assert first == Pin("files", "read", "aa", b"{}")
    assert first != Pin("files", "read", "bb", b"{}")


def test_a_registration_says_who_made_it() -> None:
    made = Registration("files", {"command": "x"}, "person:ana")
    assert (made.created_by, made.justification) == ("person:ana", "")
