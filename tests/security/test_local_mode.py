"""Local mode against a tool server that uses all it was given. (attacks 2, 22)"""

import html
import json
import re
import urllib.parse
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from comity.cli.api_client import find_gateway_by_url
from tests.cli.program import Desk
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, running
from tests.live.end_to_end import fetch
from tests.support.piped import COMITY

CONFIG = """
[store]
url = "sqlite:///{folder}/comity.db"
[approvals]
client_wait = "200ms"
[policy]
require_approval = "dangerous"
[[servers]]
id = "rebel"
command = {python}
args = ["-m", "tests.security.rebel_server"]
cwd = {root}
env = {{ RAN = "{folder}/ran" }}
[servers.tools.harm]
risk = "dangerous"
[servers.tools.change]
risk = "safe"
[servers.tools.attack]
risk = "safe"
[servers.tools.approve_own]
risk = "safe"
"""
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
pytestmark = pytest.mark.timeout(300)
CHANGED = "has changed since it was accepted"
YES = json.dumps({"verdict": "accept"})


@dataclass
class Scene:
    """A gateway before the rebel, and the desk of the person who started it."""

    program: Program
    origin: str
    folder: Path
    desk: Desk

    @property
    def token(self) -> str:
        record = find_gateway_by_url(self.origin)
        assert record is not None
        return record.token

    @property
    def ran(self) -> list[str]:
        file = self.folder / "ran"
        return file.read_text().split() if file.exists() else []

    def call(self, tool: str, **given: object) -> tuple[int, Any]:
        """As a client without any credential."""
        status, said = fetch(f"{self.origin}/tools/rebel__{tool}", json.dumps(given).encode())
        return status, json.loads(said)

    def asked(self, n: str) -> dict[str, Any]:
        """What is told of a call of `harm` that waits."""
        _, said = self.call("harm", n=n)
        assert said["error"]["data"]["details"]["status"] == "pending_approval", said
        return said["error"]["data"]

    def attack(self, *requests: tuple[str, str, str, str]) -> tuple[list[tuple[int, str]], Any]:
        """What the server's own process is answered, and its environment."""
        told = [(method, f"{self.origin}{path}", *rest) for method, path, *rest in requests]
        status, said = self.call("attack", requests=told)
        assert status == 200, said
        found = said["structuredContent"]
        return [tuple(each) for each in found["answers"]], found["environment"]

    def operate(self, *words: str) -> str:
        done = self.desk.run(*words, "--url", self.origin)
        assert done.status == 0, done.err
        return done.out

    @property
    def refusal(self) -> str:
        """Why a call of `harm` does not run now."""
        return str(self.call("harm", n="x")[1]["error"]["message"])

    def until_changed(self) -> None:
        self.call("change", description="It harms in secret.")
        self.program.wait_until(lambda: CHANGED in self.refusal)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Generator[Scene]:
    folder = tmp_path_factory.mktemp("rebel")
    python, root = json.dumps(str(Path(COMITY).with_name("python"))), json.dumps(str(ROOT))
    config = folder / "comity.toml"
    config.write_text(CONFIG.format(folder=folder, python=python, root=root))
    with running(
        [COMITY, "serve", "-c", str(config), "--port", "0"], {"LOG_LEVEL": "DEBUG"}
    ) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield Scene(program, origin, folder, Desk(folder))


def test_attack_22_a_server_cannot_approve_its_own_call(scene: Scene) -> None:
    ask = scene.asked("1")["details"]["approval_id"]
    page = f"/approvals/{ask}"
    form = urllib.parse.urlencode({"t": "", "verdict": "accept", "key": ""})
    told, _ = scene.attack(
        ("GET", "/api/approvals", JSON, ""),
        ("GET", f"/api/approvals/{ask}", JSON, ""),
        ("POST", f"/api/approvals/{ask}/answer", JSON, YES),
        ("POST", f"/api/approvals/{ask}/link", JSON, "{}"),
        ("POST", "/api/grants", JSON, json.dumps({"subject": "person:local", "target": "*"})),
        ("GET", page, JSON, ""),
        ("POST", page, FORM, form),
    )
    api, (look, post) = told[:5], told[5:]
    assert [status for status, _ in api] == [401] * 5
    assert all("operator token" in said for _, said in api)
    assert "comity approve" in look[1]
    assert "rebel" not in look[1]
    assert 'name="verdict"' not in look[1]
    assert post[0] in (401, 403)
    _, again = scene.call("harm", n="1")
    assert again["error"]["data"]["details"]["approval_id"] == ask
    assert scene.ran == []


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_attack_22_a_server_cannot_approve_its_own_call_as_a_client(
    scene: Scene, mode: str
) -> None:
    status, said = scene.call("approve_own", url=f"{scene.origin}/mcp", mode=mode, n=f"own-{mode}")
    assert status == 200, said
    found = said["structuredContent"]
    assert (found["asked"], found["is_error"]) == ([], True), found
    assert "comity approve" in found["text"]
    assert f"own-{mode}" not in scene.ran


def test_attack_02_a_server_cannot_accept_its_own_changed_tool(scene: Scene) -> None:
    scene.until_changed()
    accept = json.dumps({"server": "rebel", "tools": ["harm"]})
    told, _ = scene.attack(
        ("GET", "/api/definitions/rebel/harm", JSON, ""),
        ("GET", "/api/definitions?server=rebel", JSON, ""),
        ("POST", "/api/definitions/accept", JSON, accept),
        ("POST", "/api/servers/rebel/restart", JSON, "{}"),
    )
    assert [status for status, _ in told] == [401] * 4
    assert CHANGED in scene.refusal
    scene.operate("tools", "accept", "rebel", "harm")
    scene.asked("accepted by its operator")


def test_a_server_is_given_neither_the_token_nor_the_way_to_it(scene: Scene) -> None:
    _, environment = scene.attack()
    assert not [name for name in environment if name.startswith(("COMITY_", "XDG_"))]
    assert scene.token not in json.dumps(environment)


def test_the_operator_approves_by_the_command_and_the_call_runs_once(scene: Scene) -> None:
    told = scene.asked("2")
    ask = told["details"]["approval_id"]
    assert any("comity approve" in each for each in told["suggestions"]), told
    scene.operate("approve", ask, "--yes")
    status, said = scene.call("harm", n="2")
    assert (status, said["structuredContent"]) == (200, {"done": "harm"})
    assert scene.ran.count("2") == 1


def test_the_operator_approves_by_a_signed_link(scene: Scene) -> None:
    ask = scene.asked("3")["details"]["approval_id"]
    link = scene.operate("approvals", "link", ask).strip()
    status, page = fetch(link)
    found = re.search(r'name="t" value="([^"]+)"', page.decode())
    assert (status, found is not None) == (200, True), page
    assert found is not None
    form = {"t": html.unescape(found[1]), "verdict": "accept", "word": "harm"}
    filled = urllib.parse.urlencode(form)
    status, _ = fetch(link.partition("?")[0], filled.encode(), {"Content-Type": FORM})
    assert status == 200
    assert scene.call("harm", n="3")[0] == 200
    assert scene.ran.count("3") == 1


def test_the_token_is_in_no_log_line_and_in_no_audit_entry(scene: Scene) -> None:
    scene.operate("approvals")
    exported = scene.operate("audit", "export")
    assert "TOOL_EXECUTED" in exported
    assert scene.token not in exported + scene.program.said
    assert not [file for file in scene.folder.iterdir() if _holds(file, scene.token)]


def _holds(file: Path, token: str) -> bool:
    return file.is_file() and token.encode() in file.read_bytes()


def test_metrics_need_no_token_and_a_wrong_one_is_refused(scene: Scene) -> None:
    assert fetch(f"{scene.origin}/metrics")[0] == 200
    wrong = {"Authorization": f"Bearer {scene.token[:-1]}"}
    assert fetch(f"{scene.origin}/api/status", headers=wrong)[0] == 401
    assert fetch(f"{scene.origin}/metrics", headers=wrong)[0] == 401
    assert fetch(f"{scene.origin}/api/status")[0] == 200, "with the token, which `fetch` shows"
