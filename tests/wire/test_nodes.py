"""A node's name, its epoch, and the sessions that are named after it."""

from secrets import token_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.wire import nodes
from comity.wire.errors import MalformedMessage
from comity.wire.nodes import Beat, epoch_in, new_node


def test_a_node_is_another_one_after_each_start() -> None:
    first, second = new_node("east-1", b"12345678"), new_node("east-1", b"87654321")
    assert first.name == second.name == "east-1"
    assert first.id != second.id
    assert first.id.startswith("east-1-")


@pytest.mark.parametrize("name", ["", "...", "a.b *>", "ä" * 99])
def test_whatever_a_machine_is_called_its_node_fits_into_a_subject(name: str) -> None:
    said = new_node(name, b"12345678").id.replace("-", "").replace("_", "")
    assert said.isascii()
    assert said.isalnum()


def test_a_session_tells_at_which_node_it_is() -> None:
    node = new_node("a", b"12345678")
    assert epoch_in(node.session_id(token_bytes(16))) == node.epoch
    assert node.session_id(token_bytes(16)) != node.session_id(token_bytes(16))
    assert "a-" not in node.session_id(token_bytes(16))


@pytest.mark.parametrize("name", ["", "0" * 32, "0" * 47, "0" * 49, "G" * 48, "0" * 48 + "\n"])
def test_a_name_that_no_node_has_given_is_at_none(name: str) -> None:
    assert epoch_in(name) is None


def test_a_sign_of_life_is_read_as_it_was_given() -> None:
    beat = Beat("a", "0" * 16, runs={"files": 7})
    assert nodes.decode(nodes.encode(beat)) == beat


@given(st.binary(max_size=64))
def test_whatever_comes_is_a_sign_of_life_or_is_refused(data: bytes) -> None:
    try:
        nodes.decode(data)
    except MalformedMessage:
        return
