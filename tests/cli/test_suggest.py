"""`comity grants suggest`: what a person sees, accepts and dismisses at a gateway that runs."""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from comity.adapters.sql import sqlite
from comity.cli import asking
from comity.wire.asks import Verdict
from tests.cli.program import COMITY, Desk, Ran, Terminal
from tests.interop.processes import answers, running
from tests.kernel.decisions import Decisions

# Every command is a program of its own, on a machine that may have much else to do.
pytestmark = pytest.mark.timeout(300)

CONFIGURED = """
[store]
url = "sqlite:///comity.db"

[[servers]]
id = "fs"
command = "COMITY"
args = ["example"]

[[grants]]
subject = "agent:x"
target = "fs"
effect = "ask"
""".replace("COMITY", COMITY)


def _a_path(number: int) -> Mapping[str, object]:
    return {"message": f"/project/{number}.txt"}


def _elsewhere(number: int) -> Mapping[str, object]:
    return {"message": f"/etc/{number}", "more": True}


@dataclass
class Gateway:
    """One that runs, and its store."""

    desk: Desk
    origin: str

    def run(self, *words: str) -> Ran:
        return self.desk.run("grants", *words, COMITY_URL=self.origin, COLUMNS="100")

    def decide(self, decided: Decisions, count: int, verdict: Verdict = Verdict.ACCEPT) -> None:
        """Have people decide so often about calls of the tool `echo`, as it is now."""
        tools = asking.Gateway(self.origin).get("pins", all="true")["tools"]
        (digest,) = [each["digest"] for each in tools if each["tool"] == "echo"]
        arguments = _a_path if verdict is Verdict.ACCEPT else _elsewhere

        async def put() -> None:
            records = sqlite.open_records(f"sqlite:///{self.desk.folder}/comity.db")
            await records.open()
            try:
                echo = replace(decided, server="fs", tool="echo", definition=digest)
                await echo.put(records, count, arguments, verdict)
            finally:
                await records.close()

        asyncio.run(put())


@contextmanager
def _gateway(desk: Desk) -> Generator[Gateway]:
    desk.write("comity.toml", CONFIGURED)
    command = [str(COMITY), "serve", str(desk.folder / "comity.toml"), "--port", "0"]
    here = {"COMITY_STORE_URL": f"sqlite:///{desk.folder}/comity.db"}
    with running(command, here) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield Gateway(desk, origin)


def test_suggestions_are_shown_accepted_and_dismissed(desk: Desk) -> None:
    with _gateway(desk) as gateway:
        assert "Nothing is suggested" in gateway.run("suggest").out
        gateway.decide(Decisions(days=9), 23)
        gateway.decide(Decisions(days=2), 1, Verdict.DECLINE)
        told = gateway.run("suggest", "--dry-run")
        assert told.status == 0, told.err
        assert "always allow `fs__echo` under /project for agent:x: 23 of 23 approved by two" in (
            told.out
        )
        assert "would have allowed 23; would not have covered 1" in told.out
        assert "/etc/0" in told.out
        assert "would have" not in gateway.run("suggest").out
        (found,) = gateway.run("suggest", "--json").json["suggestions"]
        assert found["dry_run"]["allowed"] == 23

        gone = gateway.run("suggest", "dismiss", found["id"], "--reason", "not yet")
        assert "comes back with 46 approvals" in gone.out
        assert "Nothing is suggested" in gateway.run("suggest").out
        again = gateway.run("suggest", "accept", found["id"])
        assert again.status == 2
        assert "not any more" in again.err

        gateway.decide(Decisions(asker="agent:y", days=9), 12)
        gateway.run("add", "agent:y", "fs", "--ask")
        (other,) = gateway.run("suggest", "--json").json["suggestions"]
        done = gateway.run("suggest", "accept", other["id"], "--reason", "they only read")
        assert done.status == 0, done.err
        assert "Granted to agent:y: fs/echo under /project" in done.out
        listed = gateway.run("--subject", "agent:y")
        assert "under /project" in listed.out
        assert "they only read" in listed.out
        back = gateway.run("remove", "agent:y", "fs/echo", "--standing")
        assert back.status == 0, back.out


def test_a_terminal_shows_what_is_suggested_within_its_width(desk: Desk) -> None:
    with _gateway(desk) as gateway:
        gateway.decide(Decisions(days=4), 12)
        gateway.decide(Decisions(days=2), 3, Verdict.DECLINE)
        desk.env["COMITY_URL"] = gateway.origin
        with Terminal(desk, "grants", "suggest", "--dry-run") as terminal:
            terminal.until("would not have covered 3")
            assert terminal.end() == 0
        assert "NOT COVERED" in terminal.seen
