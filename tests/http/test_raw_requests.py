"""What a listener makes of raw bytes: served, refused or cut; and what h11 makes of them."""

import asyncio
from datetime import timedelta
from urllib.parse import urlsplit

import h11
import pytest

from comity.http.connection import ListenerLimits
from comity.http.fast_path import FastPathRequest
from tests.http.raw_cases import CASES, HEADER_BYTES, URL_BYTES, Ending, RawCase
from tests.support.listening import PATIENCE_SECONDS, Receive, Scope, Send, answer, listening

pytestmark = pytest.mark.integration

LIMITS = ListenerLimits(
    header_time=timedelta(seconds=0.4), header_bytes=HEADER_BYTES, url_bytes=URL_BYTES
)
PROBE = b"GET /probe HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


class Recorder:
    """An application that records requests. It serves posts to /fast on the fast path."""

    def __init__(self) -> None:
        self.served: list[str] = []

    def serve(self, request: FastPathRequest) -> bool:
        if request.head.path != b"/fast":
            return False
        self.served.append(f"POST /fast {request.body.decode()}".rstrip())
        request.answer(200, b"{}")
        return True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event["body"]
            more = event["more_body"]
        target = (scope["raw_path"] + b"?" + scope["query_string"]).rstrip(b"?")
        self.served.append(_described(scope["method"], target, body))
        await answer(send, b"ok")


def _described(method: str, target: bytes, body: bytes) -> str:
    shown = body.decode("latin-1") if len(body) < 50 else f"{len(body)} bytes"
    return f"{method} {target.decode('latin-1')} {shown}".rstrip()


async def behaviour(case: RawCase) -> tuple[tuple[str, ...], Ending]:
    """The requests that were served, and what became of the connection."""
    recorder = Recorder()
    async with asyncio.timeout(PATIENCE_SECONDS), listening(recorder, LIMITS) as door:
        peer = await door.connect()
        peer.say(case.data)
        if case.half_closes:
            peer.writer.write_eof()
        elif case.ending == "open":
            while len(recorder.served) < len(case.served):
                await asyncio.sleep(0.001)
            peer.say(PROBE)
        said = await peer.until_closed()
    statuses = [int(part[:3]) for part in said.split(b"HTTP/1.1 ")[1:]]
    served = [each for each in recorder.served if each != "GET /probe"]
    if len(served) != len(recorder.served):
        return tuple(served), "open"
    if statuses and statuses[-1] >= 400:
        return tuple(served), statuses[-1]
    return tuple(served), "closed" if len(statuses) >= len(served) > 0 else "cut"


def reading_of_h11(data: bytes) -> tuple[tuple[str, ...], str]:
    """The requests that h11 reads, and whether it then refuses, waits for more, or is content."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    served: list[str] = []
    method, target, body = "", b"", b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return tuple(served), "refused"
        if isinstance(event, h11.Request):
            method, target, body = event.method.decode(), event.target, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            if not target.startswith(b"/") and b"://" in target:
                parts = urlsplit(target)
                target = parts.path + (b"?" + parts.query if parts.query else b"")
            served.append(_described(method, target, body))
            connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return tuple(served), "content"
            connection.start_next_cycle()
        elif event is h11.PAUSED:
            return tuple(served), "content"
        else:
            idle = connection.their_state is h11.IDLE and not connection.trailing_data[0]
            return tuple(served), "content" if idle else "waiting"


def _in_words_of_h11(ending: Ending) -> str:
    if ending in ("open", "closed"):
        return "content"
    return "waiting" if ending == 408 else "refused"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_a_raw_request_is_served_or_refused_as_the_table_says(case: RawCase) -> None:
    assert await behaviour(case) == (case.served, case.ending)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_h11_reads_the_same_unless_the_table_says_why(case: RawCase) -> None:
    ours = (case.served, _in_words_of_h11(case.ending))
    assert (reading_of_h11(case.data) == ours) is (case.h11 == "")


def test_the_names_are_unique_and_there_are_many() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 80
