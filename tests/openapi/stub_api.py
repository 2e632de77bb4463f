"""A real HTTP server that stands in for an API: it keeps each request and answers with JSON."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import web

type Reply = Callable[["ApiCall"], web.Response | None]


class ApiCall(NamedTuple):
    """One request, with its path and query as they were sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class StubApi:
    """The requests so far, and what decides about the next answer."""

    url: str = ""
    heard: list[ApiCall] = field(default_factory=list[ApiCall])
    # The same requests by the first part of their path.
    by_folder: dict[str, list[ApiCall]] = field(default_factory=dict[str, list[ApiCall]])
    reply: Reply = lambda _: None

    def heard_below(self, folder: str) -> list[ApiCall]:
        return self.by_folder.setdefault(folder, [])

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        call = ApiCall(request.method, request.raw_path, headers, await request.read())
        self.heard.append(call)
        self.heard_below(f"/{request.path.split('/')[1]}/").append(call)
        return self.reply(call) or web.json_response({"heard": call.target})


@asynccontextmanager
async def serving_stub() -> AsyncGenerator[StubApi]:
    stub = StubApi()
    runner = web.ServerRunner(web.Server(stub.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    stub.url = f"http://{host}:{port}"
    try:
        yield stub
    finally:
        await runner.cleanup()
