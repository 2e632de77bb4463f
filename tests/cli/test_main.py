"""The program itself: its commands, help, completion, reference and output."""

import json
import re
import resource
import shutil
import subprocess
import sys
from datetime import timedelta

import click
import pytest
from rich.console import Console

from comity.cli.main import COMMANDS, comity
from comity.cli.output import (
    build_table,
    first_line,
    format_duration,
    line_text,
    paragraph_text,
    short_reason,
    show_json,
    show_output,
    state_text,
)
from tests.cli.program import EXAMPLE, SECONDS, Desk
from tests.cli.reference import PAGE, page
from tests.pace import here
from tests.support.cases import loop_over
from tests.support.fork_server import COMITY

HEAVY = {"uvicorn", "uvloop", "msgspec", "rich", "httptools", "jsonschema_rs", "asyncio"}
LISTING = """
import sys
from comity.cli.main import main
main(["--help"])
sys.stderr.write(" ".join(sorted(sys.modules)))
"""


def test_help_loads_nothing_that_it_does_not_need(desk: Desk) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTING], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert "Servers and tools:" in done.stdout
    assert HEAVY & set(done.stderr.split()) == set()


def test_help_takes_less_than_a_third_of_a_second_of_the_processor() -> None:
    def used() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    taken: list[float] = []
    for _ in range(3):
        before = used()
        subprocess.run([COMITY, "--help"], stdout=subprocess.DEVNULL, timeout=SECONDS, check=True)
        taken.append(used() - before)
    # The least of three, since what else the machine does can only add to it.
    assert min(taken) < here(0.3)


def test_every_command_is_listed_with_its_own_first_sentence() -> None:
    context = click.Context(comity)
    for name, about in COMMANDS.items():
        command = comity.get_command(context, name)
        assert command is not None
        assert (command.name, command.get_short_help_str(200)) == (name, about)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(desk: Desk, name: str) -> None:
    ran = desk.run(name, "--help")
    assert (ran.status, ran.out.startswith(f"Usage: comity {name}")) == (0, True)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("dance",),
        ("--dance",),
        ("status", "--dance"),
        ("tools", "show"),
        ("serve", "-c", "x", "--port", "y"),
    ],
)
def test_a_command_that_cannot_be_is_explained(desk: Desk, arguments: tuple[str, ...]) -> None:
    ran = desk.run(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Usage: comity")


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(desk: Desk) -> None:
    assert "Did you mean 'serve'?" in desk.run("sevre").err


def test_the_version_is_told_and_nothing_is_run(desk: Desk) -> None:
    ran = desk.run("--version")
    assert (ran.status, ran.err) == (0, "")
    assert re.fullmatch(r"comity \d+\.\d+\.\d+\S* \(Python 3\.\d+\.\d+\)\n", ran.out)


def test_help_and_version_are_verbs_too(desk: Desk) -> None:
    assert desk.run("version").out == desk.run("--version").out
    assert set(desk.run("version", "-o", "json").json) == {"version", "python"}
    assert desk.run("help").out == desk.run("--help").out
    for words in (("serve",), ("servers", "add"), ("config", "trust")):
        assert desk.run("help", *words).out == desk.run(*words, "--help").out
    assert "Did you mean 'serve'?" in desk.run("help", "sevre").err
    assert desk.run("help", "serve", "now").status == 2


def test_a_reader_that_goes_away_is_no_failure_to_be_told(desk: Desk, gateway: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'{COMITY} tools --url {gateway} | true; echo "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    # It may have finished before its reader was gone.
    assert (done.stderr, done.stdout.strip() in ("0", "141")) == ("", True)


def completed(desk: Desk, line: str, **env: str) -> list[str]:
    """What bash would be offered for the last word of this line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ran = desk.run(**{"_COMITY_COMPLETE": "bash_complete", **asked, **env})
    assert (ran.status, ran.err) == (0, "")
    return [each.partition(",")[2] for each in ran.lines if each]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("comity st", ["status"]),
        ("comity s", ["serve", "status", "servers", "sessions", "secrets"]),
        ("comity servers re", ["restart", "remove"]),
        ("comity completion z", ["zsh"]),
        ("comity clients connect cl", ["claude-desktop", "claude-code", "cline"]),
        ("comity status --u", ["--url"]),
        ("comity dance x", []),
    ],
)
def test_words_are_completed(desk: Desk, line: str, offered: list[str]) -> None:
    assert completed(desk, line) == offered


def test_names_of_a_running_gateway_are_completed(desk: Desk, gateway: str) -> None:
    assert completed(desk, "comity call example__c", COMITY_URL=gateway) == ["example__countdown"]
    assert completed(desk, "comity servers show a", COMITY_URL=gateway) == ["absent"]
    named = f"comity tools show --url {gateway} example__n"
    assert completed(desk, named) == ["example__now"]


def test_a_gateway_that_is_away_completes_nothing(desk: Desk) -> None:
    assert completed(desk, "comity call e", COMITY_URL="http://127.0.0.1:9") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_can_read_its_script(desk: Desk, shell: str) -> None:
    ran = desk.run("completion", shell)
    assert (ran.status, "_COMITY_COMPLETE" in ran.out) == (0, True)
    program = shutil.which(shell)
    if program is not None:
        command = [program, "-n"]
        subprocess.run(command, input=ran.out, text=True, timeout=SECONDS, check=True)


def test_bash_completes_a_word_by_that_script(desk: Desk) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = (
        f'PATH="{COMITY.rpartition("/")[0]}:$PATH"; eval "$(comity completion bash)"; '
        "COMP_WORDS=(comity sta); COMP_CWORD=1; _comity_completion comity sta comity; "
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [bash, "-c", script],
        env=desk.env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.strip() == "status"


def test_the_reference_of_the_commands_is_what_they_are() -> None:
    """Where it is not: .venv/bin/python -m tests.cli.reference"""
    assert PAGE.read_text(encoding="utf-8") == page()


TABLE = PAGE.with_name("command-output.md").read_text(encoding="utf-8")
ROW = r"^\| `(comity [a-z ]+)`(?:, `[a-z]+`)* \| ((?:`\w+`(?:, )?)+) \|$"
PLAIN = {
    found[1]: set(re.findall(r"`(\w+)`", found[2]))
    for found in re.finditer(ROW, TABLE, re.MULTILINE)
}


def test_the_table_has_the_commands_whose_documents_are_their_own() -> None:
    assert set(PLAIN) == {
        *("comity init", "comity doctor", "comity tools show", "comity db status"),
        *("comity config check", "comity config show", "comity config path"),
        *("comity context list", "comity context add", "comity db migrate", "comity nodes"),
        *("comity clients list", "comity clients connect", "comity clients disconnect"),
        *("comity dev new server", "comity console"),
    }


@pytest.mark.parametrize("command", PLAIN)
def test_a_command_prints_the_members_that_the_reference_names(
    desk: Desk, gateway: str, command: str
) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"example": EXAMPLE}})
    named = {
        "comity tools show": ("example__echo", "--url", gateway),
        "comity clients connect": ("cursor",),
        "comity context add": ("prod", "--url", "https://gw.example.org"),
        "comity clients disconnect": ("cursor",),
        "comity dev new server": ("notes",),
        "comity nodes": ("--url", gateway),
        "comity console": ("--no-open", "--url", gateway),
    }
    words = command.split()[1:]
    store = f"sqlite:///{desk.folder / 'store.db'}" if words[0] == "db" else "memory"
    ran = desk.run(*words, *named.get(command, ()), "-o", "json", DATABASE_URL=store)
    assert ran.status in (0, 1)
    assert set(ran.json) == PLAIN[command]


def test_each_part_of_a_document_has_the_members_that_the_reference_names(desk: Desk) -> None:
    desk.write("mcp.json", {"mcpServers": {"example": EXAMPLE}})
    desk.write("~/.cursor/mcp.json", {"mcpServers": {"example": EXAMPLE}})
    initial = desk.run("init", "-o", "json").json
    parts = {
        "found": initial["found"][0],
        "servers": initial["servers"][0],
        "clients": desk.run("clients", "-o", "json").json["clients"][0],
        "findings": desk.run("doctor", "-o", "json").json["findings"][0],
        "checked": desk.run("config", "check", "-c", "mcp.json", "-o", "json").json["servers"][0],
        "mistakes": desk.run("config", "check", "-o", "json", COMITY_PORT="x").json["mistakes"][0],
    }
    prose = set(re.findall(r"`(\w+)`", TABLE.partition("## Details")[2]))
    for name, part in parts.items():
        assert set(part) <= prose, name


HOSTILE = "\x1b]0;owned\x07red\x1b[31m [bold]text[/bold]\x9b2J\r\nnext"


def test_no_word_of_a_stranger_steers_the_terminal() -> None:
    for shown in (line_text(HOSTILE), paragraph_text(HOSTILE)):
        assert "\x1b" not in shown.plain
        assert "\x9b" not in shown.plain
        assert "[bold]text[/bold]" in shown.plain
    assert "\n" not in line_text(HOSTILE).plain
    assert paragraph_text(HOSTILE).plain.count("\n") == 1


def test_json_on_a_terminal_says_the_same_and_steers_nothing(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    said = HOSTILE + "\u202e\u2066\u200b\ufeff\U000e0041\ud800 caf\u00e9 \U0001f600"
    show_json({"said": said})
    shown = capfdbinary.readouterr().out.decode()
    assert json.loads(shown) == {"said": said}
    assert "caf\u00e9 \U0001f600" in shown
    assert all(each.isprintable() for each in shown if each != "\n")


def test_a_name_is_never_cut_and_the_last_column_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("a-rather-long-name", "about " * 20), ("b", "short")]
    console = Console(width=40)
    with console.capture() as captured:
        console.print(build_table(("NAME", "ABOUT"), rows, cut="ABOUT"))
    lines = captured.get().splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("a-rather-long-name")
    assert lines[1].rstrip().endswith("…")
    with console.capture() as captured:
        console.print(build_table(("NAME", "WHY"), rows))
    assert "…" not in captured.get()


def test_a_narrow_table_leaves_out_empty_and_extra_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("NAME", "NOTE", "OWNER", "REASON")
    rows = [("a" * 20, "", "person:ana@example.org", "because it is needed")]
    for width, left in ((90, columns), (66, ("NAME", "OWNER", "REASON")), (45, ("NAME", "REASON"))):
        monkeypatch.setenv("COLUMNS", str(width))
        show_output(build_table(columns, rows, extra=("OWNER",)))
        lines = capsys.readouterr().out.splitlines()
        assert tuple(lines[0].split()) == left
        assert max(map(len, lines)) <= width


def test_columns_that_do_not_fit_are_below_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a-rather-long-name", "a long owner", "a reason that is long"), ("b", "c", "")]
    for width in (40, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        show_output(build_table(("NAME", "OWNER", "REASON"), rows))
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        assert "a reason that is long" in "\n".join(lines), "it is neither cut nor in pieces"
        assert len(lines) == (4 if width == 40 else 3)


WORDS = (
    "/home/user/.config/some-client/settings/mcp.json",
    "a-server-with-a-long-name/a_tool_with_a_long_name",
    "06gv8fkfdpn2c98ih8s7q9273s06gv8fkfdpn2c98ih8s7q9273s",
)


@pytest.mark.parametrize("word", WORDS)
def test_no_word_of_a_table_is_broken_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [("some-name", "person:ana@example.org", "12 min", f"{word} and some words besides")]
    show_output(build_table(("NAME", "OWNER", "AGE", "PLACE"), rows))
    out = capsys.readouterr().out
    assert word in out
    assert max(map(len, out.splitlines())) <= 80


def test_a_path_that_is_longer_than_a_line_is_broken_at_its_slashes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = "~/.config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_settings.json"
    show_output(build_table(("CLIENT", "SERVERS", "FILE"), [("cline", "-", path)]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(line.strip() for line in lines[2:]) == path
    assert all(line.endswith("/") for line in lines[2:-1])


@loop_over(
    ("seconds", "said"),
    [(-1, "0.0 s"), (0.25, "0.2 s"), (42, "42 s"), (119, "119 s"), (150, "2 min"), (7300, "2 h")],
)
def test_a_length_of_time_is_told_in_one_unit(seconds: float, said: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == said


def test_a_description_is_known_by_its_first_line() -> None:
    assert first_line("\n\n  It looks.\nAnd more.") == "It looks."
    assert first_line(None) == ""


@loop_over(
    ("said", "reason", "shown"),
    [
        ("connected", "", "connected"),
        ("restarting", "operator_request", "restarting"),
        ("restarting", "cannot start 'x': there is no such program", "failed"),
        ("error", "restart_limit_exceeded", "failed"),
        ("connecting", "it left", "connecting"),
    ],
)
def test_a_server_that_failed_is_called_so_while_it_waits_for_its_next_start(
    said: str, reason: str, shown: str
) -> None:
    assert state_text(said, reason).plain == shown


@loop_over(
    ("reason", "short"),
    [
        ("", ""),
        ("cannot start 'x': no such program; check it", "cannot start 'x': no such program"),
        ("it ended with status 3 | Traceback | ValueError", "it ended with status 3"),
        ("it left (restart_limit_exceeded: started again 5 times in 300 s; start it)", "it left"),
    ],
)
def test_a_short_reason_leaves_out_advice_and_last_words(reason: str, short: str) -> None:
    assert short_reason(reason) == short
