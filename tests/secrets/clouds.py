"""Vault, AWS, Google Cloud and Azure on one port: real cryptography, and strict about requests."""

import base64
import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, override
from urllib.parse import parse_qs, urlsplit

import jwt
from botocore.auth import SigV4Auth  # pyright: ignore[reportMissingTypeStubs]
from botocore.awsrequest import AWSRequest  # pyright: ignore[reportMissingTypeStubs]
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SECRET = "kept-by-the-cloud-8d1f6a"
TOKEN = "hvs.token-of-vault-93aa"
AWS_ID, AWS_SECRET = "AKIDEXAMPLE", "aws-secret-access-key-71bd"
REGION = "eu-central-1"
ARN = f"arn:aws:kms:{REGION}:111122223333:key/1234abcd"
RESOURCE = "projects/p1/locations/eu/keyRings/r1/cryptoKeys/k1"
IDENTITY_HEADER = "header-of-managed-identity"

type Answer = tuple[int, object]


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _padded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Clouds:
    """The server. `calls` counts requests by path; `is_down` makes it refuse all of them."""

    def __init__(self) -> None:
        self.secrets = {"DB_PASSWORD": SECRET}
        self.calls: list[str] = []
        self.is_down = False
        self._aes = AESGCM(os.urandom(32))
        self._rsa = rsa.generate_private_key(65537, 2048)
        self._google = rsa.generate_private_key(65537, 2048)
        self._tokens = {"google": "ya29.google-token-5512", "azure": "eyJ.azure-token-8861"}
        clouds = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                said = {name.lower(): value for name, value in self.headers.items()}
                status, view = clouds.answer(self.command, self.path, said, body)
                text = json.dumps(view).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            @override
            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest shows what failed."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)

    @property
    def credentials(self) -> list[str]:
        return [TOKEN, AWS_SECRET, *self._tokens.values(), IDENTITY_HEADER]

    def environ(self, folder: Path) -> dict[str, str]:
        """The variables with which the packages of the vendors find this server."""
        key = self._google.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        account = folder / "account.json"
        about = {"type": "service_account", "client_email": "a@p1", "project_id": "p1"}
        more = {"private_key": key.decode(), "token_uri": f"{self.url}/google-token"}
        account.write_text(json.dumps({**about, **more}))
        return {
            "VAULT_ADDR": self.url,
            "VAULT_TOKEN": TOKEN,
            "AWS_ACCESS_KEY_ID": AWS_ID,
            "AWS_SECRET_ACCESS_KEY": AWS_SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "GOOGLE_APPLICATION_CREDENTIALS": str(account),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDKMS": self.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER": self.url,
            "IDENTITY_ENDPOINT": f"{self.url}/azure-token",
            "IDENTITY_HEADER": IDENTITY_HEADER,
        }

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        path = urlsplit(target).path
        self.calls.append(path)
        if self.is_down:
            return 503, {"errors": [f"sealed; {TOKEN}"]}
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        given: Any = json.loads(body) if body and "json" in headers.get("content-type", "") else {}
        if "x-amz-target" in headers:
            return self._aws(headers, body, given)
        if path == "/google-token":
            return self._google_token(parse_qs(body.decode()))
        if path == "/azure-token":
            return self._azure_token(headers, query)
        if path.startswith("/v1/projects/"):
            assert headers["authorization"] == f"Bearer {self._tokens['google']}"
            return self._google_call(method, path, given)
        is_vault = path.startswith("/v1/")
        return (
            self._vault(method, path, headers, given)
            if is_vault
            else self._azure(method, path, headers, query, given)
        )

    def _encrypt(self, plain: bytes, context: bytes = b"") -> bytes:
        nonce = os.urandom(12)
        return nonce + self._aes.encrypt(nonce, plain, context)

    def _decrypt(self, sealed: bytes, context: bytes = b"") -> bytes | None:
        try:
            return self._aes.decrypt(sealed[:12], sealed[12:], context)
        except (InvalidTag, ValueError):
            return None

    # One method for each product.

    def _vault(self, method: str, path: str, headers: dict[str, str], given: Any) -> Answer:
        if headers.get("x-vault-token") != TOKEN:
            return 403, {"errors": ["permission denied"]}
        if (method, path) == ("GET", "/v1/secret/data/comity"):
            return 200, {"data": {"data": self.secrets, "metadata": {"version": 1}}}
        if (method, path) == ("POST", "/v1/transit/encrypt/comity"):
            sealed = self._encrypt(base64.b64decode(given["plaintext"], validate=True))
            return 200, {"data": {"ciphertext": f"vault:v1:{_b64(sealed)}", "key_version": 1}}
        if (method, path) == ("POST", "/v1/transit/decrypt/comity"):
            found = re.fullmatch(r"vault:v1:((?:[A-Za-z0-9+/]{4})+)(={0,2})", given["ciphertext"])
            plain = self._decrypt(base64.b64decode(found[1])) if found else None
            if plain is None:
                return 400, {"errors": ["invalid ciphertext"]}
            return 200, {"data": {"plaintext": _b64(plain)}}
        return 404, {"errors": []}

    def _aws(self, headers: dict[str, str], body: bytes, given: Any) -> Answer:
        target = headers["x-amz-target"]
        service = "kms" if target.startswith("TrentService.") else "secretsmanager"
        assert headers["content-type"] == "application/x-amz-json-1.1"
        if not self._is_signed(service, headers, body):
            return 400, {"__type": "InvalidSignatureException"}
        if target == "secretsmanager.GetSecretValue":
            name = given["SecretId"].removeprefix("prod/")
            if name not in self.secrets:
                return 400, {"__type": "com.amazonaws#ResourceNotFoundException"}
            return 200, {"SecretString": self.secrets[name]}
        assert given["KeyId"] == ARN
        context = json.dumps(given["EncryptionContext"], sort_keys=True).encode()
        if target == "TrentService.Encrypt":
            sealed = self._encrypt(base64.b64decode(given["Plaintext"]), context)
            return 200, {"CiphertextBlob": _b64(sealed), "KeyId": ARN}
        assert target == "TrentService.Decrypt"
        plain = self._decrypt(base64.b64decode(given["CiphertextBlob"]), context)
        if plain is None:
            return 400, {"__type": "InvalidCiphertextException"}
        return 200, {"Plaintext": _b64(plain), "KeyId": ARN}

    def _is_signed(self, service: str, headers: dict[str, str], body: bytes) -> bool:
        """Whether botocore makes the same signature for the request as it arrived."""
        said = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^,]+), SignedHeaders=([^,]+), Signature=([0-9a-f]{64})",
            headers.get("authorization", ""),
        )
        if said is None or not {"host", "x-amz-date", "x-amz-target"} <= {*said[2].split(";")}:
            return False
        stamp = headers["x-amz-date"]
        if said[1] != f"{AWS_ID}/{stamp[:8]}/{REGION}/{service}/aws4_request":
            return False
        at = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        assert abs((datetime.now(UTC) - at).total_seconds()) < 300
        signed = {name: headers[name] for name in said[2].split(";")}
        request: Any = AWSRequest("POST", f"http://{headers['host']}/", headers=signed, data=body)
        request.context["timestamp"] = stamp
        keys = SimpleNamespace(access_key=AWS_ID, secret_key=AWS_SECRET, token=None)
        auth: Any = SigV4Auth(keys, service, REGION)
        text = auth.string_to_sign(request, auth.canonical_request(request))
        return hmac.compare_digest(auth.signature(text, request), said[3])

    def _google_token(self, form: dict[str, list[str]]) -> Answer:
        claims = jwt.decode(
            form["assertion"][0],
            self._google.public_key(),
            algorithms=["RS256"],
            audience="https://oauth2.googleapis.com/token",
        )
        assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        return 200, {"access_token": self._tokens["google"], "expires_in": 3600}

    def _google_call(self, method: str, path: str, given: Any) -> Answer:
        place = path.removeprefix("/v1/")
        if method == "GET":
            name = place.removeprefix("projects/p1/secrets/").removesuffix(
                "/versions/latest:access"
            )
            if name not in self.secrets:
                return 404, {"error": {"code": 404, "status": "NOT_FOUND"}}
            return 200, {"payload": {"data": _b64(self.secrets[name].encode())}}
        context = base64.b64decode(given["additionalAuthenticatedData"])
        if place == f"{RESOURCE}:encrypt":
            sealed = self._encrypt(base64.b64decode(given["plaintext"]), context)
            return 200, {"name": f"{RESOURCE}/cryptoKeyVersions/1", "ciphertext": _b64(sealed)}
        assert place == f"{RESOURCE}:decrypt"
        plain = self._decrypt(base64.b64decode(given["ciphertext"]), context)
        if plain is None:
            return 400, {"error": {"code": 400, "status": "INVALID_ARGUMENT"}}
        return 200, {"plaintext": _b64(plain)}

    def _azure_token(self, headers: dict[str, str], query: dict[str, str]) -> Answer:
        assert headers["x-identity-header"] == IDENTITY_HEADER
        assert query["resource"] == "https://vault.azure.net"
        return 200, {
            "access_token": self._tokens["azure"],
            "expires_on": str(int(time.time()) + 3600),
            "token_type": "Bearer",
            "resource": query["resource"],
        }

    def _azure(
        self, method: str, path: str, headers: dict[str, str], query: dict[str, str], given: Any
    ) -> Answer:
        assert headers["authorization"] == f"Bearer {self._tokens['azure']}"
        assert query == {"api-version": "7.4"}
        if method == "GET":
            names = {name.replace("_", "-"): value for name, value in self.secrets.items()}
            name = path.removeprefix("/secrets/")
            if name not in names:
                return 404, {"error": {"code": "SecretNotFound"}}
            return 200, {"value": names[name], "id": f"{self.url}{path}/1"}
        oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
        assert given["alg"] == "RSA-OAEP-256"
        version = f"{self.url}/keys/comity/{hashlib.sha256(b'v1').hexdigest()[:32]}"
        if path == "/keys/comity/wrapkey":
            sealed = self._rsa.public_key().encrypt(_padded(given["value"]), oaep)
            return 200, {"kid": version, "value": _unpadded(sealed)}
        assert path == f"{urlsplit(version).path}/unwrapkey"
        try:
            plain = self._rsa.decrypt(_padded(given["value"]), oaep)
        except ValueError:
            return 400, {"error": {"code": "BadParameter"}}
        return 200, {"kid": version, "value": _unpadded(plain)}


@contextmanager
def running_clouds() -> Generator[Clouds]:
    clouds = Clouds()
    try:
        yield clouds
    finally:
        clouds.close()


KEYS: dict[str, Callable[[Clouds], str]] = {
    "vault": lambda _: "vault:transit/comity",
    "aws": lambda _: f"aws:{ARN}",
    "gcp": lambda _: f"gcp:{RESOURCE}",
    "azure": lambda clouds: f"azure:{clouds.url}/keys/comity",
}
SOURCES: dict[str, Callable[[Clouds], str]] = {
    "vault": lambda _: "vault:secret/comity",
    "aws": lambda _: f"aws:{REGION}/prod/",
    "gcp": lambda _: "gcp:projects/p1",
    "azure": lambda clouds: f"azure:{clouds.url}",
}
