"""Lines of the log, for people and for programs, and what strangers try to write into them."""

import json
import logging
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.redaction.secrets import without_secrets
from comity.telemetry.logging import JsonLines, TextLines, redact_text, set_line_redactor
from tests.support.cases import loop_over

pytestmark = pytest.mark.integration

HOSTILE = "x\ncomity: ERROR forged\r\x1b[2J\x9b31m\u2028\u202egnirts\ud800\x00"


def record(message: str, *args: object, error: Exception | None = None, **extra: object) -> Any:
    about = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("comity.kernel.x", logging.WARNING, "", 0, message, args, about)
    vars(made).update(extra)
    return made


def raised(message: str) -> Exception:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # whatever it says
        raise ValueError(message)
    return caught.value


def as_json(made: Any) -> dict[str, Any]:
    line = JsonLines().format(made)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    return json.loads(line)


def test_a_line_for_people_is_short() -> None:
    made = record("server %r: %s", "files", "gone")
    made.created = 1_763_408_416.729
    assert TextLines().format(made) == (
        "2025-11-17T19:40:16.729Z comity: WARNING server 'files': gone"
    )


def test_an_announcement_is_output_of_the_command_and_has_no_time() -> None:
    assert TextLines().format(record("listening", is_announcement=True)) == "comity: listening"


def test_a_line_for_programs_says_when_where_and_what() -> None:
    told = as_json(record("server %r: %s", "files", "gone", trace_id="ab" * 16))
    when = datetime.fromisoformat(told.pop("time"))
    assert when.utcoffset() is not None
    assert told == {
        "level": "WARNING",
        "logger": "comity.kernel.x",
        "message": "server 'files': gone",
        "server": "files",
        "trace_id": "ab" * 16,
    }


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert as_json(record("plain", trace_id=None)).keys() == {"time", "level", "logger", "message"}


@loop_over(
    ("message", "args", "server"),
    [
        ("server %r: and %d more", ("a", 3), "a"),
        ("%d%% of server %r", (3, "b"), "b"),
        ("Supervision of server %r failed", ("c",), "c"),
        ("a server %s", ("d",), None),
        ("server %r: %s", (), None),
    ],
)
def test_whom_a_message_is_about_is_read_from_its_wording(
    message: str, args: tuple[object, ...], server: str | None
) -> None:
    assert as_json(record(message, *args)).get("server") == server


def test_a_server_that_is_named_beside_the_message_counts() -> None:
    assert as_json(record("plain", server="files"))["server"] == "files"


def test_no_stranger_begins_a_line_or_moves_the_cursor() -> None:
    text = TextLines().format(record("server %r says: %s", "a", HOSTILE))
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert r"x\ncomity: ERROR forged\r\x1b[2J\x9b31m\u2028\u202egnirts\ud800\x00" in text
    assert as_json(record("%s", HOSTILE))["message"] in text


@given(st.text(st.characters(exclude_categories=())))
def test_whatever_is_said_stays_on_its_line(said: str) -> None:
    assert len(TextLines().format(record("%s", said)).splitlines()) == 1
    as_json(record("%s", said))


def test_a_traceback_is_set_off_for_people_and_one_string_for_programs() -> None:
    made = record("failed", error=raised("one\ncomity: ERROR forged\x1b[2J"))
    first, *rest = TextLines().format(made).splitlines()
    assert first.endswith("Z comity: WARNING failed")
    assert all(line.startswith("  | ") and line.isprintable() for line in rest)
    assert any("ValueError: one" in line for line in rest)
    assert "ValueError: one\ncomity: ERROR forged" in as_json(made)["exception"]


def test_a_message_without_end_is_cut() -> None:
    assert len(TextLines().format(record("%s", "x" * 10**6))) < 10_000
    assert len(as_json(record("plain", error=raised("x" * 10**6)))["exception"]) <= 64 * 1024


def test_a_bug_in_the_wording_hides_nothing() -> None:
    assert "('seen',)" in as_json(record("two %s %s", "seen"))["message"]


def test_an_announcement_may_have_several_lines() -> None:
    made = record("two mistakes\n  one\x1b\n  two", is_announcement=True)
    assert TextLines().format(made) == "comity: two mistakes\n  one\\x1b\n  two"
    assert as_json(made)["message"] == "two mistakes\n  one\\x1b\n  two"


PROGRAM = """
import logging, sys, warnings, threading
from comity.telemetry.logging import configure_logging, log_announcement
configure_logging("text", "DEBUG")
configure_logging(sys.argv[1], sys.argv[2])
log_announcement("listening on a door")
logging.getLogger("a.library").error("from a library")
logging.getLogger("comity.x").info("of interest")
warnings.warn("old ways", DeprecationWarning)
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise RuntimeError("a bug")
"""


def said_by_a_program(form: str, level: str) -> list[str]:
    command = [sys.executable, "-W", "always", "-c", PROGRAM, form, level]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_everything_that_a_process_says_is_an_object_a_line() -> None:
    told = [json.loads(line) for line in said_by_a_program("json", "warning")]
    assert [(one["level"], one["logger"]) for one in told] == [
        ("INFO", "comity"),
        ("ERROR", "a.library"),
        ("WARNING", "py.warnings"),
        ("CRITICAL", "comity"),
        ("CRITICAL", "comity"),
    ]
    assert told[0]["message"] == "listening on a door"
    assert "ZeroDivisionError" in told[3]["exception"]
    assert "RuntimeError: a bug" in told[4]["exception"]


@loop_over(("level", "shown"), [("info", True), ("no-such-level", False), ("", False)])
def test_for_people_each_thing_is_said_once_from_the_level_on(level: str, shown: bool) -> None:
    lines = said_by_a_program("text", level)
    assert lines[0] == "comity: listening on a door"
    told = [line.partition(" ")[2] for line in lines]
    assert told.count("comity: ERROR from a library") == 1
    assert ("comity: INFO of interest" in told) is shown


def test_no_line_holds_what_looks_like_a_secret_or_is_known_as_one() -> None:
    set_line_redactor(without_secrets)
    told = record("it said password=%s and ghp_Ab3dEf6hIj9lMn2pQr5t", "hunter2")
    assert as_json(told)["message"] == "it said password=[secret] and [secret]"
    assert "hunter2" not in TextLines().format(record("x", error=raised("token: hunter2")))
    set_line_redactor(lambda said: said.replace("known", "hidden"))
    try:
        assert TextLines().format(record("a known one")).endswith("WARNING a hidden one")
        assert redact_text("known") == "hidden"
    finally:
        set_line_redactor(without_secrets)
