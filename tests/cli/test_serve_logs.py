"""The log of `comity serve` in the form that was asked for, whichever way it was asked."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Desk
from tests.interop.processes import running
from tests.surfaces.piped import COMITY

BROKEN: dict[str, Any] = {"command": "./no-such-program", "args": ["canary"]}
WAYS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "option": (["--log-format", "json"], {}, ""),
    "variable": ([], {"COMITY_LOG_FORMAT": "json"}, ""),
    "setting": ([], {}, '[telemetry]\nlog_format = "json"\n'),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_line_is_an_object_whichever_way_that_was_asked(way: str, tmp_path: Path) -> None:
    arguments, env, written = WAYS[way]
    config = tmp_path / "comity.toml"
    config.write_text(written + '[[servers]]\nid = "files"\ncommand = "./no-such-program"\n')
    command = [COMITY, "serve", str(config), "--port", "0", *arguments]
    with running(command, env) as program:
        program.wait_for_line("listening on")
        program.wait_for_line("no-such-program")
    told = [json.loads(line) for line in program.said.splitlines()]
    assert any(one["message"].startswith("listening on http://") for one in told)
    (warned,) = [one for one in told if one["level"] == "WARNING"]
    assert (warned["server"], warned["logger"]) == ("files", "comity.kernel.life")


def test_for_people_it_stays_as_it_was(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"files": BROKEN}}))
    with running([COMITY, "serve", str(config), "--port", "0"]) as program:
        program.wait_for_line("^comity: listening on http://127.0.0.1:[0-9]+$")
        program.wait_for_line("^comity: WARNING server 'files': ")
    assert "canary" not in program.said


def test_an_end_for_a_mistake_is_told_in_the_same_form(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMITY, "serve", str(tmp_path / "none.json"), "--log-format", "json"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    told = json.loads(line)
    assert told["level"] == "ERROR"
    assert "there is no such file" in told["message"]


def test_a_form_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMITY, "serve", str(tmp_path / "none.json"), "--log-format", "xml"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 2
    assert "'text', 'json'" in done.stderr


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_variable_that_is_not_set_is_told_in_whole_words(tmp_path: Path, form: str) -> None:
    desk = Desk(tmp_path)
    config = desk.write(
        "comity.toml",
        '[[servers]]\nid = "search"\nurl = "https://search.example.org/mcp"\n'
        'headers = {Authorization = "Bearer ${SEARCH_TOKEN}"}\n',
    )
    ran = desk.run("serve", str(config), "--log-format", form)
    assert ran.status == 2
    assert "servers[search].headers.Authorization: the variable SEARCH_TOKEN is not set" in ran.err
    assert "write ${SEARCH_TOKEN:-default}" in ran.err
