"""The other end of a webhook: checks every post, keeps what it took, and fails as it is told."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SECRET = b"0123456789abcdef0123456789abcdef"
SECRET_TEXT = "whsec_" + base64.b64encode(SECRET).decode()
WITHIN = 60.0


class Fault(StrEnum):
    """What a place may do to whoever posts to it."""

    NONE = "none"
    ERROR = "500"
    REDIRECT = "redirect"
    CUT = "cut"
    NO_HTTP = "no HTTP"
    SILENT = "silent"
    SLOW_HEAD = "slow head"
    HUGE_HEAD = "huge head"
    SLOW_BODY = "slow body"
    HUGE_BODY = "huge body"
    GONE = "410"
    TOO_LARGE = "413"


TAKES = frozenset({Fault.NONE, Fault.SLOW_BODY, Fault.HUGE_BODY})
"""Those that say yes first, and are a nuisance after it."""


@dataclass
class Receiver:
    url: str = ""
    trap: str = ""
    """Where a redirection leads, and nobody must ever come."""

    secrets: list[bytes] = field(default_factory=lambda: [SECRET])
    faults: list[Fault] = field(default_factory=list[Fault])
    is_echoing: bool = True
    taken: list[tuple[str, dict[str, Any]]] = field(
        default_factory=list[tuple[str, dict[str, Any]]]
    )
    tried: list[tuple[str, Fault]] = field(default_factory=list[tuple[str, Fault]])
    challenged: int = 0
    trapped: int = 0
    at_once: int = 0
    most_at_once: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def ids(self) -> list[str]:
        return [id for id, _ in self.taken]

    async def until(self, is_so: Callable[[], bool], seconds: float = WITHIN) -> None:
        try:
            async with asyncio.timeout(seconds), self.changed:
                await self.changed.wait_for(is_so)
        except TimeoutError:
            raise AssertionError(f"took {len(self.taken)}, tried {self.tried[-20:]}") from None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._answer(reader, writer, *await _request(reader))
        finally:
            self.at_once -= 1
            writer.transport.abort()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        headers: dict[str, str],
        body: bytes,
    ) -> None:
        self._check(headers, body)
        said = json.loads(body)
        id = headers["webhook-id"]
        if said.get("type") == "verification":
            self.challenged += 1
            echo = {"challenge": said["challenge"]} if self.is_echoing else {"hello": 1}
            writer.write(_reply(200, json.dumps(echo).encode()))
            await writer.drain()
            return
        assert id == said["eventId"]
        fault = self.faults.pop(0) if self.faults else Fault.NONE
        async with self.changed:
            self.tried.append((id, fault))
            if fault in TAKES:
                self.taken.append((id, said))
            self.changed.notify_all()
        await self._misbehave(fault, reader, writer)

    async def _misbehave(
        self, fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        plain = {Fault.NONE: 200, Fault.ERROR: 500, Fault.GONE: 410, Fault.TOO_LARGE: 413}
        if fault in plain:
            writer.write(_reply(plain[fault]))
        elif fault is Fault.REDIRECT:
            writer.write(_reply(302, b"", f"location: {self.trap}"))
        elif fault is Fault.NO_HTTP:
            writer.write(b"\x16\x03what is this\r\n\r\n")
        elif fault is Fault.SILENT:
            await reader.read()
        elif fault is not Fault.CUT:
            await _flood(fault, writer)
        await writer.drain()

    def _check(self, headers: dict[str, str], body: bytes) -> None:
        """As Standard Webhooks has it: one good signature is enough."""
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        good = {
            "v1," + base64.b64encode(hmac.digest(each, signed, hashlib.sha256)).decode()
            for each in self.secrets
        }
        assert good & set(headers["webhook-signature"].split(" ")), "badly signed"
        assert headers["x-mcp-subscription-id"].startswith("sub_")

    async def _caught(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.trapped += 1
        writer.transport.abort()


async def _flood(fault: Fault, writer: asyncio.StreamWriter) -> None:
    """Until the other end has had enough."""
    if fault in TAKES:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
    else:
        writer.write(b"HTTP/1.1 200 OK\r\n"[: 9 if fault is Fault.SLOW_HEAD else 99])
    while True:
        if fault in (Fault.SLOW_HEAD, Fault.SLOW_BODY):
            writer.write(b"x")
            await asyncio.sleep(0.02)
        else:
            writer.write(b"x" * 65536 if fault is Fault.HUGE_BODY else b"a: b\r\n" * 1000)
        await writer.drain()


async def _request(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = head.split("\r\n")[1:-2]
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return headers, await reader.readexactly(int(headers["content-length"]))


def _reply(status: int, body: bytes = b"", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(body)}", *more, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def a_receiver(faults: Sequence[Fault] = ()) -> AsyncGenerator[Receiver]:
    receiver = Receiver(faults=list(faults))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    trap = await asyncio.start_server(receiver._caught, "127.0.0.1", 0)  # pyright: ignore[reportPrivateUsage]
    receiver.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?team=a"
    receiver.trap = f"http://127.0.0.1:{trap.sockets[0].getsockname()[1]}/"
    try:
        yield receiver
    finally:
        for each in (server, trap):
            each.close()
