"""The operator API of a running gateway.

Commands find the gateway of this folder by the record that it leaves in the state folder.
"""

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

from comity.cli.exit_status import NOT_FOUND, NOT_PERMITTED, USAGE_ERROR
from comity.config.files import STATE_VARIABLE, prepare_state_folder, state_folder
from comity.config.secret_files import read_secret, write_secret
from comity.errors import Misconfigured, Unavailable
from comity.http.client.sync_client import (
    SYNC_ERRORS,
    SyncConnection,
    connect_sync,
    is_no_http,
    request_sync,
)
from comity.toolkit.text import object_members

FOLDER: Final = "gateways"
_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (nothing is bound here)
_LOCALHOST: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class GatewayRecord:
    """One running gateway: `config` is the absolute path of the first file that it has read.

    `token` makes its holder an operator of that gateway. It is empty unless the gateway runs in
    local mode. `started` tells the process from a later one with the same pid.
    """

    url: str
    pid: int
    started: str
    config: str
    token: str = field(default="", repr=False)


def new_token() -> str:
    """A random token."""
    return secrets.token_urlsafe(32)


def prepare_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of the records, made if need be; raises Misconfigured where that fails."""
    return prepare_state_folder(FOLDER, environ=environ)


def write_record(
    url: str, config: Path, token: str = "", environ: Mapping[str, str] = os.environ
) -> Path:
    """Tell other processes of this user that this process serves `config` at `url`."""
    parts, pid = urlsplit(url), os.getpid()
    reached = url_of(parts.hostname or "", parts.port or 0, parts.scheme)
    record = GatewayRecord(reached, pid, _start_time(pid), str(config.absolute()), token)
    file = prepare_folder(environ) / f"{parts.port}.json"
    try:
        write_secret(file, json.dumps(asdict(record)).encode())
    except OSError as problem:
        raise Misconfigured(f"{file} cannot be written: {problem.strerror}") from None
    return file


def record_file(record: GatewayRecord, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the record of a running gateway is."""
    return state_folder(environ) / FOLDER / f"{urlsplit(record.url).port}.json"


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Where a gateway that listens there is reached from its own machine."""
    host = _ANY_ADDRESS.get(host, host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def remove_record(file: Path) -> None:
    """Remove the record of this process; one that another process has written since stays."""
    record = _read(file)
    if record is not None and record.pid == os.getpid():
        with suppress(OSError):
            file.unlink()


def find_gateway(config: Path, environ: Mapping[str, str] = os.environ) -> GatewayRecord | None:
    """The running gateway of this configuration file; of several, the one that started last."""
    wanted = config.resolve()
    found = [each for each in _running(environ) if Path(each.config).resolve() == wanted]
    return found[-1] if found else None


def find_gateway_by_url(url: str, environ: Mapping[str, str] = os.environ) -> GatewayRecord | None:
    """The running gateway at this address. Ask it at the `url` of its record.

    Another name of this machine, as localhost, may lead to the port of another user's program.
    """
    wanted = _place(url)
    found = [each for each in _running(environ) if wanted and _place(each.url) == wanted]
    return found[-1] if found else None


def _place(url: str) -> tuple[str, str, int | None] | None:
    """An address, alike for all names of the loopback interface."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    host = _ANY_ADDRESS.get(host, host)
    return parts.scheme, "localhost" if host in _LOCALHOST else host, port


def _running(environ: Mapping[str, str]) -> Iterator[GatewayRecord]:
    """Every gateway that runs, in the order of their starts; what others left behind is removed."""
    for file in _files(environ):
        record = _read(file)
        if record is None:
            continue
        if _is_alive(record):
            yield record
        else:
            with suppress(OSError):
                file.unlink()


def _files(environ: Mapping[str, str]) -> list[Path]:
    try:
        files = [*(state_folder(environ) / FOLDER).glob("[0-9]*.json")]
        return sorted(files, key=lambda file: file.stat().st_mtime_ns)
    except (OSError, Misconfigured):
        return []


def _read(file: Path) -> GatewayRecord | None:
    """A record, if it is this user's alone and whole."""
    try:
        said: object = json.loads(read_secret(file, "record", must_be_own=True))
    except (Misconfigured, ValueError, RecursionError):
        return None
    return _record_of(cast("dict[str, Any]", said)) if isinstance(said, dict) else None


def _record_of(said: Mapping[str, Any]) -> GatewayRecord | None:
    values = {each.name: said.get(each.name) for each in fields(GatewayRecord)}
    pid = values.pop("pid")
    if not isinstance(pid, int) or not all(isinstance(each, str) for each in values.values()):
        return None
    return GatewayRecord(pid=pid, **cast("dict[str, str]", values))


def _is_alive(record: GatewayRecord) -> bool:
    try:
        os.kill(record.pid, 0)
    except (OSError, OverflowError):
        # Also where the pid is another user's process now: the gateway was this user's.
        return False
    return record.pid > 0 and _start_time(record.pid) == record.started


def _start_time(pid: int) -> str:
    """When a process began, in the system's own units; empty where the system does not tell.

    A process that has ended, and whose parent has not taken notice yet, has no start time.
    """
    try:
        said = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The name of the program stands in brackets, and may hold anything.
    state, *following = said.rpartition(")")[2].split()
    return "" if state == "Z" else following[18]


type Answer = dict[str, Any]

API_TIMEOUT: Final = timedelta(seconds=30)
ANSWER_BYTES: Final = 64 * 1024 * 1024
KEY_VARIABLE: Final = "COMITY_KEY"
_LOCAL_MODE: Final = "the operator token of this"
"""A phrase in the refusal of a gateway in local mode to a client without a token."""


def read_key(file: Path) -> str:
    """The key in a file; raises Misconfigured where there is none."""
    try:
        key = read_secret(file, "--key-file", may_be_shared=True).decode("ascii")
    except ValueError:
        raise Misconfigured(f"{file} cannot be read: it holds more than a key") from None
    if not key or any(letter.isspace() for letter in key):
        raise Misconfigured(f"{file} holds no key; write the key into it, and nothing else")
    return key


class ApiClient:
    """One gateway at its address; every question is a connection of its own.

    Without a key it takes the one in the environment.
    """

    def __init__(
        self,
        url: str,
        timeout: timedelta = API_TIMEOUT,
        token: str = "",
        key: str | None = None,
    ) -> None:
        self.url = _origin(url)
        self._timeout = timeout
        self._key = os.environ.get(KEY_VARIABLE, "").strip() if key is None else key
        self._token = token
        if not self._key and not token:
            self._take_token()
        # Whether it has answered, and only wants to know who asks.
        self.needs_key = False

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
        return self._request("GET", _path(place) + asked)

    def post(self, *place: str, body: Mapping[str, object] | None = None) -> Answer:
        return self._request("POST", _path(place), json.dumps(body or {}).encode())

    def promote(self, party: str, body: Mapping[str, object]) -> Answer:
        """Change the topic capabilities of a principal, at the path that MCPx defines."""
        path = f"/admin/participants/{quote(party, safe='')}/capabilities"
        return self._request("POST", path, json.dumps(body).encode())

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

    def connect(self, timeout: timedelta) -> SyncConnection:
        """A connection to the gateway."""
        return connect_sync(self.url, timeout)

    def _request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        headers = {"Content-Type": "application/json", **self.credentials}
        connection = self.connect(self._timeout)
        try:
            status, data = request_sync(connection, method, path, headers, body, ANSWER_BYTES + 1)
        except SYNC_ERRORS as problem:
            raise self.unreachable(problem) from None
        return self._understood(status, data)

    def unreachable(self, problem: Exception) -> Unavailable:
        if is_no_http(problem):
            # What it said instead is not told: it may be anything.
            return Unavailable(
                f"{self.url} does not answer as an HTTP server, so it is no Comity gateway; name "
                "yours with --url or --context"
            )
        return Unavailable(
            f"no gateway answers at {self.url} ({_describe_problem(problem)}); start one with "
            "`comity serve`, or name another one with --url or --context"
        )

    def key_needed_error(self, text: str) -> Misconfigured:
        self.needs_key = True
        if self._key:
            said = f"{self.url} does not accept this key: {text}"
        elif _LOCAL_MODE in text:
            said = (
                f"{self.url} needs its operator token, and {state_folder()} has none for it; run "
                f"this as the user who started the gateway, with the same {STATE_VARIABLE}"
            )
        else:
            said = (
                f"{self.url} requires authentication; put a key into {KEY_VARIABLE}, or name its "
                "file with --key-file"
            )
        return Misconfigured(said, NOT_PERMITTED)

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
            raise self.key_needed_error(said)
        if status < 500:
            raise Misconfigured(said, exit_status_of(status))
        milliseconds = object_members(cast("Answer", error).get("data")).get("retry_after_ms")
        retry_after = None
        if isinstance(milliseconds, int):
            retry_after = timedelta(milliseconds=milliseconds)
        raise Unavailable(f"{self.url}: {said}", retry_after=retry_after)

    def _stranger(self, status: int) -> Unavailable:
        return Unavailable(
            f"the server at {self.url} is no Comity gateway (status {status}); "
            "name the gateway with --url or --context"
        )


def exit_status_of(http_status: int) -> int:
    """Return the exit status of a command whose request was refused with this status."""
    return {401: NOT_PERMITTED, 403: NOT_PERMITTED, 404: NOT_FOUND}.get(http_status, USAGE_ERROR)


def _path(place: tuple[str, ...]) -> str:
    return "/api/" + "/".join(quote(part, safe="") for part in place)


def _origin(url: str) -> str:
    """The origin of a gateway's URL, without the path, such as /mcp."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except ValueError:
        pass
    raise Misconfigured(
        f"{url!r:.200} is no address of a gateway; write it as http://127.0.0.1:2664"
    )


def _describe_problem(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return "it stays silent"
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.lower()
    if isinstance(problem, SYNC_ERRORS):
        return "it ended the connection before its answer was whole"
    return str(problem) or type(problem).__name__
