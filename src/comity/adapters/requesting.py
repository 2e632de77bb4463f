"""One HTTP request from a thread, directly or through a proxy: for keys and checkpoints."""

import http.client
from base64 import b64encode
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from comity.rules.proxies import Proxies
from comity.wire.errors import Misconfigured

NO_PROXIES: Final = Proxies()
_PORTS: Final = {"http": 80, "https": 443}


class HttpRequest:
    """A connection to the host of a URL, and what to ask for there."""

    def __init__(self, url: str, proxies: Proxies, seconds: float) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        is_secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        self._target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        self._headers: dict[str, str] = {}
        proxy = proxies.proxy_for(parts.scheme, host, port)
        if not proxy:
            self.connection = kind(host, port, timeout=seconds)
            return
        between = urlsplit(proxy)
        if between.scheme != "http" or not between.hostname:
            raise Misconfigured("a proxy is named by a URL such as http://proxy.example.org:3128")
        credentials = _credentials(between.username, between.password)
        self.connection = kind(between.hostname, between.port or 80, timeout=seconds)
        if is_secure:
            self.connection.set_tunnel(host, port, credentials)
        else:
            self._target = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._target}"
            self._headers.update(credentials)

    def send(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """Raises OSError or HTTPException; the connection is the caller's to close."""
        self.connection.request(method, self._target, body, {**self._headers, **headers})
        return self.connection.getresponse()


def _credentials(user: str | None, password: str | None) -> dict[str, str]:
    if user is None:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(pair).decode()}"}
