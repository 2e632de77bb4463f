"""A hostile MCP server with an authorization server of its own, both of which a test programs.

One listener plays many servers: the first part of a path names the server. Each has the metadata,
the endpoints and the tools of an honest one, until a test replaces an answer.
"""

import json
import secrets
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

RESOURCE_PATH = "/.well-known/oauth-protected-resource/"
ISSUER_PATH = "/.well-known/oauth-authorization-server/"


class HostileRequest(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: str

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body))

    @property
    def shown_token(self) -> str:
        return self.headers.get("authorization", "").partition(" ")[2]


class HostileAnswer(NamedTuple):
    """An answer to send."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})


def json_answer(content: object, status: int = 200, **headers: str) -> HostileAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    shown = {"content-type": "application/json", **named}
    return HostileAnswer(status, json.dumps(content).encode(), shown)


type Answering = Callable[[HostileRequest], HostileAnswer]


@dataclass
class HostileServer:
    """One server behind the listener. A test assigns what is to be answered."""

    name: str
    origin: str
    resource: Answering | None = None
    issuer: Answering | None = None
    registration: Answering | None = None
    token: Answering | None = None
    tool: Answering | None = None
    issuer_changes: dict[str, Any] = field(default_factory=dict[str, Any])
    sends_issuer: bool = True
    challenge: str = ""
    sends_challenge: bool = True
    valid: set[str] = field(default_factory=set[str])
    private: set[str] = field(default_factory=set[str])
    requests: list[HostileRequest] = field(default_factory=list[HostileRequest])

    @property
    def url(self) -> str:
        return f"{self.origin}/{self.name}"

    def reset(self) -> None:
        """Be honest again."""
        self.resource = self.issuer = self.registration = self.token = self.tool = None
        self.issuer_changes, self.sends_issuer, self.challenge = {}, True, ""
        self.sends_challenge = True

    def requests_to(self, end: str) -> list[HostileRequest]:
        return [each for each in self.requests if each.path.endswith(end)]

    def new_secret(self, kind: str) -> str:
        made = f"{kind}-{secrets.token_urlsafe(18)}"
        self.private.add(made)
        return made

    def answer(self, request: HostileRequest) -> HostileAnswer:
        self.requests.append(request)
        if request.path.startswith(RESOURCE_PATH):
            return (self.resource or self._resource)(request)
        if request.path.startswith(ISSUER_PATH):
            return (self.issuer or self._issuer)(request)
        parts: dict[str, Answering] = {
            "register": self.registration or self._register,
            "authorize": self._authorize,
            "token": self.token or self.give_token,
            "revoke": lambda _: json_answer({}),
            "mcp": self._serve,
        }
        found = parts.get(request.path.rpartition("/")[2])
        return HostileAnswer(404) if found is None else found(request)

    # An honest server.

    def resource_document(self) -> dict[str, Any]:
        return {
            "resource": f"{self.url}/mcp",
            "authorization_servers": [self.url],
            "scopes_supported": ["tools", "write"],
        }

    def issuer_document(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
            "authorization_response_iss_parameter_supported": True,
            **self.issuer_changes,
        }

    def _resource(self, _: HostileRequest) -> HostileAnswer:
        return json_answer(self.resource_document())

    def _issuer(self, _: HostileRequest) -> HostileAnswer:
        return json_answer(self.issuer_document())

    def _register(self, request: HostileRequest) -> HostileAnswer:
        made = {"client_id": f"client-{self.name}", "client_secret": self.new_secret("secret")}
        return json_answer({**json.loads(request.body), **made}, 201)

    def _authorize(self, request: HostileRequest) -> HostileAnswer:
        answer = {"code": self.new_secret("code"), "state": request.query["state"]}
        if self.sends_issuer:
            answer["iss"] = self.url
        to = f"{request.query['redirect_uri']}?{urlencode(answer)}"
        return HostileAnswer(302, headers={"location": to})

    def give_token(self, request: HostileRequest, **changes: object) -> HostileAnswer:
        self.private |= {request.form.get("code_verifier", "")} - {""}
        made = {
            "access_token": self.new_secret("access"),
            "refresh_token": self.new_secret("refresh"),
            "token_type": "Bearer",
            "expires_in": 300,
            **changes,
        }
        self.valid = {str(made["access_token"])}
        return json_answer(made)

    def _serve(self, request: HostileRequest) -> HostileAnswer:
        if request.method != "POST":
            return HostileAnswer(405)
        if request.shown_token not in self.valid:
            shown = {"www-authenticate": self.challenge or "Bearer"}
            return HostileAnswer(401, headers=shown if self.sends_challenge else {})
        message = json.loads(request.body)
        if "id" not in message:
            return HostileAnswer(202)
        if message["method"] == "tools/call" and self.tool is not None:
            return self.tool(request)
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": self.name, "version": "1"},
            },
            "tools/list": {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "seen"}]},
            "ping": {},
        }
        return rpc_answer(message, results.get(message["method"]))


def rpc_answer(message: Mapping[str, Any], result: object) -> HostileAnswer:
    base = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        return json_answer({**base, "error": {"code": -32601, "message": "unknown method"}})
    return json_answer({**base, "result": result})


@dataclass
class HostilePort:
    """The listener and its servers. A request to a path that names none of them is a theft."""

    origin: str
    servers: dict[str, HostileServer] = field(default_factory=dict[str, HostileServer])
    thefts: list[HostileRequest] = field(default_factory=list[HostileRequest])
    # Answers for the metadata of the whole origin, if a test wants that it has some.
    root: Answering | None = None

    def __getitem__(self, name: str) -> HostileServer:
        return self.servers.setdefault(name, HostileServer(name, self.origin))

    def answer(self, request: HostileRequest) -> HostileAnswer:
        if self.root is not None and f"{request.path}/" in (RESOURCE_PATH, ISSUER_PATH):
            return self.root(request)
        bare = request.path.removeprefix(RESOURCE_PATH).removeprefix(ISSUER_PATH)
        server = self.servers.get(bare.strip("/").partition("/")[0])
        if server is not None:
            return server.answer(request)
        self.thefts.append(request)
        return HostileAnswer(404)

    @property
    def private(self) -> set[str]:
        return {secret for each in self.servers.values() for secret in each.private}

    @property
    def requests(self) -> list[HostileRequest]:
        found = [each for server in self.servers.values() for each in server.requests]
        return [*found, *self.thefts]


@contextmanager
def a_hostile_port() -> Generator[HostilePort]:
    port: HostilePort

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            parts = urlsplit(self.path)
            request = HostileRequest(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query)),
                {name.lower(): value for name, value in self.headers.items()},
                self.rfile.read(length).decode(),
            )
            answer = port.answer(request)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - the names of the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the base class
            return

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            return

    listener = Listener(("127.0.0.1", 0), Handler)
    port = HostilePort(f"http://127.0.0.1:{listener.server_port}")
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield port
    finally:
        listener.shutdown()
        thread.join(10)
        listener.server_close()
