"""The receiver on the page is the one in the examples, and takes each event once."""

import asyncio
import base64
import hashlib
import hmac
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import pytest

from tests.docs.pages import ROOT, snippets_of
from tests.events.webhook_gateway import Client, House
from tests.events.webhook_receiver import SECRET, SECRET_TEXT
from tests.interop.processes import accepts, free_port, running

EXAMPLE = ROOT / "examples" / "webhooks" / "receiver.py"


def test_the_page_shows_the_example() -> None:
    (shown,) = (
        each
        for each in snippets_of(ROOT / "docs" / "how-to" / "send-webhooks.md")
        if each.language == "python"
    )
    assert shown.text == EXAMPLE.read_text(encoding="utf-8")


def post_again(port: int, id: str, secret: bytes) -> int:
    """The same event once more, signed with this secret; how that was answered."""
    body = b'{"timestamp":"now","name":"tool.completed","data":{"trace_id":"posted again"}}'
    moment = str(int(time.time()))
    signed = hmac.digest(secret, f"{id}.{moment}.".encode() + body, hashlib.sha256)
    headers = {
        "webhook-id": id,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310  # loopback only
            return reply.status
    except urllib.error.HTTPError as refused:
        refused.close()
        return refused.code


@pytest.mark.timeout(120)
async def test_the_receiver_on_the_page_takes_each_event_once(tmp_path: Path) -> None:
    port = free_port()
    # What is run here is watched on its standard error.
    command = ["/bin/sh", "-c", f'exec "{sys.executable}" "{EXAMPLE}" {port} 1>&2']
    env = {"SECRET": SECRET_TEXT, "SEEN": str(tmp_path / "seen.db")}
    house = House(tmp_path, f"sqlite:///{tmp_path / 'store.db'}")
    with running(command, env) as receiver:
        await asyncio.to_thread(receiver.wait_until, lambda: accepts(port))
        async with house.open() as (_, origin), aiohttp.ClientSession() as http:
            client = Client(http, origin)
            await client.greet()
            made = await client.subscribe(f"http://127.0.0.1:{port}/", "tool.completed")
            assert "result" in made, made
            assert await client.call() is not None
            await asyncio.to_thread(receiver.wait_for_line, r"tool\.completed .*ex")
        assert await asyncio.to_thread(post_again, port, "evt_new", SECRET) == 200
        assert await asyncio.to_thread(post_again, port, "evt_new", SECRET) == 200
        assert await asyncio.to_thread(post_again, port, "evt_other", b"x" * 32) == 401
        # The answer can come before the line is read.
        await asyncio.to_thread(receiver.wait_for_line, "posted again")
        assert receiver.said.count("posted again") == 1
