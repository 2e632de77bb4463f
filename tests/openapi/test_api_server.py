"""An OpenAPI server of a real gateway: results, failures, credentials, validation and reload."""

import asyncio
import json
import time
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.interop.hand_client import HttpClient, initialize, over_http
from tests.interop.processes import comity, free_port, operator_headers
from tests.openapi.stub_api import ApiCall, StubApi, serving_stub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
Table = dict[str, Any]
SECRET = "s3cret-of-the-api"


def _operation(name: str, **members: Any) -> Table:
    return {"operationId": name, "responses": {"200": {"description": "ok"}}, **members}


def _document(url: str, *more: str) -> Table:
    thing = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    answer = {"200": {"content": {"application/json": {"schema": thing}}}}
    places = ("missing", "broken", "moved", "large", "text", "image", "echo", "empty", *more)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Things", "version": "1"},
        "servers": [{"url": url}],
        "paths": {
            **{f"/{each}": {"get": _operation(each)} for each in places},
            "/things/{id}": {
                "parameters": [
                    {"name": "id", "in": "path", "schema": {"type": "string"}, "required": True}
                ],
                "get": _operation("getThing", responses=answer),
            },
            "/secured": {"get": _operation("secured", security=[{"token": []}])},
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _reply(call: ApiCall) -> web.Response | None:
    place = call.target.partition("?")[0].rpartition("/")[2]
    echoed = json.dumps(call.headers)
    replies = {
        "missing": web.Response(status=404, text=f"no such thing {echoed}"),
        "broken": web.Response(status=500, text="x" * 9_000),
        "moved": web.Response(status=302, headers={"location": "http://127.0.0.2:1/steal"}),
        "large": web.Response(body=b"x" * 3_000_000, content_type="text/plain"),
        "text": web.Response(text="plain"),
        "image": web.Response(body=b"\x89PNG", content_type="image/png"),
        "echo": web.Response(text=echoed, content_type="application/json"),
        "empty": web.Response(status=204),
        "7": web.json_response({"id": 7}),
        "8": web.Response(status=204),
    }
    return replies.get(place)


@asynccontextmanager
async def _gateway(folder: Path, stub: StubApi) -> AsyncGenerator[str]:
    document = folder / "things.json"
    document.write_text(json.dumps(_document(stub.url)))
    stub.reply = _reply
    config = folder / "comity.toml"
    dead = free_port()
    config.write_text(
        f'[store]\nurl = "sqlite:///{folder}/c.db"\n'
        f'[policy]\ndefault_policy = "allow"\nrequire_approval = "never"\n'
        f'[[servers]]\nid = "things"\nopenapi = "{document}"\nurl = "{stub.url}/v1"\n'
        f'auth = {{token = "{SECRET}"}}\nheaders = {{X-Key = "{SECRET}"}}\n'
        f'[[servers]]\nid = "dead"\nopenapi = "{document}"\nurl = "http://127.0.0.1:{dead}"\n'
        f'operations = ["text"]\n'
        # Its URL comes from the document, and leads to this machine.
        f'[[servers]]\nid = "guided"\nopenapi = "{document}"\noperations = ["text"]\n'
        f'[[servers]]\nid = "unsafe"\nopenapi = "{document}"\nheaders = {{X-Key = "{SECRET}"}}\n'
        f'[[servers]]\nid = "absent"\nopenapi = "{folder}/absent.json"\nurl = "{stub.url}"\n'
    )
    with comity(config, path="/health") as origin:
        await asyncio.to_thread(_wait_for_start, origin)
        yield origin


def _ask(origin: str, path: str, method: str = "GET") -> Any:
    headers = {**operator_headers(origin), "content-type": "application/json"}
    data = b"{}" if method == "POST" else None
    request = urllib.request.Request(f"{origin}{path}", data, headers, method=method)  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as reply:  # noqa: S310 - loopback only
        return json.load(reply)


def _servers(origin: str) -> dict[str, Table]:
    return {each["id"]: each for each in _ask(origin, "/api/servers")["servers"]}


def _wait_for_start(origin: str) -> None:
    """Return once the usable servers are connected and the others have failed once."""
    deadline = time.monotonic() + 30
    while True:
        found = _servers(origin)
        ready = all(found[each]["state"] == "connected" for each in ("things", "dead", "guided"))
        if ready and all(found[each]["reason"] for each in ("unsafe", "absent")):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


async def _call(client: HttpClient, name: str, **arguments: Any) -> Table:
    return (await client.request("tools/call", {"name": name, "arguments": arguments})).response


async def test_calls_of_an_api_have_the_results_of_its_answers(tmp_path: Path) -> None:
    async with serving_stub() as stub, _gateway(tmp_path, stub) as origin:
        async with over_http(f"{origin}/servers/things/mcp") as client:
            said = await initialize(client, {})
            assert said["serverInfo"]["name"] == "Things"
            for name, is_error, text in (
                ("missing", True, "HTTP 404 Not Found\nno such thing"),
                ("broken", True, "HTTP 500 Internal Server Error\nxxx"),
                ("moved", True, "HTTP 302 Found: the API redirects, which Comity does not follow"),
                ("large", True, "the answer of the API has over"),
                ("text", False, "plain"),
                ("empty", False, "HTTP 204 No Content"),
                ("echo", False, '{"'),
            ):
                result = (await _call(client, name))["result"]
                shown = result["content"][0]["text"]
                assert (result["isError"], shown[: len(text)]) == (is_error, text), name
                assert len(shown) < 5_000
                assert SECRET not in json.dumps(result)
            assert (await _call(client, "image"))["result"]["content"] == [
                {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}
            ]
            # The output schema promises an object, and gets one or an error that says so.
            found = (await _call(client, "getThing", id="7"))["result"]
            assert (found["isError"], found["structuredContent"]) == (False, {"id": 7})
            assert (await _call(client, "getThing", id="8"))["result"]["isError"]
            assert stub.heard[-1].target == "/v1/things/8"
            # A credential goes only where the document says so, and headers go everywhere.
            assert "authorization" not in stub.heard[-1].headers
            assert not (await _call(client, "secured"))["result"]["isError"]
            assert stub.heard[-1].headers["authorization"] == f"Bearer {SECRET}"
            assert stub.heard[-1].headers["x-key"] == SECRET
            count = len(stub.heard)
            for arguments in ({"id": 7}, {}, {"id": "a", "more": 1}, {"id": ".."}):
                refused = await _call(client, "getThing", **arguments)
                assert refused.get("error") or refused["result"]["isError"], arguments
            assert len(stub.heard) == count
        # The same tool over REST, which calls it by the all-servers name.
        request = urllib.request.Request(  # noqa: S310 - loopback only
            f"{origin}/tools/things__getThing", b'{"id": "7"}', {"content-type": "application/json"}
        )
        shown = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())  # noqa: S310
        assert json.loads(shown)["structuredContent"] == {"id": 7}, shown
        await _check_other_servers(origin, stub)
        await _check_restart(tmp_path, origin, stub)


async def _check_other_servers(origin: str, stub: StubApi) -> None:
    count = len(stub.heard)
    for server, reason in (("dead", "cannot be reached"), ("guided", "127.0.0.1 is refused")):
        async with over_http(f"{origin}/servers/{server}/mcp") as client:
            await initialize(client, {})
            failed = (await _call(client, "text"))["result"]
            assert failed["isError"]
            assert reason in failed["content"][0]["text"]
    assert len(stub.heard) == count
    found = _servers(origin)
    assert "there is no such file" in found["absent"]["reason"]
    assert "needs a `url`" in found["unsafe"]["reason"]
    assert f"the document names {stub.url}" in found["unsafe"]["reason"]
    assert SECRET not in json.dumps(found)


async def _check_restart(folder: Path, origin: str, stub: StubApi) -> None:
    """A restart reads the document again."""
    (folder / "things.json").write_text(json.dumps(_document(stub.url, "fresh")))
    before = _servers(origin)["things"]["tools"]
    await asyncio.to_thread(_ask, origin, "/api/servers/things/restart", "POST")
    await asyncio.to_thread(_wait_for_start, origin)
    assert _servers(origin)["things"]["tools"] == before + 1
