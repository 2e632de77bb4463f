"""Comity before two talking servers, one on pipes and one over HTTP, once for each module."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.ways import Entry, House, Way, on_pipes, on_port
from tests.interop.processes import comity, http_server

EACH_WAY = ("own near", "own far", "merged near", "merged far")
EVERY_WAY = (*EACH_WAY, "pipe near")


@contextmanager
def standing(
    folder: Path, servers: Mapping[str, Entry], settings: str = "", **env: str
) -> Generator[House]:
    """Comity before these servers; settings are lines of comity.toml."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    if settings:
        config = folder / "comity.toml"
        config.write_text("\n".join([settings, *map(_table, servers, servers.values())]))
    with comity(config, env) as origin:
        yield House(origin, config)


def _table(name: str, entry: Entry) -> str:
    settings = {"id": name, "transport": "stdio" if "command" in entry else "http", **entry}
    lines = [f"{key} = {_toml(value)}" for key, value in settings.items() if key != "type"]
    return "\n".join(["[[servers]]", *lines])


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in value.items()) + "}"  # type: ignore[misc]
    return json.dumps(value)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with http_server(on_port("talker"), {"TALKER_NAME": "far"}) as far:
        servers = {
            "near": on_pipes("talker", TALKER_NAME="near"),
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        with standing(tmp_path_factory.mktemp("house"), servers) as house:
            yield house


@pytest.fixture(params=EACH_WAY)
def way(house: House, request: pytest.FixtureRequest) -> Way:
    """Each of the HTTP ways to a server."""
    return house.way(request.param)


@pytest.fixture(params=EVERY_WAY)
def any_way(house: House, request: pytest.FixtureRequest) -> Way:
    """Every way there is; a Comity is started for each client on a pipe."""
    return house.way(request.param)
