"""The reference of the HTTP API: its routes are those of the program, and its examples too."""

import json
import re
from typing import Any

import msgspec

from comity.app.settings import ServerSettings
from tests.cli.program import EXAMPLE
from tests.docs.pages import ROOT, snippets_of
from tests.support.visitor import Visitor, visiting

PAGE = ROOT / "docs" / "reference" / "http-api.md"
ROW = re.compile(r"^\| (GET|POST) \| `([^`]+)` \| (\w+) \| ([^|]*)\| [^|]+\|$", re.MULTILINE)


def documented() -> dict[tuple[str, str], tuple[str, list[str]]]:
    """The permission and the fields of each route; a star marks a required field."""
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {
        (method, path): (permission, re.findall(r"`(\w+)`(?:\*|)", fields))
        for method, path, permission, fields in rows
    }


def required() -> dict[tuple[str, str], list[str]]:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {(method, path): re.findall(r"`(\w+)`\*", fields) for method, path, _, fields in rows}


async def test_every_route_is_on_the_page_with_its_permission_and_its_input() -> None:
    async with visiting() as visitor:
        routes = visitor.parts.api.routes
    inputs = {
        (route.method, route.path.replace(":path", "")): msgspec.structs.fields(route.input)
        for route in routes
    }
    assert documented() == {
        (route.method, path): (
            route.permission.name,
            [field.name for field in inputs[route.method, path]],
        )
        for route in routes
        for path in [route.path.replace(":path", "")]
    }
    assert required() == {
        address: [field.name for field in fields if field.required]
        for address, fields in inputs.items()
    }


def example(heading: str) -> Any:
    """The JSON below a heading."""
    text = PAGE.read_text(encoding="utf-8")
    line = text[: text.index(f"\n## {heading}\n")].count("\n") + 2
    shown = next(each for each in snippets_of(PAGE) if each.line > line)
    return json.loads(re.sub(r"\s+//.*|…", "", shown.text))


async def answer(visitor: Visitor, path: str) -> Any:
    reply = await visitor.send("GET", path=path)
    assert reply.status == 200, path
    return await reply.json()


async def test_examples_have_the_members_of_the_answers() -> None:
    server = ServerSettings(
        "example", "example", "stdio", command=EXAMPLE["command"], args=tuple(EXAMPLE["args"])
    )
    async with visiting(server) as visitor:
        assert example("Status").keys() == (await answer(visitor, "/api/status")).keys()
        (node,) = (await answer(visitor, "/api/nodes"))["nodes"]
        assert example("Nodes")["nodes"][0].keys() == node.keys()
        (shown,) = (await answer(visitor, "/api/servers"))["servers"]
        assert example("Servers")["servers"][0].keys() == shown.keys()
        tool = (await answer(visitor, "/api/tools"))["tools"][0]
        assert tool.keys() <= example("Tools")["tools"][0].keys()
        grants = await answer(visitor, "/api/grants")
        assert grants.keys() <= example("Grants").keys()
        found = await answer(visitor, "/api/search?query=echo")
        assert found.keys() == example("Search").keys()
        assert found["tools"][0].keys() <= example("Search")["tools"][0].keys()
