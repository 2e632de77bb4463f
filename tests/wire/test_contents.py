"""Blocks of content: one form inside, strict for strangers, and nothing that nobody can read."""

import pytest

from comity.wire import jsonrpc
from comity.wire.contents import Block, content_in, said, text_of, to_wire
from comity.wire.errors import MalformedMessage

IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("hi", (Block("text", "hi"),)),
        ({"type": "text", "text": "hi"}, (Block("text", "hi"),)),
        ([{"type": "text", "text": ""}], (Block("text", ""),)),
        ([IMAGE], (Block("image", data="aGk=", mime="image/png"),)),
        ([{"type": "audio", "uri": "https://x"}], (Block("audio", uri="https://x"),)),
        ([{"type": "resource", "uri": "file:///x"}], (Block("resource", uri="file:///x"),)),
        ([], ()),
    ],
)
def test_content_is_always_blocks_inside(written: object, read: tuple[Block, ...]) -> None:
    assert content_in(jsonrpc.to_raw(written)) == read


@pytest.mark.parametrize(
    "written",
    [
        7,
        None,
        ["hi"],
        [{"type": "text"}],
        [{"type": "hologram"}],
        [{"type": "image"}],
        [{"type": "image", "data": "aGk="}],
        [{**IMAGE, "uri": "https://x"}],
        [{"type": "resource"}],
        [{"type": "text", "text": 7}],
        [{"type": "text", "text": "x"}] * 257,
    ],
)
def test_what_is_no_content_is_refused(written: object) -> None:
    with pytest.raises(MalformedMessage):
        content_in(jsonrpc.to_raw(written))


def test_content_that_is_missing_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="the answer"):
        content_in(None, "the answer")


def test_what_is_no_text_is_named() -> None:
    blocks = content_in(jsonrpc.to_raw([{"type": "text", "text": "see"}, IMAGE]))
    assert text_of(blocks) == "see\n[image: image/png]"
    assert [each.size for each in blocks] == [3, 4]


def test_it_is_written_as_it_was_read() -> None:
    assert to_wire(content_in(jsonrpc.to_raw([IMAGE]))) == [IMAGE]
    assert to_wire(said("hi")) == [{"type": "text", "text": "hi"}]
    assert said("") == ()
