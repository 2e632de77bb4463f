"""A call that waits for approval, as its requester sees it: there is always a way on.

Each test is one transcript with a real gateway: a script without a terminal, a requester at a
terminal, and an operator who is alone with keys.
"""

import re
import subprocess
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.program import COMITY, EXAMPLE, SECONDS, Desk, Terminal
from tests.interop.processes import comity

pytestmark = pytest.mark.timeout(600)

SERVER = f"""
[[servers]]
id = "example"
command = "{EXAMPLE["command"]}"
args = {EXAMPLE["args"]}
"""
LOCAL = f"""
[policy]
require_approval = "dangerous"
{SERVER}
"""
KEYS = f"""
[store]
url = "sqlite:///${{HOME}}/comity.db"

[identity]
mode = "required"
{SERVER}
"""
CALL = ("call", "example__echo", "message=hello")
WAITS = re.compile(r"comity: this call waits for approval \(request (\w+)\)\. (.*)")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "state"))


@contextmanager
def serving(desk: Desk, written: str) -> Generator[str]:
    config = desk.write("comity.toml", written)
    with comity(config, desk.env) as origin:
        yield origin


@contextmanager
def script(desk: Desk, *arguments: str, **env: str) -> Generator["Script"]:
    with subprocess.Popen(
        [COMITY, *arguments],
        cwd=desk.folder,
        env={**desk.env, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Script(process)
        finally:
            process.kill()


class Script:
    """A command in the middle of a script: nobody sees what it asks, and nobody types."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.err = ""

    def waits(self) -> tuple[str, str]:
        """The request that it waits for, and who can approve it and how."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.err += line
            if found := WAITS.match(line):
                return found[1], found[2]
        raise AssertionError(self.err)

    def end(self) -> tuple[int, str]:
        out, err = self._process.communicate(timeout=SECONDS)
        self.err += err
        return self._process.returncode, out


def states(desk: Desk, origin: str, **env: str) -> dict[str, str]:
    found = desk.run("asks", "list", "--all", "--json", "--url", origin, **env).json["asks"]
    return {each["id"]: each["state"] for each in found}


def test_a_script_waits_for_approval_and_never_denies_it(desk: Desk) -> None:
    with serving(desk, LOCAL) as origin, script(desk, *CALL, "--url", origin) as call:
        request, how = call.waits()
        page = f"{origin}/asks/{request}"
        assert (
            how == f"You can approve it at {page} or by `comity approve {request} --url {origin}`."
        )
        with urllib.request.urlopen(page, timeout=SECONDS) as shown:  # noqa: S310 - loopback only
            assert shown.status == 200
        assert states(desk, origin) == {request: "pending"}
        assert desk.run("approve", request, "--yes", "--url", origin).status == 0
        assert call.end() == (0, "hello\n")
        assert states(desk, origin) == {request: "used"}


def test_a_script_whose_time_runs_out_leaves_the_request_to_be_approved(desk: Desk) -> None:
    with serving(desk, LOCAL) as origin:
        late = desk.run(*CALL, "--url", origin, "--timeout", "3")
        assert (late.status, late.out) == (1, "")
        found = re.search(r"still waits for approval \(request (\w+)\); nothing has run", late.err)
        assert found is not None, late.err
        assert "Then run the same command again" in late.err
        assert states(desk, origin) == {found[1]: "pending"}
        assert desk.run("approve", found[1], "--yes", "--url", origin).status == 0
        again = desk.run(*CALL, "--url", origin)
        assert (again.status, again.out) == (0, "hello\n")


def test_a_gateway_for_one_command_serves_the_page_that_it_names(desk: Desk) -> None:
    config = desk.write("comity.toml", LOCAL)
    with script(desk, *CALL, "--config", str(config)) as call:
        request, how = call.waits()
        (page,) = re.findall(r"http://\S+", how)[:1]
        assert page.endswith(f"/asks/{request}")
        with urllib.request.urlopen(page, timeout=SECONDS) as shown:  # noqa: S310 - loopback only
            assert shown.status == 200


def keys(desk: Desk, *names: str) -> Mapping[str, str]:
    """A key of each, made before a gateway runs; `person:me` may do everything."""
    here = ("--offline", "--config", str(desk.write("comity.toml", KEYS)))
    made = {name: desk.run("keys", "create", name, *here).lines[0] for name in names}
    assert desk.run("grants", "add", "person:me", "*", "--verb", "*", *here).status == 0
    return made


def test_a_requester_at_a_terminal_is_told_for_whom_it_waits_and_asked_nothing(desk: Desk) -> None:
    key = keys(desk, "person:me", "agent:two")
    here = ("--offline", "--config", str(desk.folder / "comity.toml"))
    assert desk.run("grants", "add", "agent:two", "example", *here).status == 0
    (desk.folder / "two.key").write_text(key["agent:two"])
    with (
        serving(desk, KEYS) as origin,
        Terminal(desk, *CALL, "--url", origin, "--key-file", "two.key") as terminal,
    ):
        terminal.until("waits for approval")
        terminal.until("comity approve")
        terminal.until("only a person can answer this")
        (request,) = states(desk, origin, COMITY_KEY=key["person:me"])
        approved = desk.run(
            "approve", request, "--yes", "--url", origin, COMITY_KEY=key["person:me"]
        )
        assert approved.status == 0
        terminal.until("hello")
        assert terminal.end() == 0
        assert "A person with the grant ask/answer for example/echo can approve it" in terminal.seen
        assert not re.search(r"\[y/N\]|agree|asks:", terminal.seen)


def test_a_single_operator_with_keys_is_told_the_way_out_and_it_works(desk: Desk) -> None:
    me = {"COMITY_KEY": keys(desk, "person:me")["person:me"]}
    with serving(desk, KEYS) as origin, script(desk, *CALL, "--url", origin, **me) as call:
        request, how = call.waits()
        assert "approve_own = true in [policy]" in how
        assert "ask/answer_own" in how
        refused = desk.run("approve", request, "--yes", "--url", origin, **me)
        assert (refused.status, "approve_own = true in [policy]" in refused.err) == (2, True)
    alone = f"[policy]\napprove_own = true\n{KEYS}"
    with serving(desk, alone) as origin, script(desk, *CALL, "--url", origin, **me) as call:
        same, how = call.waits()
        assert (same, how.startswith("You can approve it at ")) == (request, True)
        assert desk.run("approve", same, "--yes", "--url", origin, **me).status == 0
        assert call.end() == (0, "hello\n")
