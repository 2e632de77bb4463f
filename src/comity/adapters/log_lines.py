"""Lines of the log: one for each record, for people or for programs, which no stranger can forge.

What servers and clients say stands in messages. Line breaks would begin lines of their own there,
escape sequences would move the cursor of whoever reads; so both are spelled out.
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

from comity.rules.secret_forms import without_clear_secrets, without_secrets

type LogFormat = Literal["text", "json"]
type Words = Callable[[str], str]

LONGEST_MESSAGE: Final = 8192
LONGEST_EXCEPTION: Final = 64 * 1024

# Controls of ASCII and Latin-1, line and paragraph ends, what turns the direction of writing, and
# halves of characters, which no stream can write.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONVERSION: Final = re.compile(r"%[^%]")
_ABOUT_A_SERVER: Final = "server %r"


class TextLines(logging.Formatter):
    """For people: what happened; a traceback stands below it, set off."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "is_announcement", False):
            return f"comity: {_message(record)}"
        lines = [f"comity: {record.levelname} {_message(record)}"]
        lines += [f"  | {_spelled_out(line)}" for line in _exception(record).splitlines()]
        return "\n".join(lines)


class JsonLines(logging.Formatter):
    """For programs: one object a line, in ASCII."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "server": _server(record),
            "trace_id": getattr(record, "trace_id", None),
            "exception": _exception(record),
        }
        return json.dumps({name: value for name, value in line.items() if value or name in _ALWAYS})


_ALWAYS: Final = frozenset({"time", "level", "logger", "message"})
_FORMATS: Final[dict[LogFormat, type[logging.Formatter]]] = {"text": TextLines, "json": JsonLines}


class _Lines(logging.StreamHandler[TextIO]):
    """The one way to standard error; a second `configure` takes the place of the first."""

    words: Words = staticmethod(without_secrets)
    """What leaves secrets out of what is said."""


def configure(form: LogFormat, level: str) -> None:
    """Send every record of this process, uvicorn's included, to standard error in this form.

    A level that is unknown here is another program's word for one: then warnings are told.
    """
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, _Lines)]:
        root.removeHandler(handler)
    lines = _Lines(sys.stderr)
    lines.setFormatter(_FORMATS[form]())
    root.addHandler(lines)
    root.setLevel(logging.getLevelNamesMapping().get(level.upper(), logging.WARNING))
    # It would tell of every value that is written to a file, three times a second.
    logging.getLogger("aiosqlite").setLevel(logging.INFO)
    logging.captureWarnings(True)
    if form == "json":
        sys.excepthook = _tell_of_a_crash
        threading.excepthook = _tell_of_a_threads_crash


def hide_with(words: Words) -> None:
    """Have every line pass this, which leaves out what this gateway knows to be a secret."""
    _Lines.words = staticmethod(words)


def hidden(text: str) -> str:
    """What a server or a client said, as it may be told to others."""
    return _Lines.words(text)


def announce(message: str, level: int = logging.INFO, *, is_own: bool = False) -> None:
    """Tell what whoever started the process has to know, at whatever level the log is.

    A message is `is_own` if it has only words of ours and names from a configuration in it.
    """
    record = logging.LogRecord("comity", level, "", 0, message, None, None)
    record.is_announcement = True
    record.is_own = is_own
    handlers = [each for each in logging.getLogger().handlers if isinstance(each, _Lines)]
    for handler in handlers:
        handler.handle(record)
    if not handlers:
        sys.stderr.write(TextLines().format(record) + "\n")
    sys.stderr.flush()


def _message(record: logging.LogRecord) -> str:
    try:
        said = record.getMessage()
    except (TypeError, ValueError):  # a bug in whoever logs must not hide what they saw
        said = f"{record.msg} {record.args!r}"
    cut = said if len(said) <= LONGEST_MESSAGE else said[:LONGEST_MESSAGE] + "…"
    is_own = getattr(record, "is_own", False)
    cut = without_clear_secrets(cut) if is_own else _Lines.words(cut)
    if getattr(record, "is_announcement", False):
        # These are our own words; a list of mistakes in a configuration has several lines.
        return "\n".join(map(_spelled_out, cut.split("\n")))
    return _spelled_out(cut)


def _exception(record: logging.LogRecord) -> str:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    said = (record.exc_text or "")[-LONGEST_EXCEPTION:]
    return _Lines.words(said) if said else said


def _server(record: logging.LogRecord) -> str | None:
    """Whom a message is about: what is said of servers is said as `server %r`, everywhere here."""
    before, found, _ = str(record.msg).partition(_ABOUT_A_SERVER)
    named = getattr(record, "server", None)
    if named is None and found and isinstance(record.args, tuple):
        place = len(_CONVERSION.findall(before.replace("%%", "")))
        named = record.args[place] if place < len(record.args) else None
    return None if named is None else str(named)


def _spelled_out(text: str) -> str:
    return _UNSAFE.sub(lambda found: repr(found[0])[1:-1], text)


def _tell_of_a_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger("comity").critical("ended in a bug", exc_info=(kind, error, trace))


def _tell_of_a_threads_crash(crash: threading.ExceptHookArgs) -> None:
    if crash.exc_value is not None:
        _tell_of_a_crash(crash.exc_type, crash.exc_value, crash.exc_traceback)
