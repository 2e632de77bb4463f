"""An issuer on this machine: its metadata and keys over HTTP, and tokens of any kind it is told."""

import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast, override

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

AUDIENCE = "http://127.0.0.1:2664"

type Private = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey
type Answer = Callable[["IssuersDesk"], None]


class SigningKey:
    """One key that an issuer signs with, and how it tells of it."""

    def __init__(self, kid: str, algorithm: str = "RS256", bits: int = 2048) -> None:
        self.kid = kid
        self.algorithm = algorithm
        self.private: Private = {
            "E": lambda: ec.generate_private_key(ec.SECP256R1()),
            "d": ed25519.Ed25519PrivateKey.generate,
        }.get("d" if algorithm == "EdDSA" else algorithm[0], lambda: _rsa(bits))()

    @property
    def jwk(self) -> dict[str, Any]:
        public = self.private.public_key()
        kinds: dict[str, Any] = {"E": ECAlgorithm, "O": OKPAlgorithm}
        writer: Any = kinds.get(
            "O" if self.algorithm == "EdDSA" else self.algorithm[0], RSAAlgorithm
        )
        written: dict[str, Any] = writer.to_jwk(public, as_dict=True)
        return {**written, "kid": self.kid, "use": "sig", "alg": self.algorithm}


def _rsa(bits: int) -> RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


class IssuersDesk(BaseHTTPRequestHandler):
    """Answers as its server says."""

    def do_GET(self) -> None:
        server = cast("IssuerServer", self.server)
        server.asked.append(self.path)
        answer = server.answers.get(self.path)
        if answer is None:
            self.send_error(404)
        elif callable(answer):
            answer(self)
        else:
            self.say(json.dumps(answer).encode())

    def say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of it."""


class IssuerServer(ThreadingHTTPServer):
    """An authorization server without a way to get tokens but by asking it in the test."""

    daemon_threads = True

    def __init__(self, *keys: SigningKey) -> None:
        super().__init__(("127.0.0.1", 0), IssuersDesk)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[str] = []
        self.keys = list(keys)
        self.answers: dict[str, Any] = {
            "/.well-known/oauth-authorization-server": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
            },
            "/keys": lambda handler: handler.say(self.published()),  # type: ignore[misc]
        }

    def published(self) -> bytes:
        return json.dumps({"keys": [key.jwk for key in self.keys]}).encode()

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = int(time.time())
        plain = {"iss": self.url, "aud": AUDIENCE, "sub": "ana", "iat": now, "exp": now + 300}
        return {name: value for name, value in {**plain, **changed}.items() if value is not None}

    def token(self, key: SigningKey | None = None, /, **changed: Any) -> str:
        key = key or self.keys[0]
        return jwt.encode(self.claims(**changed), key.private, key.algorithm, {"kid": key.kid})


@contextmanager
def issuing(*keys: SigningKey) -> Generator[IssuerServer]:
    server = IssuerServer(*keys)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
