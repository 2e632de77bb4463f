"""Hints that name the permission which a confined server lacks.

The operating system refuses a file without saying why, and a server reports it in its own words.
The hints read those words, so they are a guess, and they grant nothing.
"""

import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, cast

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.servers.sandbox.model import EXECUTE, READ_FILES, WRITE_FILES, SandboxAccess
from comity.servers.sandbox.programs import SYSTEM_PROGRAMS
from comity.servers.sandbox.reach import is_below, is_within

TOOL_ERROR: Final = b'"isError":true'
SPACED_TOOL_ERROR: Final = b'"isError": true'
"""How servers write that a tool failed. Responses without it are not decoded."""

_MAX_MESSAGE_BYTES: Final = 64 * 1024
_MAX_PLACE_LENGTH: Final = 300
_MAX_NAME: Final = 100
# A server chooses the words, and the gateway reads them between two calls.
_MAX_TEXT_LENGTH: Final = 4096
_MAX_PATHS: Final = 50
# The root, a folder and a file.
_MIN_FOLDER_PARTS: Final = 3
_REFUSED: Final = re.compile(
    r"ENOENT|EACCES|EPERM|EROFS|no such file|permission denied|not permitted|read-only file"
    r"|cannot access|unable to open|access denied"
    # MCP's Python SDK says no more of an exception.
    r"|^Error executing tool \S+$",
    re.IGNORECASE,
)
# How shells, Python, Node, Go and GitPython say that a program is not there.
_NO_PROGRAM: Final = re.compile(
    r"\bspawn ([\w.+/-]+) ENOENT|No such file or directory: ['\"]([\w.+/-]+)['\"]"
    r"|\b([\w.+/-]+): (?:command )?not found|exec: \"?([\w.+/-]+)\"?: "
    r"|\b(?:Bad|The) ([\w.+-]+) executable\b"
)
_READ_ONLY: Final = re.compile(r"EROFS|read-only file", re.IGNORECASE)
_PATH: Final = re.compile(r"(?<![\w/.])/[\w.@+~-][\w.@+~/-]*")


class RefusalHints:
    """The hints for one confined server."""

    def __init__(
        self, server: str, access: SandboxAccess, words: Iterable[str], search_path: str
    ) -> None:
        self._server = server
        self._access = access
        self._search_path = search_path
        # The places that the command line and the environment name.
        self._named = [word for word in words if _PATH.fullmatch(word)]
        self._connection_refusal = ""

    def note_connection_refusal(self, reason: str) -> None:
        """Keep the words of the network proxy for the next hint."""
        self._connection_refusal = reason

    @property
    def connection_refusal(self) -> str:
        """The last refusal of the network proxy that no hint has named yet."""
        return self._connection_refusal

    def explain_end(self, text: str) -> str:
        """Return what an end of the server may have to do with its sandbox."""
        return self.explain(text) or (
            f"it runs in a sandbox, which may be the reason: `comity servers learn {self._server}` "
            "finds the permissions that it needs"
        )

    def explain(self, text: str) -> str:
        """Return which permission is missing by the words of a server; empty if none is known."""
        if self._connection_refusal:
            reason, self._connection_refusal = self._connection_refusal, ""
            return reason
        program = self._missing_program(text[-_MAX_TEXT_LENGTH:])
        if program:
            return self._program_advice(program)
        # Other lines of a traceback name the files of the program.
        text = "\n".join(line for line in text.splitlines() if _REFUSED.search(line))
        text = text[:_MAX_TEXT_LENGTH]
        if not text:
            return ""
        place = next(self._refused_places(text), "")
        if not place:
            return (
                f"Server {self._server!r} is confined and may lack a permission. "
                f"`comity servers learn {self._server}` finds those that it needs."
            )
        if is_below(place, self._access.readable) or _READ_ONLY.search(text):
            return self._advice(WRITE_FILES, WRITE_FILES, place)
        # Nothing tells whether it wanted to write.
        either = f"{READ_FILES}, or {WRITE_FILES} if it changes files,"
        changing = f"{self._command(WRITE_FILES, place)} (to change files), or "
        return self._advice(either, READ_FILES, place, changing)

    def explain_response(self, line: bytes) -> bytes:
        """Return the response of a tool that failed, with a hint if one is known."""
        if len(line) > _MAX_MESSAGE_BYTES:
            return line
        try:
            message = jsonrpc.decode_value(line)
        except MalformedMessage:
            return line
        content = _error_content(message)
        hint = self.explain("\n".join(_texts_in(content)))
        if not hint:
            return line
        content.append({"type": "text", "text": hint})
        return jsonrpc.to_json(message)

    def _refused_places(self, text: str) -> Iterator[str]:
        for found in islice(_PATH.finditer(text), _MAX_PATHS):
            path = found[0]
            # The operator's own words name a folder better than the file in it that was refused, or
            # than the folder around it that could not be made.
            near = (each for each in self._named if is_within(path, each) or is_within(each, path))
            place = next(near, path)
            if len(place) <= _MAX_PLACE_LENGTH and not is_below(path, self._access.writable):
                yield place
        granted = (*self._access.readable, *self._access.writable)
        yield from (each for each in self._named if not is_below(each, granted))

    def _missing_program(self, text: str) -> str:
        """Return a program of this machine that the server does not see; empty if there is none."""
        if self._access.may_execute:
            return ""
        for match in islice(_NO_PROGRAM.finditer(text), _MAX_PATHS):
            name = next(each for each in match.groups() if each is not None)
            path = shutil.which(name, path=self._search_path) if len(name) < _MAX_NAME else None
            if path is not None and Path(path).is_absolute():
                real = str(Path(path).parent.resolve() / Path(path).name)
                if is_below(real, SYSTEM_PROGRAMS) and real not in self._access.programs:
                    return real
        return ""

    def _program_advice(self, program: str) -> str:
        return (
            f"Server {self._server!r} is confined and may lack the permission {EXECUTE} for "
            f"{program}. A person can approve it with: {self._command(EXECUTE, program)}"
        )

    def _advice(self, missing: str, permission: str, place: str, others: str = "") -> str:
        return (
            f"Server {self._server!r} is confined and may lack the permission {missing} for "
            f"{place}. A person can approve it with: {others}{self._command(permission, place)}"
        )

    def _command(self, permission: str, place: str) -> str:
        words = ("comity", "servers", "permissions", "approve", self._server, permission)
        reach = place if permission == EXECUTE else _folder_of(place)
        return shlex.join((*words, "--reach", reach))


def _folder_of(place: str) -> str:
    """Return the folder of a path that looks like a file, unless others have files there too."""
    path = PurePosixPath(place)
    is_shared = len(path.parts) < _MIN_FOLDER_PARTS or Path.home().is_relative_to(path.parent)
    return place if not path.suffix or is_shared else str(path.parent)


def _error_content(message: object) -> list[object]:
    """Return the content of a tool's error result, as it is in the message."""
    found = message
    for member in ("result", "content"):
        found = cast(dict[str, object], found).get(member) if isinstance(found, dict) else None
    return cast(list[object], found) if isinstance(found, list) else []


def _texts_in(content: Iterable[object]) -> Iterable[str]:
    for each in content:
        match each:
            case {"type": "text", "text": str(text)}:
                yield text
            case _:
                pass
