"""Reads HTTP responses that carry JSON-RPC, plain or as server-sent events, with little work."""

from dataclasses import dataclass

import msgspec


class WrongAnswer(Exception):
    """The relay answered something else than the result of the call that was made."""


class Answer(msgspec.Struct):
    """What is checked of every JSON-RPC message that comes back."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(Answer).decode


@dataclass(slots=True)
class Response:
    """One whole HTTP response; `head` is lower-cased."""

    head: bytes
    body: bytes
    end: int

    @property
    def status(self) -> int:
        return int(self.head[9:12])

    def header(self, name: bytes) -> str | None:
        found = self.head.find(b"\r\n%b:" % name)
        if found < 0:
            return None
        return self.head[found + len(name) + 3 :].partition(b"\r\n")[0].strip().decode()


def read_response(data: bytes) -> Response | None:
    """The first response in `data`, or nothing while it is not all there."""
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    head = data[:head_end].lower()
    start = head_end + 4
    if b"\r\ntransfer-encoding: chunked" in head:
        return _read_chunked(head, data, start)
    found = head.find(b"\r\ncontent-length:")
    length = int(head[found + 17 :].partition(b"\r\n")[0]) if found >= 0 else 0
    if len(data) < start + length:
        return None
    return Response(head, data[start : start + length], start + length)


def _read_chunked(head: bytes, data: bytes, at: int) -> Response | None:
    parts: list[bytes] = []
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line_end].partition(b";")[0], 16)
        at = line_end + 2 + size + 2
        if len(data) < at:
            return None
        if size == 0:
            return Response(head, b"".join(parts), at)
        parts.append(data[line_end + 2 : at - 2])
    return None


def check_response(response: Response, number: int) -> None:
    """Raises unless `response` is the echo of call `number`."""
    if response.body.startswith(b"{"):
        check_answer(response.body, number)
        return
    for message in events(response.body):
        if _decode(message).id == number:
            check_answer(message, number)
            return
    raise WrongAnswer(f"call {number}: no answer in {response.head[:60]!r} {response.body[:200]!r}")


def check_answer(message: bytes, number: int) -> None:
    """Raises unless `message` is the successful echo of call `number`."""
    answer = _decode(message)
    echoed = b"call %d, please" % number in bytes(answer.result)
    if answer.id != number or not echoed or b'"isError":true' in message:
        raise WrongAnswer(f"call {number} was answered {message[:300]!r}")


def events(body: bytes) -> list[bytes]:
    """The data of each server-sent event."""
    found: list[bytes] = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        lines = [line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:")]
        if data := b"\n".join(lines):
            found.append(data)
    return found
