"""Confines the processes of servers, each with what it may reach when it starts."""

import asyncio
import grp
import itertools
import os
import pwd
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

from comity.errors import Unavailable
from comity.servers.process.process import LAST_OUTPUT, ServerCommand, environment_for
from comity.servers.sandbox.cgroups import ControlGroup, ControlGroups
from comity.servers.sandbox.launch import SCRATCH, EgressDoor, proxy_variables, sandbox_command
from comity.servers.sandbox.levels import MachineSandbox, detect_levels
from comity.servers.sandbox.model import (
    MEGABYTE,
    SandboxAccess,
    SandboxLevel,
    SandboxLimits,
    SandboxPolicy,
)
from comity.servers.sandbox.oci import Container, EngineChoice, find_engine
from comity.servers.sandbox.programs import data_words
from comity.servers.sandbox.reach import FolderHandles
from comity.servers.sandbox.refusals import RefusalHints
from comity.toolkit.folders import holds_more, remove_folder

_SOCKET: Final = "egress"
_HANDOVER_SECONDS = 30.0
# Neither distributions nor systemd assign these, and a container with 65,536 users has them.
_USERS: Final = range(60706, 61184)


class NetworkProxy(Protocol):
    """The network of one confined server."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def end_connections(self) -> None: ...


type ProxyFactory = Callable[[str, tuple[str, ...], socket.socket], NetworkProxy]
"""Creates the proxy of a server for the hosts that it may reach and its listening socket."""


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """The confinement of a server at its next start. `wanted` is a level or `auto`."""

    wanted: str
    must_confine: bool
    access: SandboxAccess
    limits: SandboxLimits

    @property
    def is_confined(self) -> bool:
        return self.must_confine or self.wanted != SandboxLevel.NONE.label


class ServerUsers:
    """Lends each server of root a user that nothing else runs as. Its group has the same number."""

    def __init__(self) -> None:
        self._lent: set[int] = set()

    def take(self) -> int:
        """Return a free user, or 0 if this process is not root.

        Raises Unavailable if all of them are in use.
        """
        if os.geteuid() != 0:
            return 0
        free = set(_USERS) - self._lent
        while free:
            # Another gateway of this machine takes from the same range.
            user = secrets.choice(tuple(free))
            if not _is_known(user):
                self._lent.add(user)
                return user
            free.discard(user)
        raise Unavailable(
            f"no user is free for another confined server; {len(_USERS)} servers may run at once"
        )

    def give_back(self, user: int) -> None:
        self._lent.discard(user)


def _is_known(user: int) -> bool:
    with suppress(KeyError):
        return bool(pwd.getpwuid(user))
    with suppress(KeyError):
        return bool(grp.getgrgid(user))
    return False


class SandboxService:
    """The sandboxes of one gateway: its levels, its control groups and its folders."""

    def __init__(self, make_proxy: ProxyFactory, engine: EngineChoice = "auto") -> None:
        self._make_proxy = make_proxy
        self._engine: EngineChoice = engine
        self._detected: asyncio.Future[MachineSandbox] | None = None
        self._groups: ControlGroups | None = None
        self._folder: Path | None = None
        self._runs: WeakSet[SandboxRun] = WeakSet()
        self._run_numbers = itertools.count(1)
        self._hints_by_server: dict[str, RefusalHints] = {}
        self._users = ServerUsers()

    async def machine(self) -> MachineSandbox:
        """Return the levels of this machine. The first call finds out.

        Raises Unavailable if the machine is too busy to tell. The next call tries again.
        """
        if self._detected is None:
            self._detected = asyncio.ensure_future(asyncio.to_thread(detect_levels))
        detected = self._detected
        try:
            return await asyncio.shield(detected)
        except Unavailable:
            if self._detected is detected:
                self._detected = None
            raise

    async def enter(
        self,
        server: str,
        command: ServerCommand,
        request: SandboxRequest,
        folders: FolderHandles,
    ) -> "SandboxRun":
        """Return a command that is confined, with what belongs to it.

        The granted folders belong to the run, which closes them. Raises Unavailable if this
        machine cannot confine the command as requested.
        """
        try:
            return await self._enter(server, command, request, folders)
        except BaseException:
            folders.close()
            raise

    async def _enter(
        self,
        server: str,
        command: ServerCommand,
        request: SandboxRequest,
        folders: FolderHandles,
    ) -> "SandboxRun":
        level = SandboxLevel.NONE
        if request.is_confined:
            try:
                level = (await self.machine()).choose(
                    request.wanted, must_confine=request.must_confine
                )
            except Unavailable as refused:
                raise Unavailable(f"server {server!r} is not started: {refused}") from None
        policy = SandboxPolicy(level, request.access, request.limits, folders.by_place)
        run = SandboxRun(server, policy, command, self._users, folders)
        self._runs.add(run)
        if level is SandboxLevel.NONE:
            return run
        if level >= SandboxLevel.LANDLOCK:
            words = data_words(command.argv, command.env)
            search_path = environment_for(command.env, os.environ).get("PATH", os.defpath)
            hints = RefusalHints(server, request.access, words, search_path)
            run.hints = self._hints_by_server[server] = hints
        if level is SandboxLevel.OCI:
            try:
                run.enter_container(self._new_container())
            except Unavailable as refused:
                raise Unavailable(f"server {server!r} is not started: {refused}") from None
            return run
        try:
            await asyncio.to_thread(run.prepare_folders, self._own_folder(), self._create_group)
            if _needs_proxy(level, request.access):
                await run.open_network(partial(self._make_proxy, server, request.access.hosts))
            await asyncio.to_thread(run.confine)
        except BaseException:
            await run.close()
            raise
        return run

    def note_connection_refusal(self, server: str, reason: str) -> None:
        """Keep why the network proxy refused a connection of a server, for its next error."""
        hints = self._hints_by_server.get(server)
        if hints is not None:
            hints.note_connection_refusal(reason)

    def _new_container(self) -> Container:
        engine = find_engine(self._engine)
        if engine is None:
            wanted = "podman or docker" if self._engine == "auto" else self._engine
            raise Unavailable(f"its sandbox is 'oci', and {wanted} is not installed")
        return Container(engine, f"comity-{os.getpid()}-{secrets.token_hex(8)}")

    def end_runs(self, server: str) -> None:
        """End every process of a server at once, because it lost rights."""
        for run in tuple(self._runs):
            if run.server == server:
                run.end_at_once("was ended, because a permission of it was revoked")

    async def end_filled_runs(self) -> None:
        """End the servers whose scratch folder is too large, where no file system bounds it."""
        runs = tuple(self._runs)
        for run in await asyncio.to_thread(_filled_runs, runs):
            most = run.policy.limits.counted_scratch_bytes // MEGABYTE
            run.end_at_once(f"was ended, because its scratch folder held more than {most} MB")

    async def close(self) -> None:
        if self._folder is not None:
            await asyncio.to_thread(remove_folder, self._folder)

    def _own_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="comity-sandbox-"))
            # The users of servers reach their own folders inside, and see no names.
            self._folder.chmod(0o711)
        return self._folder

    def _create_group(self, limits: SandboxLimits) -> ControlGroup | None:
        if self._groups is None:
            self._groups = ControlGroups()
        return self._groups.create(f"{os.getpid()}-{next(self._run_numbers)}", limits)


def _needs_proxy(level: SandboxLevel, access: SandboxAccess) -> bool:
    """Whether a server gets a proxy, which may refuse everything and then says why.

    Without namespaces, the way to the proxy is a port of every machine, which only a grant opens.
    """
    if level is SandboxLevel.LANDLOCK:
        return bool(access.hosts)
    return level is SandboxLevel.BUBBLEWRAP


def _bind(door: socket.socket, folder: Path) -> None:
    """Bind a unix socket in a folder, whose path may be longer than the address of a socket."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        door.bind(f"/proc/self/fd/{descriptor}/{_SOCKET}")
    finally:
        os.close(descriptor)


def _filled_runs(runs: Iterable["SandboxRun"]) -> list["SandboxRun"]:
    return [run for run in runs if run.fills_scratch()]


class SandboxRun:
    """One run of a confined server, with its control group, scratch folder and network."""

    def __init__(
        self,
        server: str,
        policy: SandboxPolicy,
        command: ServerCommand,
        users: ServerUsers,
        folders: FolderHandles,
    ) -> None:
        self.server = server
        self.policy = policy
        self.command = command
        self._users = users
        self._folders = folders
        self._user = users.take() if policy.level is SandboxLevel.LANDLOCK else 0
        self._group: ControlGroup | None = None
        self._scratch: Path | None = None
        self._door: EgressDoor | None = None
        self._proxy: NetworkProxy | None = None
        self._handover: asyncio.Future[None] | None = None
        self.hints: RefusalHints | None = None
        self._container: Container | None = None
        self._kill: Callable[[str], None] | None = None
        # Why it was ended, if it was.
        self._fault = ""

    def enter_container(self, container: Container) -> None:
        """Run the image that the command names. Raise Unavailable if that is not possible."""
        self.command = container.wrap(self.command, self.policy)
        self._container = container

    def on_started(self, kill: Callable[[str], None]) -> None:
        """Note how to end the process for a fault. It ends now if its rights are already gone."""
        self._kill = kill
        if self._fault:
            kill(self._fault)

    def end_at_once(self, fault: str) -> None:
        """End the process and its connections for a fault, without a grace period."""
        self._fault = fault
        if self._proxy is not None:
            self._proxy.end_connections()
        if self._kill is not None:
            self._kill(fault)

    @property
    def scratch(self) -> Path | None:
        """The folder that the server may write to; None if it is not confined."""
        return self._scratch

    def fills_scratch(self) -> bool:
        """Whether the scratch folder holds too much by now. This reads folders.

        With namespaces, the server sees a file system of limited size instead of the folder.
        """
        if self._fault or self._scratch is None or self.policy.level >= SandboxLevel.BUBBLEWRAP:
            return False
        return holds_more(self._scratch, self.policy.limits.counted_scratch_bytes)

    def prepare_folders(
        self, parent: Path, create_group: Callable[[SandboxLimits], ControlGroup | None]
    ) -> None:
        """Create the control group and the scratch folder. This blocks for a moment."""
        self._group = create_group(self.policy.limits)
        self._scratch = Path(tempfile.mkdtemp(dir=parent))

    async def open_network(self, make_proxy: Callable[[socket.socket], NetworkProxy]) -> None:
        """Start the proxy. With namespaces, the sandbox hands over the socket that it serves."""
        assert self._scratch is not None
        if self.policy.level is SandboxLevel.LANDLOCK:
            listener = socket.create_server(("127.0.0.1", 0))
            self._door = EgressDoor(port=listener.getsockname()[1])
            await self._start_proxy(make_proxy(listener))
            return
        self._door = EgressDoor(socket_path=str(self._scratch / _SOCKET))
        door = socket.socket(socket.AF_UNIX)
        try:
            _bind(door, self._scratch)
            door.listen(1)
            door.setblocking(False)
        except BaseException:
            door.close()
            raise
        self._handover = asyncio.ensure_future(self._take_listener(door, make_proxy))

    async def _take_listener(
        self, door: socket.socket, make_proxy: Callable[[socket.socket], NetworkProxy]
    ) -> None:
        """Take the socket from the last step before the server starts, and nothing from others."""
        with door:
            line, _ = await asyncio.get_running_loop().sock_accept(door)
        with line:
            line.settimeout(_HANDOVER_SECONDS)
            _, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, line, 1, 1)
            await self._start_proxy(make_proxy(socket.socket(fileno=descriptors[0])))
            line.setblocking(False)
            line.send(b"t")

    async def _start_proxy(self, proxy: NetworkProxy) -> None:
        self._proxy = proxy
        await proxy.start()

    def confine(self) -> None:
        """Put the command into the sandbox. Raise Unavailable if there is no such program.

        This reads files, and may start the version manager of a language.
        """
        command, scratch = self.command, str(self._scratch)
        home = SCRATCH if self.policy.level is SandboxLevel.BUBBLEWRAP else scratch
        own: Mapping[str, str] = {"HOME": home, "TMPDIR": home, **proxy_variables(self._door)}
        env = {**own, **command.env}
        argv = sandbox_command(
            self.policy,
            command.argv,
            environment_for(env, os.environ),
            folder=str(Path.cwd() / (command.cwd or "")),
            scratch=scratch,
            door=self._door,
            user=self._user,
        )
        files = () if self._group is None else self._group.member_files
        self.command = replace(
            command, argv=argv, env=env, cwd="/", is_confined=True, member_files=files
        )

    def describe_end(self, reason: str, said: Iterable[str] = ()) -> str:
        """Return why the server ended, with the limits that it reached.

        `said` is the end of its error output, which may name a file that it may not read.
        """
        reached = [] if self._group is None else self._group.reached_limits()
        if reached:
            return f"{reason}; it reached {' and '.join(reached)}"
        hint = "" if self.hints is None else self.hints.explain_end("\n".join(said))
        # A short form of the reason ends at the words of the server, and needs the hint.
        how, mark, words = reason.partition(LAST_OUTPUT)
        return f"{how}; {hint}{mark}{words}" if hint else reason

    async def close(self) -> None:
        try:
            await self._close_network()
            await asyncio.to_thread(self._remove_folders)
        finally:
            self._folders.close()
            # A second close would give back the user of another server.
            user, self._user = self._user, 0
            self._users.give_back(user)

    async def _close_network(self) -> None:
        if self._container is not None:
            await self._container.remove()
        if self._handover is not None:
            self._handover.cancel()
            # A sandbox that hands over no socket has no network, and says so itself.
            await asyncio.gather(self._handover, return_exceptions=True)
        if self._proxy is not None:
            await self._proxy.close()

    def _remove_folders(self) -> None:
        if self._group is not None:
            self._group.remove()
        if self._scratch is not None:
            remove_folder(self._scratch)
