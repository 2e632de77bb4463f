"""The load generator accepts the right answer, however it is framed, and nothing else."""

import pytest

from bench.http_answers import Response, WrongAnswer, check_response, events, read_response

NUMBER = 10_000_007
ECHO = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"call %d, please"}]}}'
ANSWER = ECHO % (NUMBER, NUMBER)
EVENT = b"event: message\r\ndata: %b\r\n\r\n" % ANSWER

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%b\r\n%x;ext=1\r\n%b\r\n0\r\n\r\n" % (20, EVENT[:20], len(EVENT) - 20, EVENT[20:])
)


def whole(data: bytes) -> Response:
    response = read_response(data)
    assert response is not None
    return response


@pytest.mark.parametrize("data", [PLAIN, CHUNKED], ids=["plain", "chunked events"])
def test_a_response_is_read_only_when_all_of_it_is_there(data: bytes) -> None:
    assert all(read_response(data[:cut]) is None for cut in range(len(data)))
    response = whole(data)
    assert response.end == len(data)
    assert response.status == 200
    check_response(response, NUMBER)


def test_an_empty_acknowledgement_is_a_response() -> None:
    response = whole(b"HTTP/1.1 202 Accepted\r\nMcp-Session-Id: ab\r\n\r\n")
    assert (response.status, response.body) == (202, b"")
    assert response.header(b"mcp-session-id") == "ab"
    assert response.header(b"mcp-name") is None


def test_events_before_the_answer_are_passed_over() -> None:
    notice = b'data: {"jsonrpc":"2.0","method":"notifications/message"}\n\n'
    check_response(Response(b"", b": ping\n\n" + notice + EVENT, 0), NUMBER)
    assert len(events(notice + EVENT)) == 2


@pytest.mark.parametrize(
    "body",
    [
        ECHO % (NUMBER + 1, NUMBER),
        ECHO % (NUMBER, NUMBER + 1),
        b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"no"}}' % NUMBER,
        ANSWER[:-2] + b',"isError":true}}',
        b"data: " + ECHO % (NUMBER + 1, NUMBER + 1) + b"\n\n",
        b"",
    ],
    ids=["another id", "another echo", "an error", "a failed tool", "another event", "nothing"],
)
def test_any_other_answer_is_refused(body: bytes) -> None:
    with pytest.raises(WrongAnswer):
        check_response(Response(b"", body, 0), NUMBER)
