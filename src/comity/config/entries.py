"""One server's entry, as any client's file has it, read into its settings."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from comity.config.settings import NOTHING, ServerSettings, Supervision, Transport
from comity.config.tables import MGP_SETTINGS, SERVER_SETTINGS, SUPERVISION
from comity.rules.documents import Mistakes, Written, nearest
from comity.rules.variables import expand
from comity.wire.errors import Misconfigured

# Every spelling that the clients' own files use.
TRANSPORTS: Final[Mapping[str, Transport]] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
URL_KEYS: Final = ("url", "serverUrl", "httpUrl")
SERVER_KEYS: Final = frozenset(
    {"id", "command", "args", "env", "cwd", "url", "headers", "transport", "type", "mgp"}
    | {setting.name for setting in SERVER_SETTINGS}
)
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ID_RULE: Final = (
    "must be 1 to 64 of the characters A-Z a-z 0-9 _ . - that begin with a letter or digit, "
    "do not end with _ and hold no __, which separates a server from its tool"
)


@dataclass(frozen=True, slots=True)
class EntryReader:
    """Reads entries with these variables, and notes what is wrong with them."""

    environ: Mapping[str, str]
    mistakes: Mistakes

    def server(self, server_id: str, label: str, entry: Written) -> ServerSettings | None:
        table = self.mistakes.read(entry.table, None)
        if table is None:
            return None
        # Clients write "args": null and the like; nothing is the same as absent.
        given = {key: value for key, value in table.items() if value.value is not None}
        transport: Transport = self.mistakes.read(lambda: _transport(entry, given), "stdio")
        url = next((given[key] for key in URL_KEYS if key in given), None)
        is_program = transport == "stdio"
        return ServerSettings(
            server_id,
            label,
            transport,
            command=self._of(given.get("command"), self._command, "") if is_program else "",
            args=self._of(given.get("args"), self._args, ()),
            env=self._of(given.get("env"), self._named, NOTHING),
            cwd=self._of(given.get("cwd"), self._text, "") or None,
            url="" if is_program else self._of(url, self._url, ""),
            headers=self._of(given.get("headers"), self._named, NOTHING),
            **self._placed(entry, is_program, self._decided(given)),
        )

    def _placed(self, entry: Written, is_program: bool, decided: dict[str, Any]) -> dict[str, Any]:
        """Who runs elsewhere, and serves many, runs once already."""
        if decided.get("placement") == "one" and not is_program:
            self.mistakes.note(
                entry.wrong('placement = "one" is for servers with a command; leave it out here')
            )
        return decided

    def _of[T](self, written: Written | None, read: Callable[[Written], T], otherwise: T) -> T:
        if written is None:
            return otherwise
        return self.mistakes.read(lambda: read(written), otherwise)

    def _decided(self, given: Mapping[str, Written]) -> dict[str, Any]:
        """What is decided beside how the server is reached: by our own keys, and by MGP's table."""
        decided: dict[str, Any] = {}
        for setting in SERVER_SETTINGS:
            if setting.name in given:
                decided[setting.name] = self._of(given[setting.name], setting.kind.read, None)
        mgp = self._of(given.get("mgp"), Written.table, {})
        for key, written in mgp.items():
            if key not in MGP_SETTINGS:
                continue
            name, kind = MGP_SETTINGS[key]
            if name in decided:
                said_twice = written.wrong(f"stands outside of this table too, as {name}; keep one")
                self.mistakes.note(said_twice)
            decided[name] = self._of(written, kind.read, None)
        care = {name: decided.pop(name) for name in SUPERVISION & decided.keys()}
        verbatim = MappingProxyType({name: each.value for name, each in mgp.items()})
        return {**decided, "supervision": Supervision(**care), "mgp": verbatim}

    def _args(self, written: Written) -> tuple[str, ...]:
        return tuple(self._of(each, self._text, "") for each in written.items())

    def _named(self, written: Written) -> Mapping[str, str]:
        table = written.table()
        return MappingProxyType(
            {name: self._of(each, self._text, "") for name, each in table.items()}
        )

    def _command(self, written: Written) -> str:
        command = self._text(written)
        if not command.strip():
            raise written.wrong("is empty; name the program to start")
        return command

    def _url(self, written: Written) -> str:
        url = self._text(written)
        try:
            usable = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
        except ValueError:
            usable = False
        if not usable:
            raise written.wrong("must be a whole URL, as https://example.org/mcp")
        return url

    def _text(self, written: Written) -> str:
        # A number where a text belongs ("PORT": 3000) is meant as it stands.
        text = str(written.value) if type(written.value) is int else written.text()
        try:
            return expand(text, self.environ)
        except Misconfigured as problem:
            raise written.wrong(str(problem)) from None


def _transport(entry: Written, given: Mapping[str, Written]) -> Transport:
    """As said, or as follows from what there is; and then what it needs must be there."""
    has_command = "command" in given
    has_url = any(key in given for key in URL_KEYS)
    said = given.get("transport") or given.get("type")
    if said:
        transport = TRANSPORTS[said.one_of(TRANSPORTS)]
    elif has_command and has_url:
        raise entry.wrong("has a command and a url; keep one, or say which by transport")
    else:
        transport = "http" if has_url else "stdio"
    if not (has_command if transport == "stdio" else has_url):
        raise _misspelt(given) or entry.wrong(
            "needs a command to start, or a url to call"
            if transport == "stdio"
            else f"needs a url, as its transport is {transport}"
        )
    return transport


def _misspelt(given: Mapping[str, Written]) -> Misconfigured | None:
    """The key by which a command or a url was probably meant."""
    for key, written in given.items():
        near = nearest(key, SERVER_KEYS)
        if key not in SERVER_KEYS and near in ("command", "url"):
            return written.unknown_among(SERVER_KEYS)
    return None


def is_id(text: str) -> bool:
    return bool(_ID.fullmatch(text)) and "__" not in text and not text.endswith("_")


def derived_id(label: str) -> str:
    """An id for a name of `mcpServers`, which may be any text."""
    if is_id(label):
        return label
    plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_.-]+", "-", label))
    derived = plain.lstrip("_.-")[:64].rstrip("_.-")
    return derived or "server-" + hashlib.sha256(label.encode(errors="replace")).hexdigest()[:8]
