"""`comity servers add` with a program or a URL, and `comity servers remove`."""

import json
import re
import sys
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from comity.config.server_tables import remove_server_table
from comity.config.trust import content_digest, is_trusted
from comity.errors import Misconfigured
from tests.cli.program import COMITY, EXAMPLE, Desk, Terminal
from tests.interop.processes import answers, running

HEAD = """# The gateway of the team.
port = 0 # any

# What may destroy something waits.
[policy]
require_approval = "destructive"
"""
PROGRAM = [EXAMPLE["command"], *EXAMPLE["args"]]


@pytest.fixture
def config(desk: Desk) -> Path:
    return desk.write("comity.toml", HEAD)


@pytest.fixture
def served(desk: Desk, config: Path) -> Generator[str]:
    """A gateway of this folder, which a person started without naming a file."""
    serve = ["/bin/sh", "-c", f"cd '{config.parent}' && exec {COMITY} serve"]
    with running(serve, desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield origin


def _servers(path: Path) -> list[dict[str, Any]]:
    return tomllib.loads(path.read_text()).get("servers", [])


def _is_trusted(desk: Desk, path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    for name in ("HOME", "COMITY_STATE_DIR"):
        if name in desk.env:
            monkeypatch.setenv(name, desk.env[name])
    return is_trusted(path, content_digest(path.read_bytes()))


def test_a_running_gateway_takes_an_added_server_and_lets_a_removed_one_go(
    desk: Desk, config: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = desk.run("servers", "add", "first", "--", *PROGRAM)
    assert added.status == 0, added.err
    assert f"The gateway at {served} runs it: 5 tools." in added.out
    text = config.read_text()
    assert text.startswith(HEAD)
    assert _is_trusted(desk, config, monkeypatch)
    assert desk.run("call", "first__echo", "message=hello").out == "hello\n"

    removed = desk.run("servers", "remove", "first", "--yes")
    assert removed.status == 0, removed.err
    assert f"The gateway at {served} has stopped it." in removed.out
    assert config.read_text() == HEAD
    assert _is_trusted(desk, config, monkeypatch)
    assert desk.run("servers", "-o", "json").json["servers"] == []


def test_a_file_that_nobody_approved_is_not_approved_by_an_addition(
    desk: Desk, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(HEAD + '\n[[servers]]\nid = "foreign"\ncommand = "foreign-program"\n')
    before = config.read_text()
    refused = desk.run("servers", "add", "mine", "--", *PROGRAM)
    assert (refused.status, config.read_text()) == (2, before)
    assert "comity config trust" in refused.err
    # Naming the file reads it once. It starts nothing for somebody who only enters the folder.
    for words in (
        ("add", "mine", "-c", str(config), "--", *PROGRAM),
        ("remove", "mine", "-c", str(config)),
    ):
        assert desk.run("servers", *words).status == 0
        assert not _is_trusted(desk, config, monkeypatch)
    assert config.read_text() == before


def test_a_gateway_of_a_named_file_takes_a_removal_of_its_last_server(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "elsewhere.toml"
    config.write_text(HEAD)
    named = ("-c", str(config))
    with running([COMITY, "serve", *named], desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        assert "runs it: 5 tools" in desk.run("servers", "add", "a", *named, "--", *PROGRAM).out
        removed = desk.run("servers", "remove", "a", *named)
        assert f"The gateway at {origin} has stopped it." in removed.out
    assert not _is_trusted(desk, config, monkeypatch)


def test_the_person_sees_what_will_run_and_may_decline(desk: Desk, config: Path) -> None:
    place = desk.folder / "notes"
    place.mkdir()
    words = ("--env", "NOTES_KEY", "--env", "MODE=fast", "--env", "API_TOKEN=s3cretvalue99")
    with Terminal(desk, "servers", "add", "notes", *words, "--", *PROGRAM, str(place)) as terminal:
        terminal.until("[y/N]")
        # The terminal breaks long lines, and colours the titles.
        shown = "".join(re.sub(r"\x1b\[[0-9;]*m", "", terminal.seen).split())
        terminal.type("n\n")
        assert terminal.end() == 130
    assert config.read_text() == HEAD
    for part in (
        f"runs {' '.join(PROGRAM)}",
        "gets NOTES_KEY = ${NOTES_KEY}",
        "gets MODE = fast",
        "gets API_TOKEN = …",
        f"may read and write {place}",
        "may reach every public host",
        "'${secret:API_TOKEN}' would keep it out",
        "set for the gateway: NOTES_KEY",
    ):
        assert "".join(part.split()) in shown, (part, shown)
    assert "s3cretvalue99" not in shown


def test_a_url_is_added_with_headers_that_stay_hidden(desk: Desk, config: Path) -> None:
    url = "https://search.example.org/mcp"
    header = "Authorization=Bearer ${SEARCH_TOKEN}"
    more = ("--header", header, "--header", "X-Key=abcdef123456")
    ran = desk.run("servers", "add", "search", "--url", url, *more, "-o", "json")
    assert ran.status == 0, ran.err
    assert "abcdef123456" not in ran.out + ran.err
    assert ran.json["entry"]["headers"]["Authorization"] == "…${SEARCH_TOKEN}"
    headers = {"Authorization": "Bearer ${SEARCH_TOKEN}", "X-Key": "abcdef123456"}
    assert _servers(config) == [{"id": "search", "url": url, "headers": headers}]


def test_a_program_of_this_folder_starts_in_it(desk: Desk, config: Path) -> None:
    script = desk.write("server.py", "")
    assert desk.run("servers", "add", "own", "--", sys.executable, "server.py").status == 0
    (server,) = _servers(config)
    assert (server["args"], server["cwd"]) == (["server.py"], str(script.parent))
    tool = desk.write("tool", "#!/bin/sh\n")
    tool.chmod(0o700)
    assert desk.run("servers", "add", "tool", "--", "./tool").status == 0
    assert _servers(config)[1]["command"] == str(tool)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("example", "--", *PROGRAM), "has a server 'example' already"),
        (("Example", "--", *PROGRAM), "comity servers remove"),
        (('a"]\n[[servers]]', "--", *PROGRAM), "is no name of a server"),
        (("a\x1b[31m", "--", *PROGRAM), "is no name of a server"),
        (("a__b", "--", *PROGRAM), "is no name of a server"),
        (("new", "--", "no-such-program-anywhere"), "there is no program"),
        (("new", "--", "npx -y some-package"), "a word of its own"),
        (("new", "--", ""), "there is no program ''"),
        (("new", "--url", "ftp://example.org"), "http"),
        (("new", "--url", "https://example.org", "--", "true"), "not both"),
        (("new", "--use", "npm", "--", *PROGRAM), "--use is for a server of the registry"),
        (("new", "--header", "A=b", "--", *PROGRAM), "--header is for"),
        (("new", "--env", "A=b", "--url", "https://example.org"), "--env is for"),
        (("new",), "write its program after `--`"),
        (("new", "--", *PROGRAM, "${"), "a ${...} that is no variable"),
        (("new", "--", *PROGRAM, "${secret:NONE}"), "there is no secret NONE"),
    ],
)
def test_a_refusal_says_what_to_do_and_writes_nothing(
    desk: Desk, config: Path, words: tuple[str, ...], reason: str
) -> None:
    desk.write("comity.toml", HEAD + f'\n[[servers]]\nid = "example"\ncommand = "{PROGRAM[0]}"\n')
    before = config.read_text()
    ran = desk.run("servers", "add", *words)
    assert ran.status == 2, ran.out
    assert reason in " ".join(ran.err.split())
    assert "\x1b" not in ran.err
    assert config.read_text() == before


@pytest.mark.parametrize(
    "word",
    [
        '"""\n[[servers]]\nid = "evil"',
        "'''",
        "a\\",
        "# no comment",
        "\x01\x7f\x9b31m",
        "\u2028",
        "]]",
        '"',
        "x = 1",
    ],
)
def test_an_argument_stays_one_argument_whatever_it_is(desk: Desk, config: Path, word: str) -> None:
    ran = desk.run("servers", "add", "odd", "--", *PROGRAM, word)
    assert ran.status == 0, ran.err
    assert "\x9b" not in ran.out
    assert [(each["id"], each["args"]) for each in _servers(config)] == [
        ("odd", [*EXAMPLE["args"], word])
    ]
    assert desk.run("servers", "remove", "odd").status == 0
    assert config.read_text() == HEAD


def test_the_file_of_a_client_is_edited_too(desk: Desk) -> None:
    path = desk.write(
        "mcp.json", '{\n  // ours\n  "mcpServers": {"My Files": {"command": "x"}}\n}\n'
    )
    assert desk.run("servers", "add", "more", "--", *PROGRAM).status == 0
    assert '"more"' in path.read_text()
    assert "// ours" in path.read_text()
    for name in ("My-Files", "more"):
        ran = desk.run("servers", "remove", name)
        assert ran.status == 0, ran.err
    assert "// ours" in path.read_text()
    assert json.loads(path.read_text().replace("// ours", ""))["mcpServers"] == {}


def test_only_a_server_of_the_file_is_removed(desk: Desk, config: Path) -> None:
    desk.write("comity.toml", HEAD + '\n[[servers]]\nid = "files"\ncommand = "true"\n')
    ran = desk.run("servers", "remove", "fils")
    assert (ran.status, "Did you mean 'files'?" in ran.err) == (5, True)
    assert len(_servers(config)) == 1
    with Terminal(desk, "servers", "remove", "files") as terminal:
        terminal.until("[y/N]")
        terminal.type("\n")
        assert terminal.end() == 130
    assert len(_servers(config)) == 1


TEXT = """# head

[[servers]] # one
id = "a"
command = "x"
[servers.env]
A = "[[servers]]"

# about b
[[servers]]
id = "b"
command = "y"

# the end
[policy]
approve_own = true
"""


def test_a_removal_leaves_every_other_line() -> None:
    without_a = "# head\n\n# about b" + TEXT.partition("# about b")[2]
    assert remove_server_table(TEXT, "a") == without_a
    without_b = TEXT.partition("\n# about b")[0] + "\n# the end" + TEXT.partition("\n# the end")[2]
    assert remove_server_table(TEXT, "b") == without_b
    assert tomllib.loads(remove_server_table(without_b, "a")) == {"policy": {"approve_own": True}}


@pytest.mark.parametrize(
    "text",
    [
        'servers = [{id = "a", command = "x"}]\n',
        'note = """\n[[servers]]\n"""\n[[servers]]\nid = "a"\ncommand = "x"\n',
        '[["servers"]]\nid = "a"\ncommand = "x"\n',
        '[[servers]]\nid = "b"\ncommand = "x"\n',
    ],
)
def test_a_form_that_cannot_be_edited_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="by hand"):
        remove_server_table(text, "a")
