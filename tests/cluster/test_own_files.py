"""Nodes of one store with a file each: views and limits change at a node with its own file."""

import asyncio
import contextlib
import json
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.cli.program import EXAMPLE
from tests.cluster.nodes import modern, until
from tests.interop.processes import comity

pytestmark = pytest.mark.timeout(400)

SERVER = f"""
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = {json.dumps(EXAMPLE["args"])}
"""
VIEW = """
[[views]]
name = "small"
select = ["example/echo"]
"""
LIMIT = """
[[limits.rates]]
target = "example/echo"
rate = "1/d"
"""


async def _runs(http: aiohttp.ClientSession, url: str, tool: str) -> bool:
    call = {"name": tool, "arguments": {"message": "hello"}}
    return (await modern(http, url, "tools/call", call)).text == "hello"


async def _is_refused(http: aiohttp.ClientSession, url: str, tool: str) -> bool:
    return not await _runs(http, url, tool)


async def test_a_node_keeps_its_views_and_limits_until_its_own_file_changes(tmp_path: Path) -> None:
    files = [tmp_path / name / "comity.toml" for name in ("one", "other")]
    store = f'[store]\nurl = "sqlite:///{tmp_path / "shared.db"}"\n'
    for file in files:
        file.parent.mkdir()
        file.write_text(store + SERVER + VIEW)
    async with contextlib.AsyncExitStack() as stack:
        open_gateway = partial(comity, path="/ready?strict")
        gateways = [
            await asyncio.to_thread(stack.enter_context, open_gateway(each)) for each in files
        ]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        views = [f"{each}/views/small" for each in gateways]
        for gateway, view in zip(gateways, views, strict=True):
            assert await _runs(http, view, "echo")
            assert await _runs(http, gateway, "example__echo")
        for place in (0, 1):
            files[place].write_text(store + SERVER + VIEW.replace("echo", "now") + LIMIT)
            await until(partial(_is_refused, http, views[place], "echo"))
            await until(partial(_is_refused, http, gateways[place], "example__echo"))
            # The plans of the other node are those of its own file, which says nothing else yet.
            for other in range(place + 1, 2):
                assert await _runs(http, views[other], "echo")
                assert await _runs(http, gateways[other], "example__echo")
