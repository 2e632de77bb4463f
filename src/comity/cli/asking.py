"""A running gateway, asked over its operator API as any other program would ask it."""

import http.client
import json
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

import click

from comity.adapters.state_folder import STATE_VARIABLE, state_folder
from comity.cli.gateway_records import find_gateway_by_url
from comity.wire.errors import Misconfigured, Unavailable

type Answer = dict[str, Any]

PATIENCE: Final = timedelta(seconds=30)
ANSWER_BYTES: Final = 64 * 1024 * 1024
KEY: Final = "comity.key"
"""Where a command's context holds the key that it shows."""

_LOCAL_MODE: Final = "the operator token of this"
"""What a gateway in local mode speaks of to those who show none."""

_KEY_BYTES: Final = 16 * 1024


def read_key(file: Path) -> str:
    """The key in a file; raises Misconfigured where there is none."""
    try:
        with file.open(encoding="ascii") as opened:
            key = opened.read(_KEY_BYTES).strip()
    except (OSError, ValueError) as problem:
        because = getattr(problem, "strerror", None) or "it holds more than a key"
        raise Misconfigured(f"the key in {file} cannot be read: {because}") from None
    if not key or any(letter.isspace() for letter in key):
        raise Misconfigured(f"{file} holds no key; write the key into it, and nothing else")
    return key


def shown_key() -> str:
    """The key that this command shows, by its option or the environment; empty for none."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(KEY)
    return str(found or os.environ.get("COMITY_KEY", "")).strip()


class Gateway:
    """One gateway at its address; every question is a connection of its own."""

    def __init__(self, url: str, patience: timedelta = PATIENCE, token: str = "") -> None:
        self.url = _origin(url)
        self._patience = patience
        self._key = shown_key()
        self._token = token
        if not self._key and not token:
            self._take_token()
        # Whether it has answered, and only wants to know who asks.
        self.wants_a_key = False

    @property
    def credentials(self) -> dict[str, str]:
        """The header by which this command says who it is."""
        return {"Authorization": f"Bearer {self.credential}"} if self.credential else {}

    @property
    def credential(self) -> str:
        """The key that this command shows, or the operator token; empty for neither."""
        return self._key or self._token

    def _take_token(self) -> None:
        """Show the operator token that a gateway in local mode has left for its own user."""
        record = find_gateway_by_url(self.url)
        if record is not None and record.token:
            self.url, self._token = record.url, record.token

    def get(self, *place: str, **query: str) -> Answer:
        asked = "?" + urlencode(query) if query else ""
        return self._ask("GET", _path(place) + asked)

    def post(self, *place: str, body: Mapping[str, object] | None = None) -> Answer:
        return self._ask("POST", _path(place), json.dumps(body or {}).encode())

    def promote(self, party: str, body: Mapping[str, object]) -> Answer:
        """What somebody may send into topics, changed; it stands where MCPx's document has it."""
        path = f"/admin/participants/{quote(party, safe='')}/capabilities"
        return self._ask("POST", path, json.dumps(body).encode())

    def status(self) -> Answer:
        return self.get("status")

    def tools(self, **query: str) -> Iterator[Answer]:
        """Every tool that fits, page after page."""
        while True:
            page = self.get("tools", **query)
            yield from page["tools"]
            if "next" not in page:
                return
            query["cursor"] = page["next"]

    def connect(self, patience: timedelta) -> http.client.HTTPConnection:
        """A connection to it. Variables for proxies are not heeded: it stands close by."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=patience.total_seconds())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        connection = self.connect(self._patience)
        headers = {"Content-Type": "application/json", **self.credentials}
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            data = reply.read(ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as problem:
            raise self.unreachable(problem) from None
        finally:
            connection.close()
        return self._understood(reply.status, data)

    def unreachable(self, problem: Exception) -> Unavailable:
        if _is_another_service(problem):
            # What it said instead is not told: it may be anything.
            return Unavailable(
                f"{self.url} does not answer as an HTTP server, so it is no Comity gateway; say "
                "where yours is with --url or COMITY_URL"
            )
        return Unavailable(
            f"no gateway answers at {self.url} ({_in_words(problem)}); start one with "
            "`comity serve`, or say where it is with --url or COMITY_URL"
        )

    def key_needed(self, said: str) -> Misconfigured:
        self.wants_a_key = True
        if self._key:
            return Misconfigured(f"{self.url} does not take this key: {said}")
        if _LOCAL_MODE in said:
            return Misconfigured(
                f"{self.url} needs its operator token, and {state_folder()} has none for it; run "
                f"this as the user who started it, and with the same {STATE_VARIABLE}"
            )
        return Misconfigured(
            f"{self.url} wants to know who asks; put a key into COMITY_KEY, or name its file with "
            "--key-file"
        )

    def _understood(self, status: int, data: bytes) -> Answer:
        try:
            answer: object = json.loads(data)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or len(data) > ANSWER_BYTES:
            raise self._stranger(status)
        found = cast("Answer", answer)
        if status == 200:
            return found
        error = found.get("error")
        if not isinstance(error, dict):
            raise self._stranger(status)
        said = str(cast("Answer", error).get("message", "no reason was given"))
        if status == 401:
            raise self.key_needed(said)
        if status < 500:
            raise Misconfigured(said)
        raise Unavailable(f"{self.url}: {said}")

    def _stranger(self, status: int) -> Unavailable:
        return Unavailable(
            f"what answers at {self.url} (status {status}) is no gateway of this kind; "
            "say where yours is with --url or COMITY_URL"
        )


def members(anything: object) -> Answer:
    """The members of an object, where a stranger's text may hold anything else."""
    return cast("Answer", anything) if isinstance(anything, dict) else {}


def _path(place: tuple[str, ...]) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in place)


def _origin(url: str) -> str:
    """The gateway's origin, also where somebody gave the address that clients use."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except ValueError:
        pass
    raise Misconfigured(
        f"{url!r:.200} is no address of a gateway; write it as http://127.0.0.1:2664"
    )


def _is_another_service(problem: Exception) -> bool:
    """Whether somebody answered, and not in HTTP. One that only left may be a gateway."""
    is_left = isinstance(problem, http.client.RemoteDisconnected | http.client.IncompleteRead)
    return isinstance(problem, http.client.HTTPException) and not is_left


def _in_words(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return "it stays silent"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    if isinstance(problem, http.client.HTTPException | OSError):
        return "it ended the connection before its answer was whole"
    return str(problem) or type(problem).__name__
