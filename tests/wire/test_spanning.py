"""What nodes say of a topic: read as it was written, and nothing else is."""

import pytest

from comity.wire import spanning
from comity.wire.errors import MalformedMessage
from comity.wire.spanning import Called, Came, Passed, Roll, Spanned, There, Went

ANA = There("person:ana@example.org", ("chat",), "2026-01-01")
WORDS: list[Spanned] = [
    Passed("ops", "n-1", 7, "e", "agent:a", "chat", ("agent:b",), "", b'{"x": 1}'),
    Came("ops", "n-1", ANA),
    Went("ops", "n-1", "agent:a"),
    Roll("ops", "n-1", 3, (ANA,)),
    Called("ops", "n-1"),
]


@pytest.mark.parametrize("said", WORDS, ids=lambda said: type(said).__name__)
def test_what_was_written_is_read_again(said: Spanned) -> None:
    assert spanning.decode(spanning.encode(said)) == said


@pytest.mark.parametrize("data", [b"", b"{}", b"\xc1", b"\x92\xa4said\x01", b"\xff" * 100])
def test_what_is_no_word_of_a_node_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        spanning.decode(data)


def test_a_topic_is_one_part_of_a_subject_whatever_it_is_called() -> None:
    parts = {spanning.part(topic) for topic in ("ops", "ops.eu", "ops-eu", "OPS")}
    assert len(parts) == 4
    assert all(part.isalnum() for part in parts)
