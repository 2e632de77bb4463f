"""A real OpenID provider on this machine: Authlib's, with switches by which it turns hostile.

Authorization code with PKCE and nonce, ID tokens, userinfo, `iss` in the answer, a session at the
provider with its `sid`, and logout tokens. A person who signs in there is played here.
"""
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportMissingParameterType=false, reportMissingTypeStubs=false
# pyright: reportIncompatibleMethodOverride=false, reportUntypedBaseClass=false

import secrets
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import flask
import jwt
import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, InvalidRequestError, grants
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oidc.core.grants import OpenIDCode
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

from tests.support.issuing import SigningKey

CLIENT = "comity"
METHODS = ["none", "client_secret_post", "client_secret_basic"]
SECRET = "secret of comity & co: 100%"
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
TOKEN_TYPE = "urn:ietf:params:oauth:token-type:"

type Exchange = Callable[[dict[str, str], dict[str, Any]], Any]
"""Returns the answer to an exchange: of the form, and of what an honest provider answers."""

type Forge = Callable[["Realm", dict[str, Any]], str]
"""Returns the ID token for these claims, which may be any text."""


class Person:
    """Who signs in."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_user_id(self) -> str:
        return self.name


class Client(ClientMixin):
    """Comity, as it is registered at the provider."""

    def __init__(self, realm: "Realm") -> None:
        self.realm = realm

    def get_client_id(self) -> str:
        return CLIENT

    def get_default_redirect_uri(self) -> str:
        return self.realm.redirect_uris[0]

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.realm.redirect_uris

    def check_client_secret(self, client_secret: str) -> bool:
        return secrets.compare_digest(client_secret, SECRET)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in self.realm.methods

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in ("authorization_code", TOKEN_EXCHANGE)


@dataclass
class Code:
    """A code, and what it was given for."""

    user: str
    scope: str
    redirect_uri: str
    code_challenge: str
    code_challenge_method: str
    nonce: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope

    def get_nonce(self) -> str:
        return self.nonce

    def get_auth_time(self) -> int:
        return int(time.time())

    def get_acr(self) -> None:
        return None

    def get_amr(self) -> None:
        return None


@dataclass
class Realm:
    """All that the provider knows; a test changes it while it runs."""

    url: str = ""
    person: str = "ana"
    claims: dict[str, Any] = field(default_factory=dict[str, Any])
    userinfo: dict[str, Any] | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    methods: list[str] = field(default_factory=lambda: ["client_secret_basic"])
    redirect_uris: list[str] = field(default_factory=list[str])
    keys: list[SigningKey] = field(default_factory=list[SigningKey])
    codes: dict[str, Code] = field(default_factory=dict[str, Code])
    token_requests: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    ended: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    sid: str = "idp-session-1"
    sends_issuer: bool = True
    forge: Forge | None = None
    # The clients of Comity at other authorization servers, by issuer, for identity assertions.
    clients: dict[str, str] = field(default_factory=dict[str, str])
    exchanges: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    exchange: Exchange | None = None
    refuses_tokens: bool = False
    # ID tokens, assertions and exchanged tokens that were ever given.
    issued: list[str] = field(default_factory=list[str])

    def rotate(self) -> None:
        """Sign with a new key from now on, and know the old one no more."""
        self.keys = [SigningKey(secrets.token_hex(4))]

    def sign(self, claims: dict[str, Any], key: SigningKey | None = None, **header: Any) -> str:
        key = key or self.keys[0]
        return jwt.encode(claims, key.private, key.algorithm, {"kid": key.kid, **header})

    def logout_token(self, **changed: Any) -> str:
        now = int(time.time())
        plain: dict[str, Any] = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": self.person,
            "sid": self.sid,
            "iat": now,
            "exp": now + 120,
            "jti": secrets.token_hex(8),
            "events": {LOGOUT_EVENT: {}},
        }
        claims = {name: each for name, each in {**plain, **changed}.items() if each is not None}
        return self.sign(claims, typ="logout+jwt")


def make_app(realm: Realm) -> flask.Flask:
    app, client = flask.Flask("openid"), Client(realm)
    server = AuthorizationServer(
        app, lambda id: client if id == CLIENT else None, lambda token, request: None
    )
    server.register_grant(_code_grant(realm), [_id_tokens(realm), CodeChallenge(required=True)])
    server.register_grant(_exchange_grant(realm))

    @app.get("/.well-known/openid-configuration")
    def metadata() -> dict[str, Any]:
        plain = {
            "issuer": realm.url,
            "authorization_endpoint": f"{realm.url}/authorize",
            "token_endpoint": f"{realm.url}/token",
            "userinfo_endpoint": f"{realm.url}/userinfo",
            "end_session_endpoint": f"{realm.url}/end",
            "jwks_uri": f"{realm.url}/keys",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": realm.methods,
            "authorization_response_iss_parameter_supported": realm.sends_issuer,
        }
        found = {**plain, **realm.metadata}
        return {name: each for name, each in found.items() if each is not None}

    @app.get("/keys")
    def keys() -> dict[str, Any]:
        return {"keys": [key.jwk for key in realm.keys]}

    @app.get("/authorize")
    def authorize() -> Any:
        grant = server.get_consent_grant(end_user=Person(realm.person))
        answer: Any = server.create_authorization_response(
            grant=grant, grant_user=Person(realm.person)
        )
        if realm.sends_issuer:
            answer.location = _with_query(answer.location, iss=realm.url)
        return answer

    @app.post("/token")
    def token() -> Any:
        form = dict(flask.request.form)
        realm.token_requests.append(form)
        answer: Any = server.create_token_response()
        if form.get("grant_type") == TOKEN_EXCHANGE and realm.exchange is not None:
            return realm.exchange(form, answer.json)
        return answer

    @app.get("/userinfo")
    def userinfo() -> Any:
        if realm.userinfo is None:
            return {"sub": realm.person}
        return realm.userinfo

    @app.get("/end")
    def end() -> Any:
        realm.ended.append(dict(flask.request.args))
        return flask.redirect(flask.request.args["post_logout_redirect_uri"])

    return app


def _with_query(url: str, **more: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query=urlencode([*parse_qsl(parts.query), *more.items()])))


def _id_tokens(realm: Realm) -> OpenIDCode:
    class IdTokens(OpenIDCode):
        def exists_nonce(self, nonce: str, request: Any) -> bool:
            return False

        def get_client_algorithm(self, client: Any) -> str:
            return "RS256"

        def get_client_claims(self, client: Any) -> dict[str, Any]:
            now = int(time.time())
            return {"iss": realm.url, "aud": CLIENT, "iat": now, "exp": now + 300}

        def resolve_client_private_key(self, client: Any) -> Any:
            return RSAKey.generate_key(2048)

        def generate_user_info(self, user: Person, scope: str) -> dict[str, Any]:
            return {"sub": user.name, "sid": realm.sid, **realm.claims}

        def process_token(self, grant: Any, response: Any) -> Any:
            token: Any = super().process_token(grant, response)
            # Signed anew: with the published key, and as the test wants it.
            claims = jwt.decode(token["id_token"], options={"verify_signature": False})
            claims |= {"iss": realm.url, "aud": CLIENT}
            token["id_token"] = (realm.forge or Realm.sign)(realm, claims)
            realm.issued.append(token["id_token"])
            return token

    return IdTokens(require_nonce=True)


def _code_grant(realm: Realm) -> type:
    class CodeGrant(grants.AuthorizationCodeGrant):
        TOKEN_ENDPOINT_AUTH_METHODS = METHODS

        def save_authorization_code(self, code: str, request: Any) -> None:
            said = request.payload.data
            realm.codes[code] = Code(
                request.user.get_user_id(),
                said.get("scope", ""),
                said.get("redirect_uri", ""),
                said.get("code_challenge", ""),
                said.get("code_challenge_method", ""),
                said.get("nonce", ""),
            )

        def query_authorization_code(self, code: str, client: Client) -> Code | None:
            return realm.codes.get(code)

        def delete_authorization_code(self, authorization_code: Code) -> None:
            left = {code: it for code, it in realm.codes.items() if it is not authorization_code}
            realm.codes.clear()
            realm.codes.update(left)

        def authenticate_user(self, authorization_code: Code) -> Person:
            return Person(authorization_code.user)

    return CodeGrant


def _exchange_grant(realm: Realm) -> type:
    class ExchangeGrant(grants.BaseGrant, grants.TokenEndpointMixin):
        GRANT_TYPE = TOKEN_EXCHANGE
        TOKEN_ENDPOINT_AUTH_METHODS = METHODS

        def validate_token_request(self) -> None:
            self.request.client = self.authenticate_token_endpoint_client()
            form = flask.request.form.to_dict()
            realm.exchanges.append(form)
            try:
                if realm.refuses_tokens or form["subject_token_type"] != f"{TOKEN_TYPE}id_token":
                    raise InvalidRequestError
                self.request.user = jwt.decode(
                    form["subject_token"],
                    realm.keys[0].private.public_key(),
                    algorithms=["RS256"],
                    audience=CLIENT,
                    issuer=realm.url,
                )
            except jwt.PyJWTError:
                raise InvalidRequestError from None

        def create_token_response(self) -> Any:
            made = _exchanged(realm, self.request.user, flask.request.form.to_dict())
            realm.issued.append(made["access_token"])
            return 200, made, self.TOKEN_RESPONSE_HEADER

    return ExchangeGrant


def _exchanged(realm: Realm, person: Any, form: dict[str, str]) -> dict[str, Any]:
    """An identity assertion or an access token, as it was requested."""
    now, scope = int(time.time()), form.get("scope", "")
    claims = {
        "iss": realm.url,
        "sub": person["sub"],
        "jti": secrets.token_hex(8),
        "scope": scope,
        "iat": now,
        "exp": now + 300,
        "resource": form["resource"],
    }
    kind = form["requested_token_type"]
    if kind == f"{TOKEN_TYPE}id-jag":
        named = {"aud": form["audience"], "client_id": realm.clients.get(form["audience"], CLIENT)}
        token, use = realm.sign({**claims, **named}, typ="oauth-id-jag+jwt"), "N_A"
    else:
        named = {"aud": form.get("audience") or form["resource"], "client_id": CLIENT}
        token, use = realm.sign({**claims, **named}, typ="at+jwt"), "Bearer"
    return {
        "access_token": token,
        "issued_token_type": kind,
        "token_type": use,
        "expires_in": 300,
        "scope": scope,
    }


@contextmanager
def openid_provider(**chosen: Any) -> Generator[Realm]:
    """The provider, for as long as the test needs it."""
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
