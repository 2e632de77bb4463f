"""The registry's answers over HTTP: in pieces where they are large, with when to come again."""

import json
from datetime import timedelta
from typing import Any

from comity.errors import NOTHING_HERE, SERVER_RESTARTING, MalformedMessage, Unavailable
from comity.http.asgi import Message
from comity.registry import api
from comity.registry.api import PIECE_BYTES, is_at_registry
from tests.support.cases import loop_over


class Line:
    """What is sent to a client."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def pieces(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]

    @property
    def body(self) -> Any:
        return json.loads(b"".join(self.pieces))


async def test_a_large_answer_goes_out_in_pieces() -> None:
    line = Line()
    body = json.dumps("x" * (3 * PIECE_BYTES)).encode()
    await api.send_json(line, 200, body)
    assert [len(piece) for piece in line.pieces] == [*[PIECE_BYTES] * 3, 2, 0]
    assert b"".join(line.pieces) == body
    assert line.headers[b"content-length"] == str(len(body)).encode()
    assert [message.get("more_body", False) for message in line.sent[1:]] == [*[True] * 4, False]


async def test_a_refusal_says_in_a_header_when_to_come_again() -> None:
    line = Line()
    away = Unavailable("it is away", SERVER_RESTARTING, timedelta(seconds=2.2))
    await api.send_refusal(line, away)
    assert line.sent[0]["status"] == 503
    assert line.headers[b"retry-after"] == b"3"
    assert line.body["error"]["data"]["retry_after_ms"] == 2200
    assert line.body["id"] is None


async def test_what_is_nowhere_is_not_found() -> None:
    line = Line()
    await api.send_refusal(line, MalformedMessage("nothing", NOTHING_HERE))
    assert line.sent[0]["status"] == 404
    assert b"retry-after" not in line.headers


@loop_over(
    ("path", "is_there"),
    [
        ("/tools", True),
        ("/tools/", True),
        ("/tools/a__b/validate", True),
        ("/openapi.json", True),
        ("/resources/read", True),
        ("/toolsmith", False),
        ("/api/tools", False),
        ("/mcp", False),
        ("/resources/other", False),
    ],
)
def test_the_registrys_words_are_spoken_at_its_paths_alone(path: str, is_there: bool) -> None:
    assert is_at_registry(path) is is_there
