"""Where the matrix is played: all servers once, Comity before them, and one client after another.

No two clients are at the same server at the same time: whether a server noticed that a call was
called off, and whom it told of a change, could not be told apart otherwise.
"""

import json
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.governance import governed
from tests.interop.matrix.cells import Cell, Outcomes
from tests.interop.matrix.parties import Client, Plan, Server, servers
from tests.interop.peers import ROOT
from tests.interop.processes import accepts, comity, free_port, on_pipes, running

# Servers that one client visits at the same time.
TOGETHER = 4
DRIVER_SECONDS = 900

DIRECTLY = "directly"
SERVER_ADDRESS = "server address"
ALL_SERVERS = "all servers"
STDIO = "stdio"
OTHER_VERSION = "other version"
DOORS = (SERVER_ADDRESS, OTHER_VERSION, ALL_SERVERS, STDIO)

# `comity serve --stdio` is the door of all servers once more, joined anew for each visit.
OVER_STDIO = ("python1-stdio", "python2-http")

# Servers that speak both eras, and that Comity is told to speak only one of them with: a client of
# the other is then understood over the bridge or not at all.
PROTOCOLS = {"handshake": "2025-11-25", "modern": "2026-07-28"}
PINNED = (
    ("python2-http", "modern"),
    ("python2-http", "handshake"),
    ("python2-stdio", "modern"),
    ("fastmcp-http", "handshake"),
)

type Order = dict[str, Any]
type Entry = dict[str, Any]


def servers_behind(door: str, client: Client, cast: Sequence[Server]) -> list[Server]:
    """The servers that a client visits by one door."""
    if door in (SERVER_ADDRESS, ALL_SERVERS):
        return list(cast)
    foreign = [name for name, era in PINNED if era != client.era]
    visited = foreign if door == OTHER_VERSION else OVER_STDIO
    return [server for server in cast if server.id in visited]


@dataclass
class Stage:
    """Everything that runs, and what was played on it."""

    folder: Path
    served: Path
    servers: tuple[Server, ...]
    origins: Mapping[str, str]
    gateway: str
    doors: tuple[str, ...] = DOORS
    _played: dict[str, list[Cell]] = field(default_factory=dict[str, list[Cell]])

    def play(self, client: Client) -> list[Cell]:
        """One client at all servers, by all doors; what differs has to do so twice.

        A client has its deadlines, and a busy machine may keep its last call open into the next.
        """
        if client.id not in self._played:
            cells = self._play(client)
            if any(cell.differences() for cell in cells):
                again = {(cell.door, cell.server.id): cell for cell in self._play(client)}
                cells = [
                    again[cell.door, cell.server.id] if cell.differences() else cell
                    for cell in cells
                ]
            self._played[client.id] = cells
        return self._played[client.id]

    def play_again(self, client: Client) -> None:
        """Once more; of each cell the better half stays, with Comity and without it."""
        again = {(cell.door, cell.server.id): cell for cell in self._play(client)}
        self._played[client.id] = [
            cell.better_of(again[cell.door, cell.server.id]) for cell in self.play(client)
        ]

    @property
    def played(self) -> list[Cell]:
        return [cell for cells in self._played.values() for cell in cells]

    def _play(self, client: Client) -> list[Cell]:
        behind = {door: servers_behind(door, client, self.servers) for door in self.doors}
        rounds = [[self._straight(server) for server in self.servers]]
        rounds += [[self._at(door, each, client) for each in behind[door]] for door in self.doors]
        outcomes = _drive(client, rounds)
        return [
            Cell(
                client,
                server,
                door,
                through=outcomes[f"{door}/{server.id}"],
                directly=outcomes[f"{DIRECTLY}/{server.id}"],
            )
            for door in self.doors
            for server in behind[door]
        ]

    def _straight(self, server: Server) -> Order:
        command = server.command("") if server.over == "stdio" else []
        where = {"over": server.over, "url": self._url(server), "command": command}
        return {"id": f"{DIRECTLY}/{server.id}", **where, "plan": server.plan(self.served)}

    def _at(self, door: str, server: Server, client: Client) -> Order:
        plan = server.plan(self.served)
        # Whatever the server speaks, a client that can speak of the modern era does so with Comity.
        plan["list"]["era"] = client.era
        name = {"id": f"{door}/{server.id}"}
        if door in (SERVER_ADDRESS, OTHER_VERSION):
            era = "handshake" if client.era == "modern" else "modern"
            known_as = server.id if door == SERVER_ADDRESS else f"{server.id}-{era}"
            url = f"{self.gateway}/servers/{known_as}/mcp"
            return {**name, "over": "http", "url": url, "command": [], "plan": plan}
        prefixed = _prefixed(plan, f"{server.id}__")
        if door == ALL_SERVERS:
            url = f"{self.gateway}/mcp"
            return {**name, "over": "http", "url": url, "command": [], "plan": prefixed}
        config = self.folder / f"{server.id}.json"
        _write(config, {server.id: entry_of(server, self.origins)})
        command = on_pipes(config)
        return {**name, "over": "stdio", "url": "", "command": command, "plan": prefixed}

    def _url(self, server: Server) -> str:
        return f"{self.origins[server.id]}{server.path}" if server.id in self.origins else ""


@contextmanager
def staged(folder: Path) -> Generator[Stage]:
    """All servers and Comity, started; `folder` is for what they need."""
    served = folder / "served"
    served.mkdir()
    (served / "read.me").write_text("Read me.")
    cast = servers(served)
    with ExitStack() as stack:
        origins = started([each for each in cast if each.over != "stdio"], stack)
        config = folder / "mcp.json"
        _write(config, _entries(cast, origins))
        gateway = stack.enter_context(comity(config))
        yield Stage(folder, served, cast, origins, gateway)


@contextmanager
def staged_governed(folder: Path, names: Sequence[str]) -> Generator[Stage]:
    """A few of the servers, before which Comity asks for credentials and judges every call."""
    served = folder / "served"
    served.mkdir()
    (served / "read.me").write_text("Read me.")
    cast = tuple(server for server in servers(served) if server.id in names)
    with ExitStack() as stack:
        origins = started([each for each in cast if each.over != "stdio"], stack)
        entries = {server.id: entry_of(server, origins) for server in cast}
        gateway = stack.enter_context(governed(entries, folder))
        yield Stage(folder, served, cast, origins, gateway, (SERVER_ADDRESS, ALL_SERVERS))


def started(listening: Sequence[Server], stack: ExitStack) -> dict[str, str]:
    """All at once, because most of a start is the import of an SDK."""
    ports = {server.id: free_port() for server in listening}
    programs = {
        server.id: stack.enter_context(
            running(
                server.command(str(ports[server.id])),
                {**server.env(str(ports[server.id]))},
            )
        )
        for server in listening
    }
    for name, program in programs.items():
        program.wait_until(lambda port=ports[name]: accepts(port))
    return {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}


def _entries(cast: Sequence[Server], origins: Mapping[str, str]) -> dict[str, Entry]:
    entries = {server.id: entry_of(server, origins) for server in cast}
    return entries | {
        f"{name}-{era}": {**entries[name], "protocol": PROTOCOLS[era]} for name, era in PINNED
    }


def entry_of(server: Server, origins: Mapping[str, str]) -> Entry:
    if server.over == "stdio":
        program, *arguments = server.command("")
        return {"command": program, "args": arguments}
    return {"type": server.over, "url": f"{origins[server.id]}{server.path}"}


def _write(path: Path, entries: Mapping[str, Entry]) -> None:
    path.write_text(json.dumps({"mcpServers": entries}))


def _prefixed(plan: Plan, prefix: str) -> Plan:
    """The same plan where the tools carry their server's name."""
    names = ("tool", "witness")
    renamed: Plan = {}
    for feature, steps in plan.items():
        renamed[feature] = {
            name: f"{prefix}{value}" if name in names else value for name, value in steps.items()
        }
        for later in steps.keys() & {"still", "then"}:
            renamed[feature][later] = {
                **steps[later],
                "tool": f"{prefix}{steps[later]['tool']}",
            }
        if steps.get("of") == "tools":
            renamed[feature]["appears"] = f"{prefix}{steps['appears']}"
    return renamed


def _drive(client: Client, rounds: list[list[Order]]) -> dict[str, Outcomes]:
    orders = {"mode": client.mode, "together": TOGETHER, "rounds": rounds}
    done = subprocess.run(
        client.command(),
        cwd=ROOT,
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        timeout=DRIVER_SECONDS,
        check=False,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"id"')]
    expected = [order["id"] for orders in rounds for order in orders]
    if done.returncode != 0 or {each["id"] for each in said} != set(expected):
        raise RuntimeError(f"{client.title} did not come through:\n{done.stderr[-8000:]}")
    return {each["id"]: each["outcomes"] for each in said}
