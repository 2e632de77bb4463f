"""A model on loopback that says what it was told to: OpenAI's and Anthropic's API over real HTTP.

In a test: `async with serving(Said("Hello")) as models:` and `models.url`. As a program:
`python -m tests.live.model_server --port 0 --script FILE` prints its address as its first line.
A script is JSON: a list of replies, each the members of `Said`. Those with `when` (a pattern that
is looked for in the last thing said) are used as often as they fit, the others once and in their
order; then the last thing said is repeated.

`GET /requests` gives all that was asked, `POST /replies` adds to the script, `POST /release` lets
go what is held.
"""

import argparse
import asyncio
import json
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.live.model_speech import (
    Asked,
    Said,
    anthropic_events,
    anthropic_whole,
    openai_events,
    openai_whole,
)

type Answer = Callable[[Asked], Said | None]


def said_in(written: Mapping[str, Any]) -> Said:
    """A reply of a script."""
    found = dict(written)
    for name in ("uses", "pieces", "usage"):
        if isinstance(found.get(name), list):
            found[name] = tuple(found[name])
    return Said(**found)


class ModelServer:
    """Answers by its script, and remembers what it was asked."""

    def __init__(self, replies: Iterable[Said] = (), answer: Answer | None = None) -> None:
        self.url = ""
        self.requests: list[Asked] = []
        # Of answers that were begun: how many are under way, and of how many the client went away.
        self.underway = 0
        self.abandoned = 0
        self.left = asyncio.Event()
        self.came = asyncio.Event()
        self._released = asyncio.Event()
        self.answer: Answer | None = answer
        self._queue: deque[Said] = deque()
        self._rules: list[Said] = []
        self.add(*replies)

    def add(self, *replies: Said) -> None:
        for each in replies:
            (self._rules if each.when else self._queue).append(each)

    def release(self) -> None:
        """Let all go that is held, and hold nothing more."""
        self._released.set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=256 * 1024 * 1024)
        for prefix in ("", "/v1"):
            app.router.add_post(f"{prefix}/chat/completions", self._openai)
            app.router.add_post(f"{prefix}/messages", self._anthropic)
        app.router.add_get("/requests", self._told)
        app.router.add_post("/replies", self._added)
        app.router.add_post("/release", self._let_go)
        return app

    # How it is driven from another process.

    async def _told(self, _: web.Request) -> web.Response:
        return web.json_response(
            [{"api": each.api, "body": each.body, "last": each.last} for each in self.requests]
        )

    async def _added(self, request: web.Request) -> web.Response:
        self.add(*map(said_in, await request.json()))
        return web.json_response({})

    async def _let_go(self, _: web.Request) -> web.Response:
        self.release()
        return web.json_response({})

    # What models are asked.

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        return await self._dealt("openai", request)

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        return await self._dealt("anthropic", request)

    async def _dealt(self, api: str, request: web.Request) -> web.StreamResponse:
        asked = Asked(api, await request.json(), dict(request.headers))
        self.requests.append(asked)
        said = self._chosen(asked)
        self.came.set()
        self.underway += 1
        try:
            return await self._replied(request, asked, said)
        except (ConnectionError, asyncio.CancelledError):
            self.abandoned += 1
            self.left.set()
            raise
        finally:
            self.underway -= 1

    def _chosen(self, asked: Asked) -> Said:
        said = self.answer(asked) if self.answer is not None else None
        fitting = (each for each in self._rules if re.search(each.when, asked.last, re.DOTALL))
        said = said or next(fitting, None)
        if said is None and self._queue:
            said = self._queue.popleft()
        return said or Said(asked.last or "nothing was said")

    async def _replied(self, request: web.Request, asked: Asked, said: Said) -> web.StreamResponse:
        if said.hold:
            await self._held(request)
        if said.status != 200 or said.body is not None:
            return _otherwise(asked.api, said)
        if not asked.body.get("stream"):
            whole = openai_whole if asked.api == "openai" else anthropic_whole
            return web.json_response(whole(asked, said))
        return await self._streamed(request, asked, said)

    async def _held(self, request: web.Request) -> None:
        """Until it is let go, or the client is gone."""
        while not self._released.is_set():
            if request.transport is None or request.transport.is_closing():
                raise ConnectionResetError
            try:
                await asyncio.wait_for(self._released.wait(), 0.05)
            except TimeoutError:
                continue

    async def _streamed(self, request: web.Request, asked: Asked, said: Said) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = openai_events if asked.api == "openai" else anthropic_events
        told = 0
        for is_piece, event in events(asked, said):
            if is_piece and said.cut_after is not None and told >= said.cut_after:
                assert request.transport is not None
                request.transport.abort()
                return response
            if is_piece and said.hold_after is not None and told >= said.hold_after:
                await self._held(request)
            if is_piece and said.pause:
                await asyncio.sleep(said.pause)
            told += is_piece
            await response.write(event)
        await response.write_eof()
        return response


def _otherwise(api: str, said: Said) -> web.Response:
    if said.body is not None:
        headers = {"Content-Type": "application/json", **said.headers}
        return web.Response(status=said.status, body=said.body.encode(), headers=headers)
    told: dict[str, Any] = {"type": "some_error", "message": said.text or "not now"}
    body = {"error": told} if api == "openai" else {"type": "error", "error": told}
    return web.json_response(body, status=said.status, headers=said.headers)


# How it is run.


@asynccontextmanager
async def serving(
    *replies: Said, answer: Answer | None = None, port: int = 0
) -> AsyncGenerator[ModelServer]:
    """A model server of this process, until the way out."""
    server = ModelServer(replies, answer)
    runner = web.AppRunner(server.app(), shutdown_timeout=0.5, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        taken: tuple[str, int] = runner.addresses[0]
        server.url = f"http://127.0.0.1:{taken[1]}"
        yield server
    finally:
        server.release()
        await runner.cleanup()


async def _run(port: int, script: str) -> None:
    written: list[Any] = json.loads(Path(script).read_text("utf-8")) if script else []  # noqa: ASYNC240
    async with serving(*map(said_in, written), port=port) as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stop.set)
        await stop.wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--script", default="")
    chosen = options.parse_args()
    asyncio.run(_run(chosen.port, chosen.script))


if __name__ == "__main__":
    main()
