"""Public OpenAPI documents become servers of a real gateway, and their tools call a stub.

The documents come from packages (see `documents`). The stub checks each request against the
operation as the document says it, without the code that wrote the request.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import jsonschema_rs
import pytest
import yaml

from tests.interop.hand_client import HttpClient, initialize, over_http
from tests.interop.processes import comity
from tests.openapi.documents import FOLDER
from tests.openapi.samples import SampleMaker
from tests.openapi.stub_api import ApiCall, StubApi, serving_stub

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
Table = dict[str, Any]

# The file, how many tools it has, and how many may lack a sample of their arguments.
DOCUMENTS = {
    "github": ("github.json", 1222, 2),
    "stripe": ("stripe.json", 451, 0),
    "kubernetes": ("kubernetes.json", 845, 0),
    "digitalocean": ("digitalocean.json", 290, 9),
    "figma": ("figma.yaml", 54, 1),
}
AUTH = {
    "github": "",
    "stripe": 'auth = {bearerAuth = "sk_test_of_stripe"}',
    "kubernetes": 'auth = {BearerToken = "Bearer token-of-kubernetes"}',
    "digitalocean": 'headers = {Authorization = "Bearer token-of-ocean"}',
    "figma": 'auth = {PersonalAccessToken = "token-of-figma", OrgOAuth2 = "token-of-figma", '
    'PlanAccessToken = "token-of-figma"}',
}
SENT = {
    "github": set[tuple[str, str]](),
    "stripe": {("authorization", "Bearer sk_test_of_stripe")},
    "kubernetes": {("authorization", "Bearer token-of-kubernetes")},
    "digitalocean": {("authorization", "Bearer token-of-ocean")},
    "figma": {("x-figma-token", "token-of-figma"), ("authorization", "Bearer token-of-figma")},
}
SAMPLED = 200


@cache
def _document(file: str) -> Table:
    data = (FOLDER / file).read_bytes()
    return json.loads(data) if file.endswith(".json") else yaml.load(data, yaml.CSafeLoader)


def _at(document: Table, value: Any) -> Any:
    while "$ref" in value:
        found: Any = document
        for step in value["$ref"][2:].split("/"):
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            found = found[int(name) if isinstance(found, list) else name]
        value = found
    return value


def _sampled(tools: list[Table]) -> list[Table]:
    step = -(-len(tools) // SAMPLED)
    return tools[::step][:SAMPLED]


async def _request(client: HttpClient, method: str, params: Table) -> Table:
    """The result of a request, made again as the gateway says while its permissions are unknown.

    A process that got no CPU for half a second counts as suspended, and asks the store first. This
    test reads thousands of definitions, beside others.
    """
    while True:
        exchange = await client.request(method, params)
        refusal = exchange.response.get("error", {}).get("data", {})
        if refusal.get("error_type") != "policy_unknown":
            return exchange.result
        await asyncio.sleep(refusal["retry_after_ms"] / 1000)


async def _list_tools(client: HttpClient) -> list[Table]:
    tools: list[Table] = []
    cursor: Table = {}
    while True:
        page = await _request(client, "tools/list", cursor)
        tools += page["tools"]
        if "nextCursor" not in page:
            return tools
        cursor = {"cursor": page["nextCursor"]}


def _check_schemas(tools: list[Table]) -> None:
    for tool in tools:
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool["name"]), tool["name"]
        for name in ("inputSchema", "outputSchema"):
            if name in tool:
                schema = tool[name]
                assert schema["type"] == "object"
                jsonschema_rs.Draft202012Validator(schema)
                assert len(json.dumps(schema)) < 64 * 1024


def _arguments(tool: Table) -> Table | None:
    """Valid arguments with many members, else with the required ones alone, else nothing."""
    schema = tool["inputSchema"]
    valid = jsonschema_rs.Draft202012Validator(schema)
    for is_full in (True, False):
        made = SampleMaker(schema, is_full=is_full).make(schema)
        if valid.is_valid(made):
            return made
    return None


class OperationCheck:
    """Compares a request with its operation in the document."""

    def __init__(self, document: Table, tool: Table, arguments: Table) -> None:
        lines = re.findall(
            r"^(GET|PUT|POST|PATCH|DELETE|HEAD|OPTIONS) (/.*)$", tool["description"], re.MULTILINE
        )
        self.method, self.path = lines[-1]
        item = _at(document, document["paths"][self.path])
        self.operation = _at(document, item[self.method.lower()])
        listed = [*item.get("parameters", ()), *self.operation.get("parameters", ())]
        self.parameters = [_at(document, each) for each in listed]
        self.arguments = arguments
        self._document = document

    def names(self, place: str) -> set[str]:
        return {each["name"] for each in self.parameters if each["in"] == place}

    def check(self, call: ApiCall, base: str) -> None:
        assert call.method == self.method
        path, _, query = call.target.partition("?")
        assert path.startswith(base)
        pieces = re.split(r"\{([^{}]+)\}", self.path)
        pattern = "".join(
            re.escape(each) if number % 2 == 0 else "([^/?#]+)"
            for number, each in enumerate(pieces)
        )
        found = re.fullmatch(pattern, path.removeprefix(base))
        assert found is not None, (path, self.path)
        for name, value in zip(pieces[1::2], found.groups(), strict=True):
            given = self.arguments[name]
            assert unquote(value) == (given if isinstance(given, str) else json.dumps(given))
        for name, _ in parse_qsl(query, keep_blank_values=True):
            assert name.partition("[")[0] in {n.partition("[")[0] for n in self.names("query")}, (
                name
            )
        self._check_body(call)

    def _check_body(self, call: ApiCall) -> None:
        if "body" not in self.arguments:
            assert not call.body
            return
        content = _at(self._document, self.operation["requestBody"])["content"]
        kind, body = call.headers["content-type"], self.arguments["body"]
        assert kind.partition(";")[0] in content or "*/*" in content
        if "json" in kind:
            assert json.loads(call.body) == body
        elif kind == "application/x-www-form-urlencoded":
            names = {name.partition("[")[0] for name, _ in parse_qsl(call.body.decode())}
            full = {name for name, value in body.items() if value not in ([], {}, None)}
            assert names <= body.keys()
            assert names or not full
        elif kind.startswith("multipart/"):
            assert all(f'name="{name}"'.encode() in call.body for name in body)


def _config(folder: Path, url: str) -> Path:
    servers = "".join(
        f'[[servers]]\nid = "{name}"\nopenapi = "{FOLDER / file}"\nurl = "{url}/{name}"\n'
        f"{AUTH[name]}\n"
        for name, (file, _, _) in DOCUMENTS.items()
    )
    config = folder / "comity.toml"
    config.write_text(
        # Thousands of definitions at once: on a busy machine the store answers late.
        f'[store]\nurl = "sqlite:///{folder}/c.db"\npolicy_max_staleness = "60s"\n'
        f'[policy]\ndefault_policy = "allow"\nrequire_approval = "never"\n{servers}'
    )
    return config


async def _call_all(name: str, origin: str, stub: StubApi) -> None:
    file, count, most_without = DOCUMENTS[name]
    async with over_http(f"{origin}/servers/{name}/mcp") as client:
        await initialize(client, {})
        tools = await _list_tools(client)
        assert len(tools) == count
        _check_schemas(tools)
        without = 0
        for tool in _sampled(tools):
            arguments = _arguments(tool)
            if arguments is None:
                without += 1
                continue
            heard = stub.heard_below(f"/{name}/")
            count = len(heard)
            params = {"name": tool["name"], "arguments": arguments}
            result = await _request(client, "tools/call", params)
            assert not result["isError"], (tool["name"], result, arguments)
            assert len(heard) == count + 1
            call = heard[-1]
            if call.method != "HEAD":
                assert result["structuredContent"] == {"heard": call.target}
            OperationCheck(_document(file), tool, arguments).check(call, f"/{name}")
            assert not SENT[name] or len(SENT[name] & call.headers.items()) == 1
        assert without <= most_without


def _missing() -> Iterator[str]:
    yield from (file for file, _, _ in DOCUMENTS.values() if not (FOLDER / file).exists())


@pytest.mark.skipif(any(_missing()), reason="scripts/setup could not fetch the documents from npm")
async def test_public_documents_become_servers_whose_tools_call_a_stub(tmp_path: Path) -> None:
    async with serving_stub() as stub:
        with comity(_config(tmp_path, stub.url)) as origin:
            async with asyncio.timeout(120):
                await asyncio.gather(*(_call_all(name, origin, stub) for name in DOCUMENTS))
