"""The servers of this gateway in the API of the MCP registry (version 0.1, read only).

A client that knows the registry can list the servers that its principal may use. Each one has an
endpoint of this gateway as its remote endpoint, and never the address behind it.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.gateway.pipeline import CallGate
from comity.http import asgi
from comity.http.asgi import ACTOR, HttpEndpoint, Receive, Scope, Send
from comity.mcp import jsonrpc
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.protocol import is_id
from comity.registry.api import parse_query, refuse_method
from comity.servers.service import ServerService
from comity.servers.supervisor import UpstreamServer

LIST_PATH: Final = "/v0.1/servers"
BENEATH_LIST: Final = "/v0.1/servers/"
SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-09-29/server.schema.json"
DEFAULT_PAGE: Final = 30
MAX_PAGE: Final = 100
MAX_DESCRIPTION: Final = 100
UNKNOWN_VERSION: Final = "0.0.0"
"""The version of a server that has not said a usable one."""

_LATEST: Final = "latest"
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,127}")
_VERSIONS: Final = re.compile(r"([^/]+)/([^/]+)/versions(?:/([^/]+))?")
_LIMIT: Final = re.compile(r"[0-9]{1,6}")
_FRESH: Final = ((b"cache-control", b"no-store"),)
_NOT_FOUND: Final = jsonrpc.to_json({"error": "Server not found"})


class ServerListApi:
    """Answers the registry paths for one principal at a time."""

    def __init__(
        self,
        gate: CallGate,
        servers: ServerService,
        descriptions: Mapping[str, Mapping[str, str]],
        public_url: str = "",
    ) -> None:
        self._gate = gate
        self._servers = servers
        self._descriptions = descriptions
        self._public_url = public_url

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {LIST_PATH: self, BENEATH_LIST: self}

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            await refuse_method(send, b"GET", b"HEAD")
            return
        actor: Actor = scope.get(ACTOR, ANONYMOUS)
        origin = self._public_url or _origin_of(scope, headers)
        if scope["path"] == LIST_PATH:
            found = self._page(actor, origin, parse_query(scope["query_string"]))
        else:
            found = self._one(actor, origin, scope["path"].removeprefix(BENEATH_LIST))
        if found is None:
            await asgi.send_json(send, 404, _NOT_FOUND, _FRESH)
        else:
            await asgi.send_json(send, 200, jsonrpc.to_json(found), _FRESH)

    def _page(self, actor: Actor, origin: str, query: dict[str, str]) -> dict[str, object]:
        """Return a page of the servers that the actor may know, in the order of their ids."""
        limit, after = _page_size(query.get("limit", "")), _decode_cursor(query.get("cursor", ""))
        search, version = query.get("search", "").casefold(), query.get("version", _LATEST)
        page: list[UpstreamServer] = []
        is_cut = False
        for server in sorted(self._servers, key=lambda each: each.name):
            if (
                server.name <= after
                or search not in f"{_namespace(origin)}/{server.name}".casefold()
            ):
                continue
            if not self._gate.may_know_server(actor, server.name):
                continue
            if version not in (_LATEST, _version_of(server)):
                continue
            if len(page) == limit:
                is_cut = True
                break
            page.append(server)
        metadata: dict[str, object] = {"count": len(page)}
        if is_cut:
            metadata["nextCursor"] = _encode_cursor(page[-1].name)
        return {"servers": [self._view(each, origin) for each in page], "metadata": metadata}

    def _one(self, actor: Actor, origin: str, rest: str) -> dict[str, object] | None:
        """Return one server, or None. A hidden server and a missing one are the same."""
        found = _VERSIONS.fullmatch(rest)
        if found is None or found[1] != _namespace(origin):
            return None
        server = next((each for each in self._servers if each.name == found[2]), None)
        if server is None or not self._gate.may_know_server(actor, server.name):
            return None
        view = self._view(server, origin)
        if found[3] is None:
            return {"servers": [view], "metadata": {"count": 1}}
        return view if found[3] in (_LATEST, _version_of(server)) else None

    def _view(self, server: UpstreamServer, origin: str) -> dict[str, object]:
        about = self._descriptions.get(server.name, {}).get("label", "") or server.name
        document: dict[str, object] = {
            "$schema": SCHEMA,
            "name": f"{_namespace(origin)}/{server.name}",
            "description": about[:MAX_DESCRIPTION],
            "version": _version_of(server),
            "remotes": [{"type": "streamable-http", "url": f"{origin}/servers/{server.name}/mcp"}],
        }
        return {"server": document, "_meta": {}}


def _version_of(server: UpstreamServer) -> str:
    """Return the version that the server says, if it can be one in a registry."""
    said = server.connections.initialize_result or server.connections.discover_result
    try:
        info = said.get("serverInfo")
        version = None if info is None else jsonrpc.decode_members(info).get("version")
    except MalformedMessage:
        version = None
    text = jsonrpc.decode_text(version) or ""
    return text if _VERSION.fullmatch(text) and text != _LATEST else UNKNOWN_VERSION


def _namespace(origin: str) -> str:
    """Return the host of the gateway in the reverse order of its labels, as registries name it."""
    host = urlsplit(origin).hostname or "localhost"
    if not re.fullmatch(r"[A-Za-z0-9.-]+", host) or not host.rpartition(".")[2][:1].isalpha():
        return "localhost"
    return ".".join(reversed(host.strip(".").split(".")))


def _origin_of(scope: Scope, headers: Mapping[bytes, bytes]) -> str:
    # The HTTP app checked the Host header before.
    return f"{scope.get('scheme', 'http')}://{headers[b'host'].decode('latin-1').strip()}"


def _page_size(written: str) -> int:
    if not written:
        return DEFAULT_PAGE
    if not _LIMIT.fullmatch(written) or int(written) < 1:
        raise MalformedMessage(f"limit must be a number from 1 to {MAX_PAGE}", INVALID_PARAMS)
    return min(int(written), MAX_PAGE)


def _encode_cursor(name: str) -> str:
    return urlsafe_b64encode(name.encode()).decode()


def _decode_cursor(written: str) -> str:
    """Return the id after which a page begins. Raises MalformedMessage for any other cursor."""
    if not written:
        return ""
    try:
        name = urlsafe_b64decode(written.encode("ascii")).decode("ascii")
    except ValueError:
        name = ""
    if not is_id(name):
        raise MalformedMessage("the cursor is unknown", INVALID_PARAMS)
    return name
