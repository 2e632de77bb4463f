"""What a shell is told when somebody presses the tab key."""

import shutil
import subprocess

import pytest

from tests.cli.program import COMITY, SECONDS, Desk


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
        ("comity st", ["status", "state", "store"]),
        ("comity s", ["serve", "status", "servers", "search", "state", "store"]),
        ("comity servers re", ["restart"]),
        ("comity completion z", ["zsh"]),
        ("comity client connect cl", ["claude-desktop", "claude-code", "cline"]),
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
    assert done.stdout.strip() == "status state"
