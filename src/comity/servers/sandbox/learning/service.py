"""Runs a server with wide rights, calls its tools, and records what it touches.

The server runs at the level `basic`. Its files are recorded by `strace`, and its hosts by the
network proxy, which grants every host but the gateway itself.
"""

import asyncio
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from comity.catalog.catalog import Catalog
from comity.catalog.listing import CatalogReader, gateway_envelope
from comity.config.files import state_folder
from comity.errors import MalformedMessage, Unavailable
from comity.http.client.dial import Resolver
from comity.mcp import jsonrpc, protocol
from comity.mcp.entries import EntryKind
from comity.mcp.jsonrpc import UNSET
from comity.servers.connections import ConnectionOptions, ServerConnections
from comity.servers.process.process import ServerCommand, environment_for
from comity.servers.sandbox.egress import EgressEvent, EgressProxy, OpenStream
from comity.servers.sandbox.egress_rules import (
    ANY_HOST,
    EgressRules,
    EgressTarget,
    OwnAddresses,
)
from comity.servers.sandbox.launch import EgressDoor, proxy_variables
from comity.servers.sandbox.learning.proposal import (
    LearningBounds,
    PermissionProposal,
    propose_files,
    propose_hosts,
)
from comity.servers.sandbox.learning.trace import TracedAccess, read_trace, trace_command
from comity.servers.sandbox.model import MEGABYTE, SandboxAccess, SandboxLevel, SandboxLimits
from comity.servers.sandbox.programs import find_program_files
from comity.servers.sandbox.reach import FolderHandles
from comity.servers.sandbox.service import SandboxRequest, SandboxRun, SandboxService
from comity.servers.transports.stdio import CommandSource, StdioTransportFactory
from comity.validation.compiled_schemas import CachedSchemaChecker

MAX_ANSWER_CHARACTERS: Final = 300
"""How much of a failed call's answer the person is shown."""

# The last step before the server is a program too, and the trace begins with it.
_PROGRAMS_BEFORE_SERVER: Final = 2
_WIDE_LIMITS: Final = SandboxLimits(memory=4096 * MEGABYTE, processes=512, open_files=8192)
_WIDE_REQUEST: Final = SandboxRequest(
    SandboxLevel.BASIC.label,
    must_confine=False,
    access=SandboxAccess(readable=("/",), may_execute=True),
    limits=_WIDE_LIMITS,
)


@dataclass(frozen=True, slots=True)
class LearningCall:
    """One call of a tool during a learning run."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LearningSetup:
    """The server to run, and the means to run it. Without `strace` only hosts are recorded."""

    server: str
    command: CommandSource
    options: ConnectionOptions
    call_timeout: float
    connect: OpenStream
    own_addresses: OwnAddresses
    strace: str | None


@dataclass(slots=True)
class LearningOutcome:
    """The proposal of a run, the tools that the server lists, and why each call failed."""

    proposal: PermissionProposal
    tools: list[str]
    failures: list[str]


class LearningRules(EgressRules):
    """Grants every name with public addresses, and every address but those of the gateway."""

    def is_granted(self, target: EgressTarget) -> bool:
        return True


async def learn_server(setup: LearningSetup, calls: Sequence[LearningCall]) -> LearningOutcome:
    """Run a server, make these calls, and propose its permissions.

    Raises Unavailable if the server does not start.
    """
    with tempfile.TemporaryDirectory(prefix="comity-learn-") as folder:
        run = _LearningRun(setup, Path(folder))
        try:
            tools, failures = await run.exercise(calls)
        finally:
            await run.close()
        return LearningOutcome(await asyncio.to_thread(run.propose), tools, failures)


def read_calls(lines: Iterable[str]) -> list[LearningCall]:
    """Read calls from lines of JSON with `tool` and `arguments`. Raises MalformedMessage."""
    found: list[LearningCall] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            said: Any = json.loads(line)
            tool, arguments = said["tool"], said.get("arguments", {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            tool = arguments = None
        if not isinstance(tool, str) or not isinstance(arguments, dict):
            raise MalformedMessage(
                f'line {number} is not a call, as {{"tool": "read", "arguments": {{}}}}'
            )
        found.append(LearningCall(tool, cast("dict[str, Any]", arguments)))
    return found


class _LearningRun:
    """One run, with the proxy, the traces and the connection to the server."""

    def __init__(self, setup: LearningSetup, folder: Path) -> None:
        self._setup = setup
        self._folder = folder
        self._bounds: LearningBounds | None = None
        self._traces: list[Path] = []
        self._sandboxes = SandboxService(self._make_proxy)
        self._schemas = CachedSchemaChecker()
        self._catalog = Catalog()
        listener = socket.create_server(("127.0.0.1", 0))
        self._door = EgressDoor(port=listener.getsockname()[1])
        self._hosts: set[str] = set()
        self._refused: set[str] = set()
        self._proxy = self._make_proxy(setup.server, (ANY_HOST,), listener)
        self._connections = ServerConnections(
            setup.server,
            StdioTransportFactory(setup.server, setup.command, self._enter),
            CatalogReader(self._catalog, self._schemas),
            setup.options,
            lambda: None,
        )

    async def exercise(self, calls: Sequence[LearningCall]) -> tuple[list[str], list[str]]:
        """Start the server and make the calls. Return its tools, and the calls that failed."""
        await self._proxy.start()
        await self._connections.start()
        failures = [failure for call in calls if (failure := await self._call(call))]
        return self._catalog.names(self._setup.server, EntryKind.TOOL), failures

    async def close(self) -> None:
        await self._connections.close_shared()
        await self._proxy.close()
        await self._sandboxes.close()
        await self._schemas.close()

    def propose(self) -> PermissionProposal:
        """Read the traces. This blocks for a moment."""
        proposal = PermissionProposal()
        if self._bounds is not None and self._setup.strace is not None:
            propose_files(proposal, self._read_traces(), self._bounds)
        propose_hosts(proposal, self._hosts)
        proposal.note("The proxy refused connections that no permission allows", self._refused)
        return proposal

    def _read_traces(self) -> TracedAccess:
        whole = TracedAccess()
        for file in self._traces:
            access = read_trace(file, _PROGRAMS_BEFORE_SERVER)
            whole.read |= access.read
            whole.written |= access.written
            whole.seen_folders |= access.seen_folders
            whole.executed |= access.executed
            whole.connected |= access.connected - {f"127.0.0.1:{self._door.port}"}
            whole.is_complete &= access.is_complete
        return whole

    async def _enter(self, command: ServerCommand) -> SandboxRun:
        """Prepare a start of the server: with wide rights, the proxy, and a trace."""
        proxied = {**proxy_variables(self._door), **command.env}
        run = await self._sandboxes.enter(
            self._setup.server, replace(command, env=proxied), _WIDE_REQUEST, FolderHandles({})
        )
        folder = str(Path.cwd() / (command.cwd or ""))
        environment = environment_for(run.command.env, os.environ)
        self._bounds = LearningBounds(
            find_program_files(command.argv, environment, folder),
            folder,
            scratch=(str(run.scratch), str(self._folder)),
            state=str(state_folder().resolve()),
            home=str(Path.home().resolve()),
        )
        if self._setup.strace is not None:
            file = self._folder / f"trace-{len(self._traces)}"
            self._traces.append(file)
            argv = trace_command(self._setup.strace, str(file), run.command.argv)
            run.command = replace(run.command, argv=argv)
        return run

    async def _call(self, call: LearningCall) -> str:
        """Call a tool. Return why it failed, or an empty text."""
        own, modern = self._connections.own_connection, self._connections.own_modern_connection
        shared = own or modern
        if shared is None:
            return f"{call.tool}: the server is gone"
        params: dict[str, object] = {"name": call.tool, "arguments": dict(call.arguments)}
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if own is None:
            params["_meta"] = gateway_envelope()
            headers = ((protocol.METHOD_HEADER, protocol.CALL_TOOL.encode()),)
        try:
            async with asyncio.timeout(self._setup.call_timeout):
                answer = await shared.connection.request(protocol.CALL_TOOL, params, headers)
        except (Unavailable, TimeoutError) as error:
            return f"{call.tool}: {error or 'it did not answer in time'}"
        return f"{call.tool}: {failure}" if (failure := _failure_of(answer)) else ""

    def _make_proxy(
        self, server: str, hosts: tuple[str, ...], listener: socket.socket
    ) -> EgressProxy:
        return EgressProxy(
            server,
            listener,
            LearningRules(hosts, self._setup.own_addresses),
            resolve=Resolver(time.monotonic).resolve,
            connect=self._setup.connect,
            on_event=self._on_connection,
        )

    def _on_connection(self, event: EgressEvent) -> None:
        if not event.host:
            return
        target = str(EgressTarget(event.host, event.port))
        # A host that does not answer now is one that the server asked for all the same.
        if event.outcome == "refused":
            self._refused.add(f"{target} ({event.reason})")
        else:
            self._hosts.add(target)


def _failure_of(answer: jsonrpc.Frame) -> str:
    error = jsonrpc.error_of(answer)
    if error is not None:
        return error.message[:MAX_ANSWER_CHARACTERS] or "it failed"
    if answer.result is UNSET:
        return ""
    try:
        result = jsonrpc.decode_members(answer.result)
        if jsonrpc.decode_value(result.get("isError", jsonrpc.to_raw(False))) is not True:
            return ""
        return json.dumps(jsonrpc.decode_value(result["content"]))[:MAX_ANSWER_CHARACTERS]
    except (MalformedMessage, KeyError):
        return "its answer cannot be read"
