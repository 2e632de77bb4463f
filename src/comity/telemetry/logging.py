"""The log of the process: text or JSON lines, without secrets.

`TroubleLog` writes one line when a lasting problem begins, and one when it ends.
"""

import json
import logging
import re
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal, TextIO, override

from comity.redaction.secrets import without_clear_secrets, without_secrets


class TroubleLog:
    """Logs the beginning and the end of a lasting problem once each.

    `begins` may hold placeholders for the cause.
    """

    def __init__(self, log: logging.Logger, begins: str, ends: str) -> None:
        self._log = log
        self._begins = begins
        self._ends = ends
        self._is_on = False

    def begin(self, *cause: object) -> None:
        if not self._is_on:
            self._is_on = True
            self._log.warning(self._begins, *cause)

    def end(self) -> None:
        if self._is_on:
            self._is_on = False
            self._log.warning(self._ends)


type LogFormat = Literal["text", "json"]
type Words = Callable[[str], str]

MAX_MESSAGE_LENGTH: Final = 8192
MAX_EXCEPTION_LENGTH: Final = 64 * 1024

# Control characters, line and paragraph separators, characters that change the writing direction,
# and surrogates, which no stream can write.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONVERSION: Final = re.compile(r"%[^%]")
_ABOUT_A_SERVER: Final = "server %r"


class _NodeLines(logging.Formatter):
    """Formats records of one node; the name is empty where the process is the only one."""

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node


class TextLines(_NodeLines):
    """Formats records for people; a traceback follows the message, indented.

    Announcements of a start have no time, because they are output of the command.
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        program = f"comity {self._node}" if self._node else "comity"
        if getattr(record, "is_announcement", False):
            return f"{program}: {_message(record)}"
        lines = [f"{_time(record)} {program}: {record.levelname} {_message(record)}"]
        lines += [f"  | {_escape_unsafe(line)}" for line in _exception(record).splitlines()]
        return "\n".join(lines)


class JsonLines(_NodeLines):
    """Formats records for programs: one JSON object a line, in ASCII."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "node": self._node,
            "server": _server(record),
            "trace_id": getattr(record, "trace_id", None),
            **_fields(record),
            "exception": _exception(record),
        }
        return json.dumps({name: value for name, value in line.items() if value or name in _ALWAYS})


_ALWAYS: Final = frozenset({"time", "level", "logger", "message"})
_FORMATS: Final[dict[LogFormat, type[_NodeLines]]] = {"text": TextLines, "json": JsonLines}


class _StderrHandler(logging.StreamHandler[TextIO]):
    """The handler for standard error; `configure_logging` replaces an earlier one."""

    words: Words = staticmethod(without_secrets)
    """Removes secrets from a text."""


def configure_logging(form: LogFormat, level: str, node: str = "") -> None:
    """Send every record of this process, those of libraries included, to standard error.

    Each line carries the name of the node, if there is one. An unknown level, such as another
    program's word, counts as WARNING.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _StderrHandler)]:
        root.removeHandler(handler)
    lines = _StderrHandler(sys.stderr)
    lines.setFormatter(_FORMATS[form](node))
    root.addHandler(lines)
    root.setLevel(logging.getLevelNamesMapping().get(level.upper(), logging.WARNING))
    # At DEBUG, aiosqlite would log every value that is written to a file, three times a second.
    logging.getLogger("aiosqlite").setLevel(logging.INFO)
    logging.captureWarnings(True)
    if form == "json":
        sys.excepthook = _tell_of_a_crash
        threading.excepthook = _tell_of_a_threads_crash


def set_line_redactor(words: Words) -> None:
    """Pass every line through `words`, which removes the known secrets of this gateway."""
    _StderrHandler.words = staticmethod(words)


def redact_text(text: str) -> str:
    """Return a text of a server or client without secrets."""
    return _StderrHandler.words(text)


def log_announcement(message: str, level: int = logging.INFO, *, is_own: bool = False) -> None:
    """Log a message for the operator who started the process, whatever the log level is.

    A message is `is_own` if it holds only Comity's own words and names from the configuration.
    """
    record = logging.LogRecord("comity", level, "", 0, message, None, None)
    record.is_announcement = True
    record.is_own = is_own
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, _StderrHandler)]
    for handler in handlers:
        handler.handle(record)
    if not handlers:
        sys.stderr.write(TextLines().format(record) + "\n")
    sys.stderr.flush()


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return when.replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the members that a record has beside its message, without secrets."""
    given: dict[str, object] = getattr(record, "fields", {})
    words = _StderrHandler.words
    return {
        name: words(value) if isinstance(value, str) else value for name, value in given.items()
    }


def _message(record: logging.LogRecord) -> str:
    try:
        said = record.getMessage()
    except (TypeError, ValueError):  # a wrong format string must not hide the event
        said = f"{record.msg} {record.args!r}"
    cut = said if len(said) <= MAX_MESSAGE_LENGTH else said[:MAX_MESSAGE_LENGTH] + "…"
    is_own = getattr(record, "is_own", False)
    cut = without_clear_secrets(cut) if is_own else _StderrHandler.words(cut)
    if getattr(record, "is_announcement", False):
        # Announcements are Comity's own text; a list of configuration errors has several lines.
        return "\n".join(map(_escape_unsafe, cut.split("\n")))
    return _escape_unsafe(cut)


def _exception(record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    said = (record.exc_text or "")[-MAX_EXCEPTION_LENGTH:]
    return _StderrHandler.words(said) if said else said


def _server(record: logging.LogRecord) -> str | None:
    """Return the server that a message is about.

    Every message about a server uses the form `server %r`.
    """
    before, found, _ = str(record.msg).partition(_ABOUT_A_SERVER)
    named = getattr(record, "server", None)
    if named is None and found and isinstance(record.args, tuple):
        place = len(_CONVERSION.findall(before.replace("%%", "")))
        named = record.args[place] if place < len(record.args) else None
    return None if named is None else str(named)


def _escape_unsafe(text: str) -> str:
    return _UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


def _tell_of_a_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger("comity").critical("ended in a bug", exc_info=(kind, error, trace))


def _tell_of_a_threads_crash(crash: threading.ExceptHookArgs) -> None:
    if crash.exc_value is not None:
        _tell_of_a_crash(crash.exc_type, crash.exc_value, crash.exc_traceback)
