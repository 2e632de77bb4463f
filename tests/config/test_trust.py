"""Project files have no effect until a person approved exactly their content."""

import json
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from comity.app.settings_reader import ConfigSource, LoadedConfig
from comity.cli.main import comity
from comity.config.trust import content_digest, is_trusted, require_trust, trust_file
from comity.errors import Misconfigured
from comity.servers.packages.rules import resolution_digest
from tests.cli.program import EXAMPLE, Desk, Terminal
from tests.interop.processes import Program, answers, running
from tests.support.fork_server import COMITY

pytestmark = pytest.mark.integration
REFUSED = "run `comity config trust`"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    # The witness leaves a file in the folder.
    return Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"), COMITY_POLICY_SANDBOX="none")


def leave(desk: Desk, name: str, content: object) -> Path:
    """A file that somebody else left in the folder."""
    path = desk.folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def witness(file: Path) -> dict[str, Any]:
    """A server that leaves a file when it is started."""
    code = f"open({str(file)!r}, 'w').close()"
    return {"mcpServers": {"witness": {"command": sys.executable, "args": ["-c", code]}}}


def toml(entry: dict[str, Any], *lines: str) -> str:
    pairs = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    return "\n".join([*lines, "[[servers]]", 'id = "example"', *pairs, ""])


@pytest.mark.parametrize("name", ["mcp.json", ".mcp.json"])
def test_a_file_of_the_folder_starts_nothing_before_it_is_approved(desk: Desk, name: str) -> None:
    left = desk.folder / "was-started"
    leave(desk, name, witness(left))
    for command in (
        ("serve", "--port", "0"),
        ("serve", "--stdio"),
        ("tools", "list", "--local"),
        ("servers", "update", "--yes"),
        ("doctor",),
        ("config", "check"),
        ("config", "check", "--start"),
        ("config", "show"),
        ("clients", "connect", "cursor", "--stdio"),
    ):
        ran = desk.run(*command)
        assert ran.status != 0, command
        assert REFUSED in " ".join((ran.err + ran.out).split()), command
    assert not left.exists()
    approved = desk.run("config", "trust", "--yes")
    assert (approved.status, "witness: " in approved.out) == (0, True)
    desk.run("tools", "list", "--local")
    assert left.exists()


def test_a_file_that_is_not_approved_reads_no_secret_and_reaches_nothing(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        url = f"postgres://${{AWS_SECRET_ACCESS_KEY}}@127.0.0.1:{listening.getsockname()[1]}/x"
        secrets = f'[secrets]\nsources = ["file:{desk.folder}"]\n'
        file = leave(desk, "comity.toml", f'{secrets}[store]\nurl = "{url}"\n')
        for command in (("check",), ("check", "--no-connect"), ("show",)):
            ran = desk.run("config", *command, AWS_SECRET_ACCESS_KEY="canary-1")
            told = ran.out + ran.err
            assert (ran.status != 0, REFUSED in " ".join(told.split())) == (True, True), command
            assert "canary-1" not in told
        with pytest.raises(BlockingIOError):
            listening.accept()
    shown = desk.run("config", "path")
    assert (shown.status, shown.lines) == (0, [str(file)])


def test_a_person_sees_how_a_file_starts_a_server(desk: Desk) -> None:
    server = {
        "command": "true\x1b[2J\u202e",
        "env": {"NODE_OPTIONS": "--require ./x.js"},
        "cwd": "/srv",
        "sandbox": "none",
        "headers": {"Authorization": "canary-1"},
        "policy": {"trust": "trusted"},
    }
    leave(desk, "mcp.json", {"mcpServers": {"a\x1b[2J": server}})
    lock = """format = 1
[[servers]]
id = "packed"
command = "npx"
package = {index = "npm", name = "notes-mcp", version = "1.2.3", digest = "DIGEST"}
[resolutions]
DIGEST = "text"
"""
    digest = resolution_digest("text")
    leave(
        desk, "comity.lock", lock.replace("DIGEST", digest).replace(f"\n{digest}", f'\n"{digest}"')
    )
    told = desk.run("config", "trust", "--yes")
    assert told.status == 0, told.err
    for shown in (
        '.env = {"NODE_OPTIONS": "--require ./x.js"}',
        '.cwd = "/srv"',
        '.sandbox = "none"',
        '.policy = {"trust": "trusted"}',
        "packed: notes-mcp 1.2.3",
    ):
        assert shown in told.out
    assert not {"\x1b", "\u202e"} & {*told.out}
    assert "canary-1" not in told.out


def test_a_person_sees_which_variables_a_file_sends(desk: Desk) -> None:
    given = {
        "url": "https://docs.example.org/mcp",
        "headers": {
            "X-Trace": "${AWS_SECRET_ACCESS_KEY}",
            "Authorization": "Bearer canary-1 ${env:TOKEN:-canary-1}${secret:DB}.",
            "X-Plain": "$${HOME}",
        },
        "auth": {"key": "${env:API_KEY}"},
        "oauth": {"issuer": "https://as.example.org", "client_secret": "canary-1${secret:CLIENT}"},
    }
    leave(desk, "mcp.json", {"mcpServers": {"docs": given}})
    shown = desk.run("config", "trust", "--yes")
    assert shown.status == 0, shown.err
    for line in (
        "docs.headers.X-Trace = ${AWS_SECRET_ACCESS_KEY}",
        "docs.headers.Authorization = …${TOKEN}${secret:DB}…",
        "docs.headers.X-Plain = …",
        "docs.auth.key = ${API_KEY}",
        'docs.oauth = {"issuer": "https://as.example.org", "client_secret": "…${secret:CLIENT}"}',
        "sends these variables: AWS_SECRET_ACCESS_KEY, TOKEN, secret:DB, API_KEY, secret:CLIENT",
    ):
        assert line in shown.lines
    assert "canary-1" not in shown.out


def test_a_script_approves_a_file_only_with_an_option(desk: Desk) -> None:
    leave(desk, "comity.toml", toml(EXAMPLE))
    for given in ("n\n", "y\n", ""):
        for options in ((), ("-o", "json"), ("./comity.toml",)):
            asked = desk.run("config", "trust", *options, said=given)
            assert (asked.status, "approve it with --yes" in asked.err) == (2, True)
    assert desk.run("tools", "list", "--local").status != 0
    # Programs are not shown what the file starts, so a person at a terminal is not asked either.
    with Terminal(desk, "config", "trust", "-o", "json") as terminal:
        terminal.until("approve it with --yes")
        assert terminal.end() == 2
    with Terminal(desk, "config", "trust") as terminal:
        terminal.until("[y/N]")
        terminal.type("n\n")
        assert terminal.end() != 0
    assert desk.run("tools", "list", "--local").status != 0
    with Terminal(desk, "config", "trust") as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert desk.run("tools", "list", "--local").status == 0


def test_a_changed_file_needs_a_new_approval(desk: Desk) -> None:
    file = leave(desk, "comity.toml", toml(EXAMPLE))
    assert desk.run("config", "trust", "--yes").status == 0
    assert desk.run("tools", "list", "--local").status == 0
    file.write_text(toml(EXAMPLE, "# another line"))
    ran = desk.run("tools", "list", "--local")
    assert (ran.status != 0, REFUSED in ran.err) == (True, True)


def test_a_changed_lock_file_needs_a_new_approval(desk: Desk) -> None:
    leave(desk, "comity.toml", toml(EXAMPLE))
    desk.run("config", "trust", "--yes")
    assert desk.run("servers", "update", "--yes", "--no-start").status == 0
    assert desk.run("tools", "list", "--local").status == 0
    lock = desk.folder / "comity.lock"
    lock.write_text(lock.read_text() + "# another line\n")
    ran = desk.run("tools", "list", "--local")
    assert (REFUSED in ran.err, "comity.lock" in ran.err) == (True, True)
    assert desk.run("config", "trust", "--yes").status == 0
    assert desk.run("tools", "list", "--local").status == 0


def test_a_lock_file_that_changes_after_its_check_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMITY_STATE_DIR", str(tmp_path / "state"))
    config, lock = tmp_path / "comity.toml", tmp_path / "comity.lock"
    words = ["servers", "update", "--yes", "--no-start", "changed"]

    def write(argument: str) -> None:
        server = '[[servers]]\nid = "{}"\ncommand = "true"\nargs = ["{}"]\n'
        config.write_text(server.format("kept", "approved") + server.format("changed", argument))
        trust_file(config, content_digest(config.read_bytes()))

    load = ConfigSource.load

    def load_and_swap(source: ConfigSource) -> LoadedConfig:
        loaded = load(source)
        lock.write_text(lock.read_text().replace("approved", "swapped"))
        return loaded

    write("first")
    assert CliRunner().invoke(comity, words[:-1]).exit_code == 0
    write("second")
    monkeypatch.setattr(ConfigSource, "load", load_and_swap)
    assert CliRunner().invoke(comity, words).exit_code == 0
    found = lock.read_text()
    assert ("swapped" in found, "approved" in found, "second" in found) == (False, True, True)
    assert is_trusted(lock, content_digest(lock.read_bytes()))


def test_a_named_file_and_a_file_of_the_user_need_no_approval(desk: Desk) -> None:
    file = leave(desk, "comity.toml", toml(EXAMPLE))
    assert desk.run("tools", "list", "--local", "-c", "comity.toml").status == 0
    own = desk.write("~/.config/comity/comity.toml", file.read_text())
    file.unlink()
    assert own.exists()
    assert desk.run("tools", "list", "--local").status == 0


def test_a_file_that_comity_wrote_is_approved_and_stays_so(desk: Desk) -> None:
    assert desk.run("init").status == 0
    assert desk.run("tools", "list", "--local").status == 0
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"more": {**EXAMPLE, "env": {"A": "b"}}}})
    added = desk.run("init", "--connect")
    assert "Added to comity.toml: more" in added.out, added.err
    assert desk.run("tools", "list", "--local").status == 0


def test_the_file_of_a_new_project_is_approved(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_STATE_DIR", str(tmp_path / "state"))
    assert desk.run("dev", "new", "server", "weather").status == 0
    file = desk.folder / "weather" / "comity.toml"
    assert is_trusted(file, content_digest(file.read_bytes()))


def test_a_person_at_a_terminal_is_asked_at_the_start(desk: Desk) -> None:
    leave(desk, "comity.toml", toml(EXAMPLE))
    with Terminal(desk, "serve", "--port", "0") as terminal:
        terminal.until("[y/N]")
        assert "dev example-server" in terminal.seen
        terminal.type("n\n")
        assert terminal.end() != 0
    with Terminal(desk, "serve", "--port", "0") as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        terminal.until("listening on")


@contextmanager
def serving_folder(desk: Desk, *settings: str) -> Generator[Program]:
    """The gateway of the folder, whose file its user has written."""
    desk.write("comity.toml", toml(EXAMPLE, "port = 0", *settings))
    command = ["/bin/sh", "-c", f'cd "{desk.folder}" && exec "$@"', "sh", COMITY, "serve"]
    with running(command, desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield program


def test_a_running_gateway_applies_a_file_as_soon_as_it_is_approved(desk: Desk) -> None:
    with serving_folder(desk) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        assert desk.run("call", "example__echo", "message=hi", "--url", origin).out == "hi\n"
        rule = '\n[servers.tools.echo]\nrequire_approval = "always"\n'
        with (desk.folder / "comity.toml").open("a") as file:
            file.write(rule)
        program.wait_for_line("was not applied: .*you have not approved its content")
        trusted = desk.run("config", "trust", "--yes")
        assert (trusted.status, f"The gateway at {origin} has applied it." in trusted.out) == (
            0,
            True,
        )
        program.wait_for_line("the changed configuration is applied")
        # The server of a changed entry starts again, and has no tools until then.
        listing = ("tools", "list", "-o", "name", "--url", origin)
        program.wait_until(lambda: "example__echo" in desk.run(*listing).lines)
        with Terminal(desk, "call", "example__echo", "message=hi", "--url", origin) as terminal:
            terminal.until("waits for approval")
        # An approval of what is in force already is answered at once.
        again = desk.run("config", "trust", "--yes", "-o", "json").json
        assert (again["gateway"], again["applied"]) == (origin, True)


def test_an_approved_file_that_a_running_gateway_refuses_is_told(desk: Desk) -> None:
    with serving_folder(desk) as program:
        leave(desk, "comity.toml", toml(EXAMPLE, "port = 0", "[policy]", "requre_approval = 1"))
        trusted = desk.run("config", "trust", "--yes")
        assert trusted.status == 1
        told = " ".join(trusted.out.split())
        assert "has not applied it" in told
        assert "requre_approval" in told
        assert "was not applied" in program.said


def test_whoever_may_not_ask_a_running_gateway_is_sent_to_its_log(desk: Desk) -> None:
    with serving_folder(desk, "[identity]", 'mode = "required"'):
        leave(desk, "comity.toml", (desk.folder / "comity.toml").read_text() + "\n# more\n")
        trusted = desk.run("config", "trust", "--yes")
        assert (trusted.status, "see its log" in " ".join(trusted.out.split())) == (0, True)
        assert desk.run("config", "show").status == 0


def test_the_parsed_content_is_the_approved_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes after its approval, also while a gateway runs, is not applied."""
    monkeypatch.setenv("COMITY_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "comity.toml"
    file.write_text("port = 1\n")
    source = ConfigSource(tmp_path, tmp_path, {}, needs_trust=True)
    trust_file(file, content_digest(file.read_bytes()))
    assert source.load().settings.port == 1
    # The secret would be read from a place that the new content names.
    file.write_text('port = 2\n[secrets]\nsources = ["file:/etc"]\n[store]\nurl = "${secret:x}"\n')
    with pytest.raises(Misconfigured, match="config trust"):
        source.load()


def test_a_record_of_trust_is_private_and_for_one_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMITY_STATE_DIR", str(tmp_path / "state"))
    digest = content_digest(b"a")
    trust_file(tmp_path / "a" / "comity.toml", digest)
    require_trust(tmp_path / "a" / "comity.toml", digest)
    assert not is_trusted(tmp_path / "b" / "comity.toml", digest)
    (record,) = (tmp_path / "state" / "trust").iterdir()
    record.chmod(0o644)
    assert not is_trusted(tmp_path / "a" / "comity.toml", digest)
