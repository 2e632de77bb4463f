"""A gateway whose every call needs a person, an agent that makes calls, and the person's desk."""

import http.client
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.program import Desk, Ran
from tests.interop.processes import Program, answers, running
from tests.support.fork_server import COMITY

ANA = "person:ana@example.org"
NOBODY_THERE = {"COMITY_URL": "http://127.0.0.1:9"}
CONFIGURATION = f"""
port = 0
[store]
url = "sqlite:///comity.db"
[identity]
mode = "required"
[approvals]
client_wait = "200ms"
[[servers]]
id = "example"
command = "{COMITY}"
args = ["dev", "example-server"]
"""


@dataclass
class Asked:
    """The gateway, and how those who come to it are known."""

    desk: Desk
    origin: str
    agent: str
    person: str
    program: Program

    def run(self, *words: str, key: str = "", **env: str) -> Ran:
        shown = {"COMITY_URL": self.origin, "COMITY_KEY": key or self.person}
        return self.desk.run(*words, **{**shown, **env})

    def call(self, tool: str = "example__echo", **arguments: Any) -> dict[str, Any]:
        """What the agent is answered."""
        connection = http.client.HTTPConnection(self.origin.removeprefix("http://"), timeout=60)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.agent}"}
        try:
            connection.request("POST", f"/tools/{tool}", json.dumps(arguments), headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def ask(self, **arguments: Any) -> str:
        """The id of the ask that a call leads to."""
        details = self.call(**arguments)["error"]["data"]["details"]
        # Also where the port was not known before the gateway listened.
        assert details["url"] == f"{self.origin}/approvals/{details['approval_id']}"
        return details["approval_id"]

    def written(self, **arguments: Any) -> str:
        return self.call(**arguments)["content"][0]["text"]


def made_ready(root: Path, more: str = "") -> tuple[Desk, str, str]:
    """A desk with a store in which an agent and a person are known; and their keys."""
    desk = Desk(root)
    desk.write("comity.toml", CONFIGURATION + more)
    agent = desk.run("keys", "create", "agent:ci", "-o", "json", "--offline").json["key"]
    person = desk.run("keys", "create", ANA, "-o", "json", "--offline").json["key"]
    for words in (("agent:ci", "example"), (ANA, "example", "--verb", "approval/answer")):
        assert desk.run("grants", "create", *words, "--offline").status == 0
    return desk, agent, person


@contextmanager
def asking_gateway(root: Path, more: str = "") -> Generator[Asked]:
    desk, agent, person = made_ready(root, more)
    config = str(desk.folder / "comity.toml")
    started = ["/bin/sh", "-c", f'cd "{desk.folder}" && exec "$@"', "sh"]
    with running([*started, COMITY, "serve", "-c", config, "--port", "0"], desk.env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield Asked(desk, origin, agent, person, program)
