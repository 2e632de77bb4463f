"""A gateway at which people sign in, and a browser without script that keeps cookies."""

import asyncio
import http.client
import json as json_codec
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from comity.app.gateway import GatewayParts
from comity.identity.authentication import TokenIssuer
from comity.identity.login.rules import LOGIN_COOKIE, SESSION_COOKIE
from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.support.openid_provider import CLIENT, SECRET, Realm
from tests.support.visitor import Visitor, visiting

ANA = "person:ana"
SECONDS = 60.0
HTML = {"accept": "text/html"}
EVERYTHING = tuple(
    Grant(subject, verb, "*", Effect.ALLOW)
    for subject in (ANA, "person:ben", "person:mallory")
    for verb in (ADMIN_READ, ADMIN_WRITE)
)


@dataclass
class Response:
    """What a server answered."""

    status_code: int
    pairs: list[tuple[str, str]]
    content: bytes

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.pairs)

    @property
    def text(self) -> str:
        return self.content.decode()

    @property
    def set_cookies(self) -> list[str]:
        return [value for name, value in self.pairs if name == "set-cookie"]

    def json(self) -> Any:
        return json_codec.loads(self.content)


def exchange(
    method: str, url: str, headers: Mapping[str, str], body: bytes = b"", source: str = "127.0.0.1"
) -> Response:
    """One request on a connection of its own, which follows no redirect."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname or "", parts.port, timeout=SECONDS, source_address=(source, 0)
    )
    try:
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, path, body or None, dict(headers))
        answer = connection.getresponse()
        pairs = [(name.lower(), value) for name, value in answer.getheaders()]
        return Response(answer.status, pairs, answer.read())
    finally:
        connection.close()


@dataclass
class Browser:
    """Keeps the cookies of every host, as browsers do on loopback, and follows no redirect."""

    origin: str
    jar: dict[str, str] = field(default_factory=dict[str, str])
    attributes: dict[str, str] = field(default_factory=dict[str, str])

    async def send(
        self,
        method: str,
        place: str,
        fields: Mapping[str, str] | None = None,
        *,
        json: Any = None,
        **headers: str | None,
    ) -> Response:
        url = urljoin(self.origin, place)
        said: dict[str, str] = {**HTML}
        is_own = url.startswith(self.origin)
        if is_own and self.jar:
            said["cookie"] = "; ".join(f"{name}={value}" for name, value in self.jar.items())
        if method == "POST":
            said["origin"] = self.origin
        for name, value in headers.items():
            said.pop(name.replace("_", "-"), None)
            if value is not None:
                said[name.replace("_", "-")] = value
        body = b""
        if json is not None:
            body, said["content-type"] = json_codec.dumps(json).encode(), "application/json"
        elif method == "POST":
            said.setdefault("content-type", "application/x-www-form-urlencoded")
            body = urlencode(fields or {}).encode()
        answer = await asyncio.to_thread(exchange, method, url, said, body)
        if is_own:
            self._keep(answer)
        return answer

    async def get(self, place: str, **headers: str | None) -> Response:
        return await self.send("GET", place, None, **headers)

    async def api(self, place: str = "/api/session", **headers: str | None) -> Response:
        said = {"accept": "application/json", **headers}
        return await self.send("GET", place, None, **said)

    async def who(self) -> dict[str, Any]:
        answer = await self.api()
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def start(self, realm: Realm, to: str = "/console/") -> Response:
        query = urlencode({"issuer": realm.url, "next": to})
        return await self.get(f"/login/start?{query}")

    async def authorize(self, realm: Realm, to: str = "/console/") -> str:
        """Begin a sign-in and sign in at the provider. The address of the callback."""
        answer = await self.start(realm, to)
        assert answer.status_code == 303, answer.text
        granted = await self.get(answer.headers["location"])
        assert granted.status_code == 302, granted.text
        return granted.headers["location"]

    async def sign_in(self, realm: Realm, to: str = "/console/") -> Response:
        return await self.get(await self.authorize(realm, to))

    @property
    def session(self) -> str:
        return self.jar.get(SESSION_COOKIE, "")

    @property
    def transaction(self) -> str:
        return self.jar.get(LOGIN_COOKIE, "")

    def copy(self) -> "Browser":
        """Another browser with the same cookies: those of a thief."""
        return Browser(self.origin, dict(self.jar))

    def _keep(self, answer: Response) -> None:
        for line in answer.set_cookies:
            for name, morsel in SimpleCookie(line).items():
                self.attributes[name] = line.partition(";")[2].strip()
                if morsel["max-age"] == "0":
                    self.jar.pop(name, None)
                else:
                    self.jar[name] = morsel.value


@dataclass
class LoginScene:
    """A gateway and its provider."""

    visitor: Visitor
    realm: Realm

    @property
    def parts(self) -> GatewayParts:
        return self.visitor.parts

    @property
    def origin(self) -> str:
        return self.visitor.place.address

    def browser(self) -> Browser:
        return Browser(self.origin)

    async def principal(self, id: str = ANA) -> Principal | None:
        return await self.parts.snapshot.records.parties.get(id)

    async def put(self, id: str, **fields: Any) -> None:
        person = Principal(id, PrincipalKind.PERSON, **fields)
        await self.parts.snapshot.records.parties.put(person)
        await self.parts.snapshot.refresh()


def an_issuer(realm: Realm, secret_file: Path | str = "", **changed: Any) -> TokenIssuer:
    plain: dict[str, Any] = {
        "client_id": CLIENT,
        "client_secret_file": str(secret_file),
        "principal_prefix": "person:",
        "groups_claim": "groups",
        "name": "Example",
    }
    return TokenIssuer(realm.url, **{**plain, **changed})


def write_client_secret(folder: Path) -> Path:
    file = folder / "client.secret"
    file.write_text(SECRET)
    file.chmod(0o600)
    return file


@asynccontextmanager
async def a_login_scene(
    realm: Realm, *issuers: TokenIssuer, mode: str = "required", **chosen: Any
) -> AsyncGenerator[LoginScene]:
    """A gateway of which this provider knows the address."""
    chosen = {"grants": EVERYTHING, **chosen}
    async with visiting(
        identity_mode=mode, identity_issuers=issuers or (an_issuer(realm),), **chosen
    ) as visitor:
        realm.redirect_uris.append(f"{visitor.place.address}/login/callback")
        yield LoginScene(visitor, realm)


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
