"""`comity call` at a terminal for a call that a person approves here or elsewhere."""

import signal
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.asking_gateway import Asked, asking_gateway
from tests.cli.program import Desk, Terminal
from tests.interop.processes import answers, running
from tests.support.fork_server import COMITY

QUESTION = "Approve and run this call? [y/N]"
RESULT = "Deleted the note draft."
CONFIGURATION = f"""
port = 0
[store]
url = "sqlite:///comity.db"
[policy]
require_approval = "dangerous"
[approvals]
denial_cooldown = "1ms"
request_ttl = "{{request_ttl}}"
client_wait = "{{client_wait}}"
[[servers]]
id = "example"
command = "{COMITY}"
args = ["dev", "example-server"]
"""


@dataclass
class LocalGateway:
    """A gateway in local mode, whose user calls tools and approves the calls."""

    desk: Desk
    origin: str

    def call(self) -> Terminal:
        return Terminal(
            self.desk, "call", "example__delete_note", "name=draft", "--url", self.origin
        )

    @property
    def open_requests(self) -> list[str]:
        listed = self.desk.run("approvals", "list", "-o", "json", "--url", self.origin)
        return [request["id"] for request in listed.json["approvals"]]

    @property
    def open_request(self) -> str:
        (request,) = self.open_requests
        return request

    def answer(self, command: str) -> None:
        words = (self.open_request, *(("--yes",) if command == "approve" else ()))
        done = self.desk.run(command, *words, "--url", self.origin)
        assert done.status == 0, done.err


@contextmanager
def local_gateway(
    root: Path, request_ttl: str = "15m", client_wait: str = "45s"
) -> Generator[LocalGateway]:
    desk = Desk(root)
    written = CONFIGURATION.replace("{request_ttl}", request_ttl)
    config = desk.write("comity.toml", written.replace("{client_wait}", client_wait))
    started = ["/bin/sh", "-c", f'cd "{desk.folder}" && exec "$@"', "sh"]
    with running([*started, COMITY, "serve", "-c", str(config)], desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield LocalGateway(desk, origin)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[LocalGateway]:
    with local_gateway(tmp_path_factory.mktemp("local")) as started:
        yield started


@pytest.fixture(scope="module")
def strict_gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Asked]:
    with asking_gateway(tmp_path_factory.mktemp("strict")) as started:
        yield started


def test_an_approval_elsewhere_drops_the_question_and_prints_the_result(
    gateway: LocalGateway,
) -> None:
    with gateway.call() as terminal:
        terminal.until(QUESTION)
        gateway.answer("approve")
        terminal.until(RESULT)
        assert terminal.end() == 0
        assert terminal.seen.count(QUESTION) == 1
        assert "no longer waits for your answer" in terminal.seen


def test_a_denial_elsewhere_drops_the_question_and_prints_the_refusal(
    gateway: LocalGateway,
) -> None:
    with gateway.call() as terminal:
        terminal.until(QUESTION)
        gateway.answer("deny")
        terminal.until("declined this call")
        assert terminal.end() == 1
        assert RESULT not in terminal.seen


def test_a_typed_but_unsent_answer_does_not_reach_the_shell(gateway: LocalGateway) -> None:
    """What was typed for a question that has ended must not be the next command of the shell."""
    with gateway.call() as terminal:
        terminal.until(QUESTION)
        terminal.type("rm -rf notes")
        gateway.answer("approve")
        terminal.until(RESULT)
        assert terminal.end() == 0
        assert terminal.unread_input() == 0


@pytest.mark.parametrize("typed", ["y\n", "YES\n", "maybe\ny\n"])
def test_yes_approves_and_runs_the_call(gateway: LocalGateway, typed: str) -> None:
    with gateway.call() as terminal:
        terminal.until(QUESTION)
        terminal.type(typed)
        terminal.until(RESULT)
        assert terminal.end() == 0
        if "maybe" in typed:
            assert QUESTION in terminal.seen


@pytest.mark.parametrize("typed", ["n\n", "no\n", "\n", "\x04"], ids=["n", "no", "enter", "eof"])
def test_no_denies_the_call_and_nothing_runs(gateway: LocalGateway, typed: str) -> None:
    with gateway.call() as terminal:
        terminal.until(QUESTION)
        # What an answer does stands before the question.
        assert "No denies it, and nothing runs." in terminal.seen
        terminal.type(typed)
        terminal.until("declined this call")
        assert terminal.end() == 1
        assert RESULT not in terminal.seen


def test_an_interruption_runs_nothing_and_leaves_the_request_open(gateway: LocalGateway) -> None:
    with gateway.call() as terminal:
        terminal.until(QUESTION)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 130
        assert "nothing has run" in terminal.seen
        assert "no longer waits" not in terminal.seen
        assert "Traceback" not in terminal.seen
        assert RESULT not in terminal.seen
    assert gateway.open_request in terminal.seen
    gateway.answer("deny")


def test_a_request_that_expires_drops_the_question(tmp_path: Path) -> None:
    with local_gateway(tmp_path, request_ttl="3s") as gateway, gateway.call() as terminal:
        terminal.until(QUESTION)
        terminal.until("not approved in time")
        assert terminal.end() == 1
        assert RESULT not in terminal.seen


def test_whoever_may_not_answer_only_waits_and_learns_how_others_answer(
    strict_gateway: Asked,
) -> None:
    desk, origin = strict_gateway.desk, strict_gateway.origin
    desk.env = {**desk.env, "COMITY_KEY": strict_gateway.agent}
    with Terminal(desk, "call", "example__echo", "message=hi", "--url", origin) as terminal:
        terminal.until("waits for approval")
        terminal.until("or by `comity approve")
        listed = strict_gateway.run("approvals", "list", "-o", "json").json["approvals"]
        (id,) = [request["id"] for request in listed]
        # An answer at this terminal counts for nothing.
        terminal.type("y\n")
        shown = strict_gateway.run("approvals", "show", id, "-o", "json").json
        assert (shown["state"], shown["answers"]) == ("pending", [])
        assert strict_gateway.run("approve", id, "--yes").status == 0
        terminal.until("hi")
        assert terminal.end() == 0
        assert "[y/N]" not in terminal.seen
