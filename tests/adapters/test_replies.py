"""How a server's HTTP responses are read, piece by piece, without any socket."""

import asyncio
import json
from typing import Any

import pytest

from comity.adapters.upstream.replies import Discard, Reply, Standing
from comity.ports import Receiver
from comity.wire.errors import Unavailable
from comity.wire.jsonrpc import Limits
from tests.adapters.hearer import Hearer

JSON = [(b"content-type", b"application/json")]
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
ANSWER = b'{"jsonrpc":"2.0","id":2,"result":{}}'
REFUSAL: dict[str, Any] = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "no"}}


class Owner:
    """A carrier of which only the record is kept."""

    def __init__(self, limits: Limits | None = None, *, resumes: bool = True) -> None:
        self.limits = limits or Limits()
        self.hearer = Hearer()
        self.receiver: Receiver = self.hearer
        self.resumes = resumes
        self.forgets = False
        self.sessions: list[bytes] = []
        self.done: list[int] = []
        self.again: list[Reply] = []
        self.taken_up: list[str] = []
        self.listening: list[int] = []
        self.released = 0

    def begun(self, session: bytes) -> None:
        self.sessions.append(session)

    def finished(self, stream: int) -> None:
        self.done.append(stream)

    def may_be_forgotten(self, status: int) -> bool:
        return self.forgets and status == 404

    def ask_again(self, reply: Reply) -> None:
        self.again.append(reply)

    def take_up(self, reply: Reply) -> None:
        self.taken_up.append(reply.last_event_id)

    def listen_again(self, standing: Standing, status: int) -> None:
        self.listening.append(status)

    def release(self) -> None:
        self.released += 1


@pytest.fixture
async def owner() -> Owner:
    return Owner()


def reply_of(owner: Owner) -> Reply:
    return Reply(owner, 2, b"{}", ())


async def test_a_body_in_pieces_is_one_message(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, JSON)
    for number in range(len(ANSWER)):
        reply.data(ANSWER[number : number + 1])
    reply.ended()
    assert owner.hearer.messages == [(json.loads(ANSWER), 2, 200)]
    assert (owner.done, owner.hearer.opened) == ([2], [])


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (401, "check the credentials"),
        (403, "check the credentials"),
        (404, "check its URL"),
        (500, "HTTP 500"),
        (202, "HTTP 202"),
        (302, "HTTP 302"),
    ],
)
async def test_a_refusal_without_json_is_told_in_words(
    owner: Owner, status: int, told: str
) -> None:
    reply = reply_of(owner)
    reply.started(status, [(b"content-type", b"text/html")])
    reply.data(b"<h1>canary</h1>")
    reply.ended()
    assert told in owner.hearer.endings[2]
    assert "canary" not in owner.hearer.endings[2]


@pytest.mark.parametrize(
    ("status", "fault"),
    [(500, "upstream_failed"), (503, "upstream_down"), (504, "upstream_slow")],
)
async def test_a_status_tells_whether_a_server_failed_or_was_not_there(
    owner: Owner, status: int, fault: str
) -> None:
    reply = reply_of(owner)
    reply.started(status, [])
    reply.ended()
    assert owner.hearer.faults == [fault]


@pytest.mark.parametrize(
    ("status", "shown"), [(400, 400), (404, 404), (401, 200), (403, 200), (500, 200), (503, 200)]
)
async def test_a_refusal_in_json_is_the_answer_under_the_questions_id(
    owner: Owner, status: int, shown: int
) -> None:
    """Only what concerns the request keeps its status; a 401 is about the gateway."""
    reply = reply_of(owner)
    reply.started(status, JSON)
    reply.data(json.dumps(REFUSAL).encode())
    reply.ended()
    assert owner.hearer.messages == [({**REFUSAL, "id": 2}, 2, shown)]
    assert owner.hearer.endings == {}


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","method":"notifications/message"}',
        b'{"jsonrpc":"2.0","id":9,"method":"roots/list"}',
    ],
)
async def test_a_body_that_is_no_answer_leaves_the_question_unanswered(
    owner: Owner, body: bytes
) -> None:
    reply = reply_of(owner)
    reply.started(200, JSON)
    reply.data(body)
    reply.ended()
    assert "no JSON-RPC answer" in owner.hearer.endings[2]


async def test_a_body_over_the_limit_is_given_up_and_not_kept() -> None:
    owner = Owner(Limits(frame_bytes=1000))
    reply = reply_of(owner)
    reply.started(200, JSON)
    for _ in range(4):
        reply.data(b" " * 300)
        if owner.done:
            break
    assert "larger than a message may be" in owner.hearer.endings[2]
    assert owner.done == [2]


async def test_an_event_over_the_limit_ends_the_stream() -> None:
    owner = Owner(Limits(frame_bytes=1000))
    reply = reply_of(owner)
    reply.started(200, STREAM)
    reply.data(b'data: {"jsonrpc":"2.0","method":"a"}\n\ndata: ' + b"x" * 4000)
    assert [frame["method"] for frame, _, _ in owner.hearer.messages] == ["a"]
    assert "stream is broken" in owner.hearer.endings[2]


async def test_a_stream_with_a_status_that_is_no_success_is_a_refusal(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(500, STREAM)
    reply.data(b"data: " + ANSWER + b"\n\n")
    reply.ended()
    assert owner.hearer.messages == []
    assert "HTTP 500" in owner.hearer.endings[2]


async def test_a_session_of_absurd_length_is_not_kept(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, [*JSON, (b"mcp-session-id", b"s" * 2000)])
    reply.started(200, [*JSON, (b"mcp-session-id", b"")])
    assert owner.sessions == []


async def test_a_refused_question_is_asked_again_only_once(owner: Owner) -> None:
    owner.forgets = True
    reply = reply_of(owner)
    for _ in range(2):
        reply.started(404, JSON)
        reply.data(json.dumps(REFUSAL).encode())
        reply.ended()
    assert owner.again == [reply]
    assert [status for _, _, status in owner.hearer.messages] == [404]


async def test_a_stream_is_taken_up_from_its_last_event_id(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, STREAM)
    reply.data(b"id: a\nretry: 7\ndata:\n\nid: b\ndata:\n\n")
    reply.ended()
    assert (owner.taken_up, reply.retry_seconds) == (["b"], 0.007)
    assert owner.hearer.suspended == [2]
    reply.started(200, STREAM)
    reply.data(b"id: c\ndata: " + ANSWER + b"\n\n")
    assert owner.done == [2]
    assert owner.hearer.opened == [2]


async def test_a_stream_that_breaks_without_an_id_has_failed(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, STREAM)
    reply.data(b"data: half of an ev")
    reply.ended()
    assert 2 in owner.hearer.endings
    assert owner.taken_up == []


async def test_a_stream_of_the_modern_era_is_never_taken_up() -> None:
    owner = Owner(resumes=False)
    reply = reply_of(owner)
    reply.started(200, STREAM)
    reply.data(b"id: a\ndata:\n\n")
    reply.ended()
    assert owner.taken_up == []
    assert 2 in owner.hearer.endings


async def test_what_follows_the_answer_on_its_stream_ends_nothing_twice(owner: Owner) -> None:
    reply = reply_of(owner)
    reply.started(200, STREAM)
    reply.data(b"data: " + ANSWER + b"\n\n")
    reply.ended()
    assert (owner.done, owner.hearer.endings) == ([2], {})


@pytest.mark.parametrize(
    ("status", "headers", "told"),
    [(405, JSON, 405), (200, JSON, 405), (404, JSON, 404), (200, STREAM, 200), (503, [], 503)],
)
async def test_a_standing_stream_tells_why_it_ended(
    owner: Owner, status: int, headers: list[tuple[bytes, bytes]], told: int
) -> None:
    standing = Standing(owner)
    standing.started(status, headers)
    standing.ended()
    assert owner.listening == [told]


async def test_a_standing_stream_waits_longer_each_time_it_fails(owner: Owner) -> None:
    standing = Standing(owner)
    standing.started(200, STREAM)
    standing.data(b"retry: 0\n\n")
    shortest = standing.wait_seconds()
    assert shortest >= 0.1
    waits: list[float] = []
    for _ in range(8):
        standing.started(503, [])
        standing.ended()
        waits.append(standing.wait_seconds())
    assert waits == sorted(waits)
    assert waits[-1] == 32 * shortest
    standing.started(200, STREAM)
    assert standing.wait_seconds() == shortest


async def test_a_discarded_response_tells_when_it_is_over(owner: Owner) -> None:
    for status, headers in (
        (200, [(b"mcp-session-id", b"new")]),
        (500, [(b"mcp-session-id", b"x")]),
    ):
        discard = Discard(owner)
        discard.started(status, headers)
        discard.data(b"ignored")
        discard.ended()
        async with asyncio.timeout(5):
            await discard.done
        assert discard.named_a_session is (status == 200)
    assert owner.sessions == [b"new"]


async def test_whoever_waits_for_a_standing_stream_goes_on_once_whatever_came_of_it(
    owner: Owner,
) -> None:
    standing = Standing(owner)
    standing.failed(Unavailable("refused"))
    assert (owner.released, standing.is_answered) == (1, True)
    standing.started(200, [(b"content-type", b"text/event-stream")])
    assert owner.released == 1
