"""Serves the files of the web console, and redirects a browser from `/` to it.

The files are public: they hold no data. The console reads all data from `/api/`, where each route
has its permission. `scripts/console` builds the files into the folder `static` of this package.
"""

import functools
import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from comity.http import asgi
from comity.http.asgi import HttpEndpoint, Receive, Scope, Send
from comity.http.pages import (
    PROTECTION_HEADERS,
    render_heading,
    render_page,
    render_paragraph,
    send_page,
)

CONSOLE_PATH: Final = "/console/"
NO_CONSOLE: Final = "This build of Comity has no web console."
HOW_TO_GET_IT: Final = (
    "Install a release with `pip install comity`, or build the package where npm is installed."
)

_INDEX: Final = "index.html"
_HASHED: Final = "assets/"
"""Vite writes a digest into each name below this folder, so browsers may keep those files."""

_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".json": b"application/json",
    ".webmanifest": b"application/manifest+json",
    ".png": b"image/png",
    ".txt": b"text/plain; charset=utf-8",
}
_COMPRESSED: Final = frozenset({".html", ".js", ".css", ".svg", ".json", ".txt", ".webmanifest"})
_CONTENT_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; "
    b"form-action 'self'; frame-ancestors 'none'; "
    # No code of the console may turn text into HTML or into a script. The one policy gives the
    # address of the worker that shows notifications, and nothing else.
    b"require-trusted-types-for 'script'; trusted-types comity-worker"
)
_HEADERS: Final = (
    (b"content-security-policy", _CONTENT_POLICY),
    *PROTECTION_HEADERS,
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
    (b"vary", b"accept-encoding"),
)
_KEPT: Final = b"public, max-age=31536000, immutable"
_CHECKED: Final = b"no-cache"


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """One built file in memory, plain and compressed."""

    content_type: bytes
    plain: bytes
    compressed: bytes | None
    etag: bytes


class ConsoleFiles:
    """The built files of the console, by their path below `/console/`."""

    def __init__(self, folder: Traversable | None = None) -> None:
        root = files("comity.console").joinpath("static") if folder is None else folder
        # One look-up in this table finds a file, so no path can leave the folder.
        self._file_by_path = dict(_read_files(root)) if root.is_dir() else {}

    @property
    def is_built(self) -> bool:
        return _INDEX in self._file_by_path

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        """The endpoints of the console, or of the page that says that it is missing."""
        return {CONSOLE_PATH: self.serve_file if self.is_built else explain_missing_console}

    async def serve_file(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Send a file. Any other path gets the page, because the console has its own routes."""
        method: str = scope["method"]
        if method not in ("GET", "HEAD"):
            await asgi.send_empty(send, 405, ((b"allow", b"GET, HEAD"),))
            return
        name: str = scope["path"].removeprefix(CONSOLE_PATH)
        found = self._file_by_path.get(name)
        if found is None and name.startswith(_HASHED):
            raise asgi.not_found_error()
        is_kept = found is not None and name.startswith(_HASHED)
        file = found or self._file_by_path[_INDEX]
        extra = ((b"cache-control", _KEPT if is_kept else _CHECKED), (b"etag", file.etag))
        if headers.get(b"if-none-match") == file.etag:
            await asgi.send_empty(send, 304, (*_HEADERS, *extra))
            return
        await _send_file(send, file, (*_HEADERS, *extra), headers, has_body=method == "GET")


@functools.cache
def installed_console_files() -> ConsoleFiles:
    """Return the console of this installation. Reading and compressing it takes 30 ms of CPU."""
    return ConsoleFiles()


def is_console_built() -> bool:
    """Return whether this installation has the console."""
    return files("comity.console").joinpath("static", _INDEX).is_file()


async def explain_missing_console(
    scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
) -> None:
    """Say that this build has no console, and how to get one."""
    if scope["method"] not in ("GET", "HEAD"):
        await asgi.send_empty(send, 405, ((b"allow", b"GET, HEAD"),))
        return
    body = render_page(
        "No console",
        render_heading("No console"),
        render_paragraph(NO_CONSOLE),
        render_paragraph(HOW_TO_GET_IT),
        render_paragraph("The gateway works. `comity status` shows it in a terminal.", "soft"),
    )
    await send_page(send, 404, body)


async def redirect_to_console(
    scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
) -> None:
    """Lead a browser that opens the gateway to the console. Other clients get a 404."""
    if not asgi.wants_page(scope):
        raise asgi.not_found_error()
    location = (b"location", CONSOLE_PATH.encode())
    await asgi.send_empty(send, 303, (location, (b"cache-control", b"no-store")))


async def _send_file(
    send: Send,
    file: ConsoleFile,
    headers: tuple[tuple[bytes, bytes], ...],
    request_headers: dict[bytes, bytes],
    *,
    has_body: bool,
) -> None:
    body, encoding = file.plain, ()
    if file.compressed is not None and b"gzip" in request_headers.get(b"accept-encoding", b""):
        body, encoding = file.compressed, ((b"content-encoding", b"gzip"),)
    listed = [
        (b"content-type", file.content_type),
        (b"content-length", b"%d" % len(body)),
        *encoding,
        *headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": listed})
    await send({"type": "http.response.body", "body": body if has_body else b""})


def _read_files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, ConsoleFile]]:
    for each in folder.iterdir():
        name = f"{prefix}{each.name}"
        if each.is_dir():
            yield from _read_files(each, f"{name}/")
        elif content_type := _TYPES.get(_suffix(each.name)):
            yield name, _load_file(each, content_type)


def _load_file(file: Traversable, content_type: bytes) -> ConsoleFile:
    plain = file.read_bytes()
    is_text = _suffix(file.name) in _COMPRESSED
    compressed = gzip.compress(plain, mtime=0) if is_text else None
    etag = f'"{hashlib.sha256(plain).hexdigest()[:32]}"'.encode()
    return ConsoleFile(content_type, plain, compressed, etag)


def _suffix(name: str) -> str:
    return f".{name.rpartition('.')[2]}"
