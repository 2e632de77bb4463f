"""Client of an MCP registry: search, and one server by its name."""

import time
from typing import Final
from urllib.parse import quote, urlencode

from comity.errors import Misconfigured, Unavailable
from comity.http.client.client import request_json
from comity.http.client.dial import Resolver
from comity.http.client.proxies import ProxySettings
from comity.servers.mcp_registry.model import RegistryServer, decode_page, decode_server
from comity.servers.registration.rules import url_problem
from comity.validation.network import answers_problem

API_PATH: Final = "/v0.1/servers"
PAGE: Final = 30
"""How many servers Comity asks for at once. A page of so many is far below the limit in bytes."""

ANSWER_SECONDS: Final = 15.0


class McpRegistryClient:
    """Reads one registry. Its answers are untrusted."""

    def __init__(self, url: str, proxies: ProxySettings) -> None:
        self._url = url.rstrip("/") + API_PATH
        self._proxies = proxies

    async def search(self, words: str, limit: int) -> list[RegistryServer]:
        """Return the newest version of servers whose name contains the words.

        Raises Misconfigured or Unavailable.
        """
        found: list[RegistryServer] = []
        cursor = ""
        # A registry that sends empty pages cannot keep the command busy.
        for _ in range(-(-limit // PAGE) + 1):
            query = {"version": "latest", "limit": str(PAGE)}
            query |= {"search": words} if words else {}
            query |= {"cursor": cursor} if cursor else {}
            status, document = await self._get(f"?{urlencode(query)}")
            if status != 200:
                raise Unavailable(f"the registry answered with status {status}")
            servers, cursor = decode_page(document)
            found += servers
            if not cursor or len(found) >= limit:
                break
        return found[:limit]

    async def get(self, name: str, version: str = "latest") -> RegistryServer:
        """Return one version of a server. Raises Misconfigured or Unavailable."""
        status, document = await self._get(f"/{quote(name, '')}/versions/{quote(version, '')}")
        if status == 404:
            raise Misconfigured(f"the registry has no {name} in the version {version}")
        if status != 200:
            raise Unavailable(f"the registry answered with status {status}")
        return decode_server(document, name, version)

    async def _get(self, rest: str) -> tuple[int, dict[str, object]]:
        return await request_json("GET", self._url + rest, {}, b"", self._proxies, ANSWER_SECONDS)


async def address_problem(url: str) -> str | None:
    """Return why a server of a registry may not be at this URL, or None.

    A public registry has no business with the network of the operator. A name without an address
    is no problem: the server may begin to exist later.
    """
    problem, name = url_problem(url, frozenset())
    if problem is not None or not name:
        return problem
    answers = await Resolver(time.monotonic).resolve(name)
    problem = answers_problem(answers) if answers else None
    return None if problem is None else f"its url is refused: {problem}"
