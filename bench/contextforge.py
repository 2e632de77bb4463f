"""ContextForge, another gateway that governs: fetched when asked for, with its authentication on.

It is set up as its own pages say: SQLite, tokens signed with a secret, the server registered over
its API. Its rate limits stay on and are so high that none is met.
"""

import json
import os
import secrets
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bench.eras import Era
from bench.load_http import HttpTarget
from bench.processes import DidNotStart, Running
from tests.interop.peers import TOOLS, locked_environment
from tests.interop.processes import free_port

LOCK = Path(__file__).with_name("contextforge.lock")
_NAME = "contextforge"
_USER = "bench@example.com"
_TOKEN = ("mcpgateway.utils.create_jwt_token", "--username", _USER, "--exp", "600", "--admin")
_READY_WITHIN_SECONDS = 120.0
_MANY = "100000000"


def is_installed() -> bool:
    installed = TOOLS / _NAME / "installed.lock"
    return installed.exists() and installed.read_text() == LOCK.read_text()


def version() -> str:
    lines = LOCK.read_text().splitlines()
    return next(each for each in lines if "contextforge" in each).partition("==")[2].rstrip(" \\")


class ContextForge:
    """One process of it, in front of one server."""

    def __init__(self, workplace: Path) -> None:
        self._programs = Path(locked_environment(_NAME, LOCK)).parent
        self._settings = _settings(workplace)
        self._port = free_port()
        self._token = ""
        address = ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        quiet = ["--no-access-log", "--log-level", "error"]
        program = [str(self._programs / "mcpgateway"), *address, *quiet]
        self._running = Running(program, self._settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.stop()

    def cpu_seconds(self) -> float:
        return self._running.cpu_seconds()

    def register(self, upstream: str) -> None:
        """Wait until it is well, and tell it of its one server."""
        self._wait_until_healthy()
        self._token = self._make_token()
        server = {"name": "stub", "url": upstream, "transport": "STREAMABLEHTTP"}
        self._ask("/gateways", server)

    def target(self, era: Era) -> HttpTarget:
        return HttpTarget("127.0.0.1", self._port, "/mcp", era, "stub-echo", [self._token])

    def _wait_until_healthy(self) -> None:
        until = time.monotonic() + _READY_WITHIN_SECONDS
        while True:
            try:
                self._ask("/health")
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                if time.monotonic() > until:
                    raise DidNotStart(f"ContextForge was not well in time: {error}") from None
                time.sleep(0.2)
            else:
                return

    def _make_token(self) -> str:
        made = subprocess.run(
            [str(self._programs / "python"), "-m", *_TOKEN],
            env={**os.environ, **self._settings},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if made.returncode != 0:
            raise DidNotStart(f"ContextForge made no token: {made.stderr[-300:]}")
        return made.stdout.split()[-1]

    def _ask(self, path: str, body: Mapping[str, str] | None = None) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - loopback only
            pass


def _settings(workplace: Path) -> dict[str, str]:
    return {
        "DATABASE_URL": f"sqlite:///{workplace / 'contextforge.db'}",
        "PLATFORM_ADMIN_EMAIL": _USER,
        "JWT_SECRET_KEY": secrets.token_urlsafe(48),
        "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(48),
        **{name: f"{secrets.token_urlsafe(24)}-Aa1!" for name in _PASSWORDS},
        "AUTH_REQUIRED": "true",
        "MCP_CLIENT_AUTH_ENABLED": "true",
        # The stub is on this machine, which ContextForge would not call otherwise.
        "SSRF_ALLOW_LOCALHOST": "true",
        "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
        "CACHE_TYPE": "memory",
        "RATE_LIMITING_REDIS_ENABLED": "false",
        "RATE_LIMIT_MEDIUM_RPM": _MANY,
        "RATE_LIMIT_LOW_RPM": _MANY,
        "TOOL_RATE_LIMIT": _MANY,
        "LOG_LEVEL": "ERROR",
    }


_PASSWORDS = ("PLATFORM_ADMIN_PASSWORD", "BASIC_AUTH_PASSWORD", "DEFAULT_USER_PASSWORD")
