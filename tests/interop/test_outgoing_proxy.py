"""All that Comity connects to by HTTP is reached through the proxy of the environment or settings.

The names end in `.test` and lead nowhere on this machine: only the proxy knows them.
"""

import json
import time
import urllib.error
import urllib.request
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from comity.app.settings_reader import load_settings
from comity.inference.wiring import make_seats
from tests.cli.program import EXAMPLE
from tests.inference.test_providers import HELLO
from tests.interop.logging_proxy import LoggingProxy, origin_answering
from tests.interop.processes import comity
from tests.live.model_server import serving
from tests.live.model_speech import Said

pytestmark = pytest.mark.timeout(300)
CREDENTIALS = f"Basic {b64encode(b'me:pass').decode()}"


def _until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def _post(url: str, body: object, token: str = "") -> int:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - loopback
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as reply:
            return reply.status
    except urllib.error.HTTPError as refused:
        return refused.code


def _token(issuer: str) -> str:
    """Signed by nobody: the keys of its issuer are fetched before that is known."""
    claims = {"iss": issuer, "sub": "a", "aud": "b", "exp": time.time() + 600}
    parts = ({"alg": "RS256", "kid": "one", "typ": "JWT"}, claims, "signature")
    return ".".join(
        urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts
    )


@pytest.mark.parametrize("by", ["environment", "settings"])
def test_a_proxy_sees_upstream_keys_and_webhook_traffic(tmp_path: Path, by: str) -> None:
    example = f"command = {json.dumps(EXAMPLE['command'])}\nargs = {json.dumps(EXAMPLE['args'])}"
    secret = tmp_path / "secret"
    secret.write_text("s" * 40)
    secret.chmod(0o600)
    with (
        LoggingProxy().running() as proxy,
        origin_answering({"/asks": {}, "/checkpoints": {}}) as (there, _),
    ):
        issuer = f"https://issuer.test:{there}"
        network = f'[network]\nproxy = "{proxy.url}"\n' if by == "settings" else ""
        front = tmp_path / "front.toml"
        front.write_text(
            f'{network}[store]\nurl = "sqlite:///{tmp_path}/c.db"\n'
            f'[policy]\nrequire_approval = "dangerous"\n'
            f"[audit]\ncheckpoint_entries = 1\n"
            f'checkpoint_mirror = "http://checkpoints.test:{there}/checkpoints"\n'
            f'[approvals]\nclient_wait = "1s"\n'
            f'[[approvals.notifiers]]\nname = "hook"\nkind = "webhook"\n'
            f'url = "http://hooks.test:{there}/asks"\nsecret_file = "{secret}"\n'
            f'[[identity.issuers]]\nissuer = "{issuer}"\naudience = "b"\n'
            f'jwks_url = "{issuer}/keys"\n'
            f'[[servers]]\nid = "remote"\nurl = "http://upstream.test:{there}/mcp"\n'
            f'[[servers]]\nid = "example"\n{example}\n'
        )
        environ = {"HTTP_PROXY": proxy.url, "HTTPS_PROXY": proxy.url} if not network else {}
        with comity(front, environ) as origin:
            call = {"name": "example__echo", "arguments": {"message": "hello"}}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            _post(f"{origin}/tools/example__echo", {"message": "hello"})
            # Its keys cannot be had: what answers there speaks no TLS.
            assert _post(f"{origin}/mcp", body, _token(issuer)) in (401, 503)
            for name in ("upstream", "hooks", "checkpoints"):
                _until(partial(proxy.has_seen, f"http://{name}.test:"))
            _until(partial(proxy.has_seen, "CONNECT issuer.test:"))
        assert proxy.credentials == {CREDENTIALS}
        assert not proxy.has_seen("127.0.0.1"), "this machine is never reached through a proxy"


async def test_a_proxy_sees_model_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoggingProxy().running() as proxy:
        async with serving(Said("hello")) as server:
            there = server.url.rpartition(":")[2]
            config = tmp_path / "comity.toml"
            config.write_text(
                f'[network]\nproxy = "{proxy.url}"\n[[models]]\nid = "m"\napi = "openai"\n'
                f'model = "gpt"\nurl = "http://model.test:{there}/v1"\n'
            )
            seat = make_seats(load_settings(config, {}))["m"]
            reply = await seat.model.complete(HELLO)
            await seat.model.close()
    assert reply is not None
    assert proxy.has_seen("http://model.test:")
