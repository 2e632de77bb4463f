"""A real authorization server on this machine: Authlib's, with all that MCP clients need of one.

Authorization code with PKCE, refresh tokens that are used once, dynamic registration, metadata, and
access tokens as JWTs for the resource that was asked for. A person who approves is played here.
"""
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportMissingParameterType=false, reportMissingTypeStubs=false
# pyright: reportIncompatibleMethodOverride=false, reportUntypedBaseClass=false

import secrets
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import flask
import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, grants
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from joserfc.jwk import KeySet, RSAKey
from werkzeug.serving import make_server

PUBLIC = ["none", "client_secret_post", "client_secret_basic"]


class Person:
    """Who approves."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_user_id(self) -> str:
        return self.name


class RegisteredClient(ClientMixin):
    """A client that has registered itself."""

    def __init__(self, info: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.info, self.metadata = info, metadata

    def get_client_id(self) -> str:
        return self.info["client_id"]

    def get_default_redirect_uri(self) -> str:
        return self.metadata["redirect_uris"][0]

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.metadata["redirect_uris"]

    def check_client_secret(self, client_secret: str) -> bool:
        return secrets.compare_digest(client_secret, self.info["client_secret"])

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in PUBLIC

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in ("authorization_code", "refresh_token")


@dataclass
class Given:
    """A code, or a refresh token, and what it was given for."""

    client_id: str
    user: str
    scope: str
    redirect_uri: str = ""
    code_challenge: str = ""
    code_challenge_method: str = ""

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def check_client(self, client: RegisteredClient) -> bool:
        return client.get_client_id() == self.client_id


@dataclass
class Realm:
    """All that the server knows; a test changes it while it runs."""

    url: str = ""
    person: str = "ana"
    lifetime: int = 300
    audience: str = ""
    groups: object = None
    # Scopes that it grants beyond those that were requested.
    more_scopes: str = ""
    keys: list[RSAKey] = field(default_factory=list[RSAKey])
    clients: dict[str, RegisteredClient] = field(default_factory=dict[str, RegisteredClient])
    codes: dict[str, Given] = field(default_factory=dict[str, Given])
    refreshing: dict[str, Given] = field(default_factory=dict[str, Given])
    access: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    # Holds each refresh until it is set, and counts those that have begun.
    may_refresh: threading.Event = field(default_factory=threading.Event)
    refreshes_begun: int = 0
    # Whether refreshes that were held are forgotten, as those of a client that died.
    drops_held: bool = False
    revoked: list[str] = field(default_factory=list[str])
    grants: list[str] = field(default_factory=list[str])
    resources: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.may_refresh.set()

    def expire_all(self) -> None:
        """Let no access token be valid any more. Refresh tokens stay."""
        self.access.clear()

    @property
    def all_tokens(self) -> set[str]:
        return {*self.access, *self.refreshing, *self.revoked, *self.spent}

    spent: set[str] = field(default_factory=set[str])
    # Codes, verifiers and client secrets that were ever used.
    private: set[str] = field(default_factory=set[str])

    def note_secrets(self, form: Mapping[str, str]) -> None:
        """Note the secrets of a request for a token, so that a test can search for them."""
        shown = (form.get(name, "") for name in ("code", "code_verifier", "client_secret"))
        self.private.update(each for each in shown if each)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": PUBLIC,
            "scopes_supported": ["tools", "write"],
        }

    def rotate(self) -> None:
        """Sign with a new key from now on, and know the old one no more."""
        key_id = secrets.token_hex(4)
        self.keys = [RSAKey.generate_key(2048, {"kid": key_id, "use": "sig", "alg": "RS256"})]


def make_app(realm: Realm) -> flask.Flask:
    app = flask.Flask("authorization")
    server = AuthorizationServer(app, realm.clients.get, lambda token, request: None)
    server.register_token_generator("default", _Tokens(realm))
    server.register_grant(_code_grant(realm), [CodeChallenge(required=True)])
    server.register_grant(_refresh_grant(realm))
    server.register_endpoint(_registration(realm))

    @app.get("/.well-known/oauth-authorization-server")
    def metadata() -> dict[str, Any]:
        return realm.metadata()

    @app.get("/keys")
    def keys() -> dict[str, Any]:
        return dict(KeySet([*realm.keys]).as_dict(private=False))

    @app.get("/authorize")
    def authorize() -> Any:
        grant = server.get_consent_grant(end_user=Person(realm.person))
        return server.create_authorization_response(grant=grant, grant_user=Person(realm.person))

    @app.post("/token")
    def token() -> Any:
        grant = flask.request.form["grant_type"]
        if grant == "refresh_token":
            realm.refreshes_begun += 1
            is_held = not realm.may_refresh.is_set()
            realm.may_refresh.wait(60)
            if is_held and realm.drops_held:
                return flask.Response(status=503)
        realm.note_secrets(flask.request.form)
        realm.grants.append(grant)
        realm.resources.append(flask.request.form.get("resource", ""))
        return server.create_token_response()

    @app.post("/introspect")
    def introspect() -> dict[str, Any]:
        known = realm.access.get(flask.request.form["token"])
        return {"active": False} if known is None else {"active": True, **known}

    @app.post("/revoke")
    def revoke() -> dict[str, Any]:
        token = flask.request.form["token"]
        realm.revoked.append(token)
        realm.access.pop(token, None)
        realm.refreshing.pop(token, None)
        return {}

    @app.post("/register")
    def register() -> Any:
        return server.create_endpoint_response(ClientRegistrationEndpoint.ENDPOINT_NAME)

    return app


class _Tokens(JWTBearerTokenGenerator):
    def __init__(self, realm: Realm) -> None:
        super().__init__(
            realm.url,
            refresh_token_generator=lambda **_: secrets.token_urlsafe(24),
            expires_generator=lambda client, grant_type: realm.lifetime,
        )
        self.realm = realm

    def get_jwks(self) -> Any:
        return self.realm.keys[0]

    def get_audiences(self, client: Any, user: Any, scope: Any) -> str:
        return self.realm.audience or flask.request.form.get("resource", "nobody")

    def get_extra_claims(self, client: Any, grant_type: Any, user: Any, scope: Any) -> Any:
        return {} if self.realm.groups is None else {"groups": self.realm.groups}

    def __call__(self, grant_type: str, client: Any, user: Any = None, **more: Any) -> Any:
        self.issuer = self.realm.url
        token: dict[str, Any] = super().__call__(grant_type, client, user=user, **more)
        scope = " ".join(filter(None, (token.get("scope", ""), self.realm.more_scopes)))
        token["scope"] = scope
        given = Given(client.get_client_id(), user.get_user_id(), scope)
        self.realm.refreshing[token["refresh_token"]] = given
        self.realm.access[token["access_token"]] = {
            "sub": user.get_user_id(),
            "scope": scope,
            "client_id": client.get_client_id(),
            "aud": self.get_audiences(client, user, scope),
        }
        self.realm.spent |= {token["refresh_token"], token["access_token"]}
        return token


def _code_grant(realm: Realm) -> type:
    class CodeGrant(grants.AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = PUBLIC

        def save_authorization_code(self, code: str, request: Any) -> None:
            said = request.payload.data
            realm.private.add(code)
            realm.codes[code] = Given(
                request.client.get_client_id(),
                request.user.get_user_id(),
                said.get("scope", ""),
                said.get("redirect_uri", ""),
                said.get("code_challenge", ""),
                said.get("code_challenge_method", ""),
            )

        def query_authorization_code(self, code: str, client: RegisteredClient) -> Given | None:
            given = realm.codes.get(code)
            return given if given and given.check_client(client) else None

        def delete_authorization_code(self, authorization_code: Given) -> None:
            left = {code: it for code, it in realm.codes.items() if it is not authorization_code}
            realm.codes.clear()
            realm.codes.update(left)

        def authenticate_user(self, authorization_code: Given) -> Person:
            return Person(authorization_code.user)

    return CodeGrant


def _refresh_grant(realm: Realm) -> type:
    class RefreshGrant(grants.RefreshTokenGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = PUBLIC
        INCLUDE_NEW_REFRESH_TOKEN = True

        def authenticate_refresh_token(self, refresh_token: str) -> Given | None:
            return realm.refreshing.get(refresh_token)

        def authenticate_user(self, refresh_token: Given) -> Person:
            return Person(refresh_token.user)

        def revoke_old_credential(self, refresh_token: Given) -> None:
            for name, given in list(realm.refreshing.items()):
                if given is refresh_token:
                    del realm.refreshing[name]

    return RefreshGrant


def _registration(realm: Realm) -> type:
    class Registration(ClientRegistrationEndpoint):
        def authenticate_token(self, request: Any) -> str:
            return "anybody may"

        def get_server_metadata(self) -> dict[str, Any]:
            return {}

        def save_client(self, client_info: Any, client_metadata: Any, request: Any) -> Any:
            client = RegisteredClient(client_info, client_metadata)
            realm.private |= {client_info["client_secret"]} - {"", None}
            realm.clients[client.get_client_id()] = client
            return client

    return Registration


@contextmanager
def authorizing(**chosen: Any) -> Generator[Realm]:
    """The server, for as long as the test needs it."""
    realm = Realm(**chosen)
    realm.rotate()
    server = make_server("127.0.0.1", 0, make_app(realm), threaded=True)
    realm.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            # Authlib wants TLS; on this machine nobody listens.
            patched.setenv("AUTHLIB_INSECURE_TRANSPORT", "1")
            yield realm
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
