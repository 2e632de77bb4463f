"""`comity servers update` and the start of locked servers, with real programs and packages."""

import re
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from comity.config.toml_writer import toml_value
from tests.cli.program import Desk, Terminal
from tests.interop.processes import Program, free_port, running
from tests.servers.packages.local_index import (
    NpmIndex,
    npm_environment,
    npm_index,
    uv_environment,
    write_wheel,
)
from tests.support.fork_server import COMITY

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed"),
    pytest.mark.skipif(not shutil.which("uv"), reason="uv is not installed"),
]
type Entry = dict[str, Any]

NODE: Entry = {"id": "node", "command": "npx", "args": ["-y", "greeter-mcp", "hello"]}
PYTHON: Entry = {"id": "py", "command": "uvx", "args": ["greeter-py"], "env": {"LEVEL": "info"}}


@dataclass
class Bench:
    """A desk with two packages, and the file that runs both."""

    desk: Desk
    index: NpmIndex
    wheels: Path

    @property
    def config(self) -> Path:
        return self.desk.folder / "comity.toml"

    @property
    def lock(self) -> Path:
        return self.desk.folder / "comity.lock"

    @property
    def packages(self) -> Path:
        return Path(self.desk.env["COMITY_STATE_DIR"]) / "packages"

    def configure(self, *entries: Entry) -> None:
        tables = [
            "\n".join(f"{name} = {toml_value(value)}" for name, value in entry.items())
            for entry in entries
        ]
        store = f"[store]\nurl = {toml_value(f'sqlite:///{self.desk.folder}/comity.db')}\n"
        self.config.write_text(store + "".join(f"[[servers]]\n{each}\n" for each in tables))

    def update(self, *arguments: str) -> Any:
        done = self.desk.run("servers", "update", "-c", "comity.toml", "-o", "json", *arguments)
        assert done.status == 0, done.err
        return {
            each["id"]: [change["part"] for change in each["differences"]]
            for each in done.json["servers"]
        }

    def is_clean(self, *arguments: str) -> bool:
        done = self.desk.run("servers", "update", "-c", "comity.toml", "--check", *arguments)
        assert done.status in (0, 1), done.err
        return done.status == 0

    @contextmanager
    def served(self) -> Generator[Callable[[str], Any]]:
        """A gateway that has tried every server, and a function that shows one of them."""
        port = free_port()
        words = [COMITY, "serve", "-c", str(self.config), "--port", str(port)]
        with running(words, self.desk.env) as program:
            wait_for_starts(program, self.config.read_text().count("[[servers]]"))

            def show(name: str) -> Any:
                url = f"http://127.0.0.1:{port}"
                done = self.desk.run("servers", "show", name, "--url", url, "-o", "json")
                assert done.status == 0, done.err
                return done.json

            yield show


def wait_for_starts(program: Program, count: int) -> None:
    program.wait_until(lambda: len(re.findall(r"is (?:not )?ready", program.said)) >= count)


@pytest.fixture(scope="module")
def index() -> Iterator[NpmIndex]:
    with npm_index() as index:
        yield index


@pytest.fixture
def bench(index: NpmIndex, tmp_path: Path) -> Bench:
    wheels = tmp_path / "wheels"
    environ = npm_environment(index, tmp_path) | uv_environment(wheels, tmp_path)
    desk = Desk(tmp_path, **environ, COMITY_STATE_DIR=str(tmp_path / "state"))
    index.manifests.clear()
    index.publish_greeter("1.0.0")
    write_wheel(wheels, "1.0.0")
    found = Bench(desk, index, wheels)
    found.configure(NODE, PYTHON)
    return found


def test_packages_run_from_the_store_at_the_approved_version(bench: Bench) -> None:
    found = bench.update("--yes")
    assert "package" in found["node"]
    assert "environment names" in found["py"]
    text = bench.lock.read_text()
    assert "127.0.0.1" not in text
    assert str(bench.desk.folder.parent) not in text
    bench.index.publish_greeter("2.0.0", "does something else")
    write_wheel(bench.wheels, "2.0.0", "does something else")
    bench.index.requests.clear()
    with bench.served() as show:
        for name in ("node", "py"):
            server = show(name)
            assert server["state"] == "connected", server
            assert (server["info"]["version"], server["tools"]) == ("1.0.0", 1)
    assert bench.index.requests == []
    assert bench.is_clean()


def test_an_update_shows_the_new_package_and_its_changed_tools(bench: Bench) -> None:
    bench.configure(PYTHON)
    bench.update("--yes")
    assert bench.update("--yes") == {}
    write_wheel(bench.wheels, "2.0.0", "does something else")
    assert bench.is_clean()
    done = bench.desk.run("servers", "update", "-c", "comity.toml", "--yes")
    assert done.status == 0, done.err
    assert "greeter-py 1.0.0" in done.out
    assert "greeter-py 2.0.0" in done.out
    assert "does something else" in done.out
    assert bench.is_clean()
    with bench.served() as show:
        assert show("py")["info"]["version"] == "2.0.0"
        diff = bench.desk.run("tools", "diff", "-c", "comity.toml", "--exit-code")
        assert diff.status == 0, diff.out


def test_a_person_is_asked_and_may_refuse(bench: Bench) -> None:
    bench.configure(PYTHON)
    done = bench.desk.run("servers", "update", "-c", "comity.toml")
    assert done.status != 0
    assert "add --yes" in done.err
    assert not bench.lock.exists()
    with Terminal(bench.desk, "servers", "update", "-c", "comity.toml", "--no-start") as terminal:
        terminal.until("[y/N]")
        terminal.type("n\n")
        assert terminal.end() != 0
    assert not bench.lock.exists()
    with Terminal(bench.desk, "servers", "update", "-c", "comity.toml", "--no-start") as terminal:
        terminal.until("[y/N]")
        terminal.type("y\n")
        assert terminal.end() == 0
    assert bench.lock.exists()


ATTACKS: dict[str, tuple[Entry, str]] = {
    "arguments": ({**NODE, "args": ["-y", "greeter-mcp", "other"]}, "arguments"),
    "package": ({**NODE, "args": ["-y", "greeting-words"]}, "arguments"),
    "command": ({**NODE, "command": "bunx"}, "command"),
    "environment": ({**NODE, "env": {"NODE_OPTIONS": "--require /tmp/x"}}, "environment names"),
    "folder": ({**NODE, "cwd": "/tmp"}, "working directory"),
    "remote": ({"id": "node", "url": "http://127.0.0.1:1/mcp"}, "command"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_server_that_differs_from_the_lock_does_not_start(bench: Bench, attack: str) -> None:
    entry, part = ATTACKS[attack]
    bench.configure(NODE)
    bench.update("--yes", "--no-start")
    bench.configure(entry)
    assert not bench.is_clean("--no-start")
    with bench.served() as show:
        server = show("node")
        assert server["state"] != "connected"
        assert f"differs from comity.lock in: {part}" in server["reason"]
        assert "`comity servers update node`" in server["reason"]


def test_a_server_that_the_lock_does_not_have_does_not_start(bench: Bench) -> None:
    bench.configure(NODE)
    bench.update("--yes", "--no-start")
    bench.configure(NODE, PYTHON)
    with bench.served() as show:
        assert show("node")["state"] == "connected"
        assert "is not in comity.lock" in show("py")["reason"]


def test_a_variable_cannot_swap_the_package(bench: Bench) -> None:
    bench.configure({**NODE, "args": ["-y", "${WHICH:-greeter-mcp}", "hello"]})
    bench.update("--yes", "--no-start")
    bench.desk.env["WHICH"] = "greeting-words"
    with bench.served() as show:
        assert (
            "has the package greeter-mcp for it, but it runs greeting-words"
            in (show("node")["reason"])
        )


def test_a_changed_file_in_the_store_stops_the_start_until_an_update(bench: Bench) -> None:
    bench.configure(NODE)
    bench.update("--yes", "--no-start")
    program = next(bench.packages.rglob("main.js"))
    program.chmod(0o700)
    program.write_text(program.read_text() + "// evil")
    with bench.served() as show:
        assert "main.js was changed" in show("node")["reason"]
    assert not bench.is_clean("--no-start")
    assert bench.update("--yes", "--no-start") == {"node": ["files of greeter-mcp"]}
    with bench.served() as show:
        assert show("node")["state"] == "connected"


def test_another_machine_installs_exactly_the_locked_packages(bench: Bench) -> None:
    bench.update("--yes", "--no-start")
    shutil.move(bench.packages, bench.packages.with_name("gone"))
    bench.index.publish_greeter("2.0.0")
    write_wheel(bench.wheels, "2.0.0")
    with bench.served() as show:
        assert show("node")["info"]["version"] == "1.0.0"
        assert show("py")["info"]["version"] == "1.0.0"


def test_a_tool_that_differs_from_the_lock_is_disabled(bench: Bench) -> None:
    bench.configure(NODE)
    bench.update("--yes")
    text = re.sub(r"greet = .*", f'greet = "{"0" * 64}"', bench.lock.read_text())
    for changed, state in ((text, "changed"), (text.replace("greet =", "other ="), "new")):
        bench.lock.write_text(changed)
        with bench.served() as show:
            assert show("node")["state"] == "connected"
            diff = bench.desk.run("tools", "diff", "-c", "comity.toml", "-o", "json").json
            assert [(each["tool"], each["state"]) for each in diff["tools"]] == [("greet", state)]
            called = bench.desk.run("call", "node__greet", "-c", "comity.toml")
            assert called.status != 0
            assert "`comity servers update node`" in called.err
        assert not bench.is_clean()
    bench.update("--yes")
    with bench.served():
        called = bench.desk.run("call", "node__greet", "-c", "comity.toml")
        assert (called.status, called.out) == (0, "hello\n")


def test_a_running_gateway_follows_the_lock_file(bench: Bench) -> None:
    bench.configure(NODE)
    bench.update("--yes")
    with bench.served() as show:
        assert show("node")["info"]["version"] == "1.0.0"
        bench.index.publish_greeter("2.0.0")
        bench.update("--yes")
        seen = (show("node") for _ in range(60))
        assert any(each["info"] and each["info"]["version"] == "2.0.0" for each in seen)


def test_without_a_lock_the_setting_decides_where_a_package_runs(bench: Bench) -> None:
    bench.configure({**NODE, "packages": "store"}, PYTHON)
    with bench.served() as show:
        assert show("node")["info"]["version"] == "1.0.0"
    assert [each.name for each in bench.packages.rglob("main.js")] == ["main.js"]
    assert list(bench.packages.rglob("greeter_py.py")) == []
    bench.index.publish_greeter("2.0.0")
    with bench.served() as show:
        assert show("node")["info"]["version"] == "1.0.0"


def test_a_package_that_runs_as_written_is_locked_by_its_command_alone(bench: Bench) -> None:
    bench.configure({**NODE, "packages": "as_written"})
    bench.update("--yes", "--no-start")
    assert "package" not in bench.lock.read_text().split("[[servers]]")[1]
    assert not bench.packages.exists()
