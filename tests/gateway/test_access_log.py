"""The line that the log has for each tool call."""

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.program import EXAMPLE, Desk
from tests.interop.processes import Program, answers, running
from tests.support.fork_server import COMITY

pytestmark = pytest.mark.integration

LINE = (
    r"^\S+Z comity: INFO call principal=person:local tool=(\S+) outcome=(\S+) "
    r"duration_ms=[0-9.]+ trace_id=[0-9a-f]{32}$"
)


@contextmanager
def gateway(desk: Desk, level: str, form: str = "text") -> Generator[tuple[Program, str]]:
    config = desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    command = [COMITY, "serve", "-c", str(config), "--port", "0", "--log-format", form]
    with running(command, {**desk.env, "LOG_LEVEL": level}) as program:
        origin = program.wait_for_line(r"listening on (http://[^\s\"]+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready?strict"))
        yield program, origin


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_call_is_one_line_with_who_what_and_how_it_ended(desk: Desk) -> None:
    with gateway(desk, "INFO") as (program, origin):
        said = desk.run("call", "example__echo", "message=s3cret-words", "--url", origin)
        assert said.status == 0, said
        found = program.wait_for_line(LINE)
        assert found.groups() == ("example/echo", "ok")
        assert desk.run("call", "example__nothing", "--url", origin).status != 0
        assert desk.run("call", "example__echo", "message=b", "--url", origin).status == 0
        program.wait_until(lambda: len(re.findall(LINE, program.said, re.MULTILINE)) >= 2)
        assert "s3cret-words" not in program.said


def test_a_line_for_programs_has_a_member_for_each_fact(desk: Desk) -> None:
    with gateway(desk, "INFO", "json") as (program, origin):
        assert desk.run("call", "example__echo", "message=a", "--url", origin).status == 0
        line = json.loads(program.wait_for_line(r'.*"comity\.access".*').group(0))
    told = {name: line[name] for name in ("principal", "server", "tool", "outcome")}
    assert told == {
        "principal": "person:local",
        "server": "example",
        "tool": "echo",
        "outcome": "ok",
    }
    assert line["duration_ms"] > 0
    assert re.fullmatch("[0-9a-f]{32}", line["trace_id"])


def test_at_the_default_level_calls_leave_no_line(desk: Desk) -> None:
    with gateway(desk, "") as (program, origin):
        assert desk.run("call", "example__echo", "message=a", "--url", origin).status == 0
    assert "tool=example/echo" not in program.said
