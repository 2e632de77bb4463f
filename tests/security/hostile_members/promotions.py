"""How members try to be granted more by themselves, or break what operators use, by name."""

import json
from dataclasses import dataclass, field

from tests.security.hostile_members.scene import ANYTHING, OPERATOR, PROPOSER, Scene

PATH = f"/admin/participants/{PROPOSER}/capabilities"
MORE: dict[str, object] = {"add": ["mcp/*"], "remove": []}


@dataclass(frozen=True)
class Attempt:
    """One request, by whom, and its status; without a party it shows no key."""

    name: str
    party: str
    status: int
    body: bytes = json.dumps(MORE).encode()
    method: str = "POST"
    path: str = PATH
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def request(self, scene: Scene) -> bytes:
        told = {"host": scene.host, "content-type": "application/json", **self.headers}
        if self.party:
            told["authorization"] = f"Bearer {scene.key_of(self.party)}"
        if self.body:
            told["content-length"] = str(len(self.body))
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in told.items())]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + self.body


def _asked(name: str, /, **members: object) -> Attempt:
    return Attempt(name, OPERATOR, 400, json.dumps({**MORE, **members}).encode())


ATTEMPTS = [
    Attempt("by nobody", "", 401),
    Attempt("by itself", PROPOSER, 403),
    Attempt("by another member, who may send anything", ANYTHING, 403),
    Attempt("looking, by itself", PROPOSER, 403, b"", "GET"),
    Attempt("looking at all topics", PROPOSER, 403, b"", "GET", "/api/topics"),
    Attempt("looking at one topic", PROPOSER, 403, b"", "GET", "/api/topics/ops"),
    Attempt("for everybody, by itself", PROPOSER, 403, path="/admin/participants/*/capabilities"),
    Attempt("by a header", PROPOSER, 403, headers={"x-forwarded-user": OPERATOR}),
    Attempt("by another method in a header", PROPOSER, 403, headers={"x-http-method": "GET"}),
    Attempt("saying who grants it", PROPOSER, 403, b'{"add":["chat"],"granted_by":"operator"}'),
    Attempt(
        "from a page of another site", OPERATOR, 403, headers={"origin": "http://evil.example"}
    ),
    Attempt("by a form", OPERATOR, 415, headers={"content-type": "text/plain"}),
    Attempt("by PUT", OPERATOR, 405, method="PUT"),
    Attempt("by DELETE", OPERATOR, 405, b"", "DELETE"),
    Attempt("of nobody", OPERATOR, 404, path="/admin/participants//capabilities"),
    Attempt("of something else", OPERATOR, 404, path=f"/admin/participants/{PROPOSER}/grants"),
    Attempt("with a body of no JSON", OPERATOR, 400, b"{"),
    Attempt("with a list", OPERATOR, 400, b"[]"),
    Attempt("with a member twice", OPERATOR, 400, b'{"add":["chat"],"add":["mcp/*"]}'),
    Attempt("with a deep body", OPERATOR, 400, b'{"add":' + b"[" * 50_000),
    _asked("with a member that is not known", granted_by="operator"),
    _asked("a text for a list", add="mcp/*"),
    _asked("a number in the list", add=[7]),
    _asked("a capability with a space", add=["mcp/ *"]),
    _asked("a capability with a line break", add=["chat\nmcp/*"]),
    _asked("a capability with a NUL", add=["chat\0"]),
    _asked("a capability of another alphabet", add=["ch\u0430t"]),
    _asked("an empty capability", add=[""]),
    _asked("a capability that is too long", add=["a" * 257]),
    _asked("too many capabilities", add=[f"x{each}" for each in range(65)]),
    _asked("a topic that is none", topic="a/b"),
    _asked("a number for a topic", topic=7),
]
