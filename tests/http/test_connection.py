"""One connection, fed exact bytes: what its reader hears, and whether it may be used again."""

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.http.client.connection import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    PORTION_BYTES,
    HttpClientRequest,
    HttpHeadRequest,
)
from tests.http.talk import Notes, Talk
from tests.support.cases import loop_over

pytestmark = pytest.mark.integration


def head(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked"
WHOLE: dict[str, tuple[bytes, int, bytes]] = {
    "length": (head(b"Content-Length: 5") + b"hello", 200, b"hello"),
    "no body": (head(b"Content-Length: 0", status=b"202 Accepted"), 202, b""),
    "chunks": (head(CHUNKED) + b"2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n", 200, b"hello"),
    "trailers": (head(CHUNKED) + b"1\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n", 200, b"x"),
    "204": (head(status=b"204 No Content"), 204, b""),
    "304 with a length": (head(b"Content-Length: 9", status=b"304 Same"), 304, b""),
    "interim": (
        head(status=b"100 Continue")
        + head(b"Link: </x>", status=b"103 Early Hints")
        + head(b"Content-Length: 1")
        + b"x",
        200,
        b"x",
    ),
    "1.0 kept alive": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx",
        200,
        b"x",
    ),
}


@loop_over("name", WHOLE)
def test_a_whole_response_is_read_and_the_connection_kept(name: str) -> None:
    answer, status, body = WHOLE[name]
    talk = Talk().hear(answer)
    assert (talk.notes.status, talk.notes.body, talk.notes.endings) == (status, body, ["ended"])
    assert talk.released == 1
    assert talk.wire.is_open


@loop_over("name", WHOLE)
def test_a_response_leaves_nothing_behind_for_the_next(name: str) -> None:
    answer, status, body = WHOLE[name]
    talk, again = Talk().hear(answer), Notes()
    talk.connection.begin(HttpClientRequest(talk, b"", again, may_repeat=False))
    talk.hear(answer)
    assert (again.status, again.body, again.headers) == (status, body, talk.notes.headers)


@given(st.data())
def test_a_response_may_be_split_anywhere(data: st.DataObject) -> None:
    answer, status, body = data.draw(st.sampled_from(list(WHOLE.values())))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(answer) - 1))))
    pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    talk = Talk()
    for _ in range(2):  # the second time on a parser that has read a response before
        notes = Notes()
        talk.connection.begin(HttpClientRequest(talk, b"", notes, may_repeat=False))
        talk.hear(*pieces)
        assert (notes.status, notes.body, notes.endings) == (status, body, ["ended"])
    assert talk.released == 2


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_whatever_leave_a_reader_without_an_ending(pieces: list[bytes]) -> None:
    for start in (b"", head(CHUNKED), head(b"Content-Length: 3"), head()):
        talk = Talk().hear(start, *pieces) if start else Talk().hear(*pieces)
        talk.hear_the_end()
        assert len(talk.notes.endings) == 1


def test_header_names_are_lower_case_and_values_stripped() -> None:
    talk = Talk().hear(head(b"X-Name:  a b \t", b"Content-Length: 0"))
    assert talk.notes.headers == [(b"x-name", b"a b"), (b"content-length", b"0")]


@loop_over(
    "answer",
    [
        head(b"Connection: close", b"Content-Length: 1") + b"x",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
        head(b"Content-Length: 1") + b"xH",
        head(b"Content-Length: 1") + b"x" + head(b"Content-Length: 4") + b"evil",
        head(b"Content-Length: 1") + b"xjunk",
        head(b"Connection: close", b"Content-Length: 1") + b"xjunk",
    ],
)
def test_a_connection_is_not_kept_when_it_should_close_or_bytes_are_left_over(
    answer: bytes,
) -> None:
    talk = Talk().hear(answer)
    assert (talk.notes.body, talk.notes.endings) == (b"x", ["ended"])
    assert talk.released == 0
    assert not talk.wire.is_open


@loop_over("rest", [b"", b"hello"])
def test_a_response_to_head_has_no_body_whatever_its_length_says(rest: bytes) -> None:
    talk = Talk(kind=HttpHeadRequest).hear(head(b"Content-Length: 5") + rest)
    assert (talk.notes.status, talk.notes.body, talk.notes.endings) == (200, b"", ["ended"])
    assert talk.released == 0
    assert not talk.wire.is_open


@loop_over("headers", [(), (b"Transfer-Encoding: gzip",)])
def test_a_body_without_an_end_ends_with_the_connection(headers: tuple[bytes, ...]) -> None:
    talk = Talk().hear(head(*headers) + b"hel", b"lo")
    assert talk.notes.endings == []
    talk.hear_the_end()
    assert (talk.notes.body, talk.notes.endings) == (b"hello", ["ended"])


@loop_over(
    "answer",
    [
        b"HTTP/1.1 200",
        head(status=b"100 Continue"),
        head(b"Content-Length: 5") + b"hell",
        head(CHUNKED) + b"5\r\nhello\r\n",
        head(b"Transfer-Encoding: gzip, chunked") + b"5\r\nhello\r\n",
    ],
)
def test_a_response_cut_off_before_its_end_fails(answer: bytes) -> None:
    talk = Talk().hear(answer).hear_the_end()
    assert talk.notes.endings == ["failed"]
    assert "in the middle of its answer" in talk.notes.because
    assert "unknown" in talk.notes.because


def test_a_body_that_ends_with_a_broken_connection_fails() -> None:
    talk = Talk().hear(head() + b"hel").hear_the_end(ConnectionResetError())
    assert talk.notes.endings == ["failed"]


def test_a_connection_lost_before_any_byte_leaves_the_outcome_unknown() -> None:
    talk = Talk().hear_the_end(ConnectionResetError())
    assert "before it answered" in talk.notes.because
    assert "whether the request was carried out is unknown" in talk.notes.because
    assert talk.losses == [None]


@loop_over(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"\x15\x03\x01\x00\x02\x02",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        head(b"Content-Length: 1", b"Content-Length: 1") + b"x",
        head(b"Content-Length: 1", CHUNKED) + b"1\r\nx\r\n0\r\n\r\n",
        head(CHUNKED, b"Content-Length: 1") + b"1\r\nx\r\n0\r\n\r\n",
        head(b"Content-Length: -1"),
        head(b"Content-Length: 99999999999999999999999999"),
        head(b"X : y"),
        head(b"X: a\x00b"),
        head(b"X: a", b" folded"),
        head(CHUNKED) + b"zz\r\n",
        head(CHUNKED) + b"-1\r\n",
        head(status=b"101 Switching"),
        head(b"Connection: Upgrade", b"Upgrade: h2c", status=b"101 Switching"),
        head(b"Content-Length: 0", status=b"000 None"),
        head(b"Content-Length: 0", status=b"999 Odd"),
    ],
)
def test_a_malformed_response_fails_and_drops_the_connection(answer: bytes) -> None:
    talk = Talk().hear(answer)
    assert talk.notes.endings == ["failed"]
    assert "malformed" in talk.notes.because
    assert "Check that the URL" in talk.notes.because
    assert talk.released == 0
    assert not talk.wire.is_open


@loop_over(
    "pieces",
    [
        [head(b"X: " + b"y" * MAX_HEAD_BYTES, b"Content-Length: 0")],
        [b"HTTP/1.1 200 OK\r\nX: ", *[b"y" * 4096] * 17],
        [b"HTTP/1.1 200 ", *[b"y" * 4096] * 17],
        [head(status=b"100 Continue")] * (MAX_HEAD_BYTES // 20),
        [head(*[b"A: b"] * (MAX_HEADERS + 1))],
        [head(CHUNKED) + b"1\r\nx\r\n0\r\nX: ", *[b"y" * 4096] * 18],
        [head(CHUNKED) + b"1;", *[b"y" * 4096] * 18],
    ],
    ids=["one", "value", "reason", "interims", "count", "trailer", "extension"],
)
async def test_what_the_server_says_beside_its_body_is_bounded(pieces: list[bytes]) -> None:
    talk = await portioned(Talk().hear(*pieces))
    assert talk.notes.endings == ["failed"]
    assert "more than" in talk.notes.because


async def test_a_large_first_read_is_mostly_body_and_no_large_head() -> None:
    body = b"x" * (4 * MAX_HEAD_BYTES)
    talk = await portioned(Talk().hear(head(b"Content-Length: %d" % len(body)) + body))
    assert (talk.notes.body == body, talk.notes.endings) == (True, ["ended"])


async def test_a_large_read_is_taken_in_portions_between_which_others_go_on() -> None:
    body = b"x" * (3 * PORTION_BYTES)
    talk = Talk().hear(head(b"Content-Length: %d" % len(body)) + body)
    for portion in range(1, 4):
        assert (portion - 1) * PORTION_BYTES < len(talk.notes.body) <= portion * PORTION_BYTES
        assert not talk.wire.reads
        await asyncio.sleep(0)
    assert (talk.notes.body == body, talk.notes.endings) == (True, ["ended"])
    assert talk.wire.reads
    assert talk.released == 1


async def test_a_reader_that_rests_is_given_no_portion_meanwhile() -> None:
    body = b"x" * (2 * PORTION_BYTES)
    talk = Talk().hear(head(b"Content-Length: %d" % len(body)) + body)
    talk.sending.pause()
    await portioned(talk)
    assert len(talk.notes.body) <= PORTION_BYTES
    talk.sending.resume()
    await portioned(talk)
    assert talk.notes.body == body


async def test_what_waits_behind_a_response_is_no_answer_to_the_next_request() -> None:
    smuggled = head(b"Content-Length: 1") + b"y"
    talk = Talk().hear(head(b"Content-Length: 1") + b"x" + smuggled * (2 * PORTION_BYTES // 40))
    await portioned(talk)
    assert (talk.notes.body, talk.released, talk.wire.is_open) == (b"x", 0, False)


async def portioned(talk: Talk) -> Talk:
    """The same when it has had its turns."""
    for _ in range(20):
        await asyncio.sleep(0)
    return talk


def test_tiny_chunks_without_end_are_a_stream_and_no_attack() -> None:
    talk = Talk().hear(head(CHUNKED), *[b"1\r\nx\r\n"] * (MAX_HEAD_BYTES // 3))
    assert talk.notes.endings == []
    assert len(talk.notes.body) == MAX_HEAD_BYTES // 3


@pytest.mark.parametrize("where", ["started", "data", "ended"])
def test_a_reader_that_raises_is_logged_and_told_once(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        talk = Talk(Notes(raises_at=where)).hear(head(b"Content-Length: 1") + b"x")
    assert talk.notes.endings == (["ended"] if where == "ended" else ["failed"])
    assert talk.released == (1 if where == "ended" else 0)
    assert talk.wire.is_open is (where == "ended")
    assert caplog.records[0].exc_info is not None


def test_a_reader_that_raises_on_failure_does_not_disturb_its_keeper(
    caplog: pytest.LogCaptureFixture,
) -> None:
    talk = Talk(Notes(raises_at="failed")).hear_the_end()
    assert talk.losses == [None]
    assert "while handling an error" in caplog.text


def test_an_aborted_request_drops_the_connection_and_says_nothing() -> None:
    talk = Talk().hear(head(b"Content-Length: 9") + b"x")
    talk.sending.abort()
    talk.sending.abort()
    assert not talk.wire.is_open
    talk.connection.connection_lost(None)
    assert (talk.notes.endings, talk.losses) == ([], [None])


@loop_over("where", ["started", "data"])
def test_a_reader_may_abort_from_within_its_own_callback(where: str) -> None:
    class Quitter(Notes):
        def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
            super().started(status, headers)
            if where == "started":
                talk.sending.abort()

        def data(self, chunk: bytes) -> None:
            super().data(chunk)
            if where == "data":
                talk.sending.abort()

    talk = Talk(Quitter())
    talk.hear(head(b"Content-Length: 1") + b"x")
    assert talk.notes.endings == []
    assert talk.released == 0
    assert not talk.wire.is_open


def test_a_finished_request_has_no_power_over_the_connection_any_more() -> None:
    talk = Talk().hear(head(b"Content-Length: 0"))
    talk.sending.pause()
    talk.sending.abort()
    assert talk.wire.is_open
    assert talk.wire.reads


def test_pause_and_resume_reach_the_transport_and_end_with_the_response() -> None:
    talk = Talk()
    talk.sending.pause()
    assert not talk.wire.reads
    talk.sending.resume()
    assert talk.wire.reads
    talk.sending.pause()
    talk.hear(head(b"Content-Length: 0"))
    assert talk.wire.reads


def test_bytes_that_nobody_asked_for_drop_an_idle_connection() -> None:
    talk = Talk().hear(head(b"Content-Length: 0"))
    talk.hear(head(b"Content-Length: 4") + b"evil")
    assert not talk.wire.is_open


def test_a_connection_whose_request_is_not_fully_written_is_not_used_again() -> None:
    talk = Talk()
    talk.connection.pause_writing()
    talk.hear(head(b"Content-Length: 0"))
    assert (talk.notes.endings, talk.released, talk.wire.is_open) == (["ended"], 0, False)


def test_a_server_that_closes_without_reading_the_request_is_not_waited_for() -> None:
    talk = Talk()
    talk.connection.pause_writing()
    talk.connection.eof_received()
    assert not talk.wire.is_open
