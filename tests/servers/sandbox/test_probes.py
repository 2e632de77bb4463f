"""A hostile program tries to leave its sandbox, at each level and as each kind of user."""

import asyncio
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from comity.servers.sandbox import stage
from comity.servers.sandbox.cgroups import ControlGroups
from comity.servers.sandbox.egress import EgressEvent, EgressProxy, open_stream
from comity.servers.sandbox.egress_rules import EgressRules
from comity.servers.sandbox.launch import EgressDoor, sandbox_command
from comity.servers.sandbox.model import (
    MEGABYTE,
    SandboxAccess,
    SandboxLevel,
    SandboxLimits,
)
from tests.servers.sandbox.levels import BOTH_LEVELS, opened_policy, skip_without

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]

NOBODY = 65534
LIMITS = SandboxLimits(memory=512 * MEGABYTE, processes=64)
HOSTILE = Path(__file__).with_name("hostile.py")
COLUMN = 0 if os.uname().machine == "x86_64" else 1
CALLS = {name: numbers[COLUMN] for name, numbers in stage.REFUSED_CALLS.items()} | {
    "clone": stage.CLONE_CALLS[os.uname().machine],
    "ioctl": stage.IOCTL_CALLS[os.uname().machine],
    "socketpair": stage.SOCKET_PAIR_CALLS[os.uname().machine],
    "fcntl": (72, 25)[COLUMN],
    "sendmmsg": (307, 269)[COLUMN],
    "ioprio_set": (251, 30)[COLUMN],
    "utimensat": (280, 88)[COLUMN],
}
BESIDE = (
    *("comity.toml", "comity.lock", ".env", ".mcp.json", "credentials.json", "server.log"),
    *("id.pem", "notes.db", ".git/config", "secrets/token"),
)
SHARED_USER_CALLS = {
    name: numbers[COLUMN]
    for name, numbers in stage.REFUSED_WITHOUT_NAMESPACES.items()
    if numbers[COLUMN] is not None
}


@dataclass(frozen=True, slots=True)
class Attacked:
    """The folders and sockets that the program attacks, and the Python that it runs with."""

    place: Path
    python: Path
    target: dict[str, object]
    user: int


@contextmanager
def attacked(place: Path, python: Path, user: int) -> Generator[Attacked]:
    """Prepare real targets: a listener, sockets, a secret, and another server's scratch."""
    for name in ("home", "readable", "writable", "other", "scratch", "program"):
        (place / name).mkdir()
    for file in ("home/secret", "home/token", "readable/data", "other/note"):
        (place / file).write_text("a secret of somebody else")
    (place / "readable" / "escape").symlink_to(place / "home" / "secret")
    script = shutil.copy(HOSTILE, place / "program")
    (place / "program" / "beside.py").write_text("VALUE = 7\n")
    for name in BESIDE:
        (place / "program" / name).parent.mkdir(exist_ok=True)
        (place / "program" / name).write_text("a secret beside the script")
    with ExitStack() as opened:
        listeners = [
            opened.enter_context(socket.create_server((host, 0), family=family))
            for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))
        ]
        abstract = f"comity-probe-{os.getpid()}"
        for address in (str(place / "unix"), str(place / "readable" / "socket"), f"\0{abstract}"):
            made = opened.enter_context(socket.socket(socket.AF_UNIX))
            made.bind(address)
            made.listen(4)
        for address in (
            str(place / "datagram"),
            str(place / "readable" / "datagram"),
            f"\0{abstract}-datagram",
        ):
            bound = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            bound.bind(address)
            threading.Thread(target=pass_the_secret, args=(bound, place), daemon=True).start()
            opened.callback(bound.shutdown, socket.SHUT_RDWR)
        for each in (place, *place.rglob("*")):
            if not each.is_symlink():
                os.chown(each, user, user)
        yield Attacked(
            place,
            python,
            {
                "secret": str(place / "home" / "secret"),
                "token": str(place / "home" / "token"),
                "readable": str(place / "readable"),
                "writable": str(place / "writable"),
                "other_scratch": str(place / "other"),
                "unix": str(place / "unix"),
                "datagram": str(place / "datagram"),
                "abstract": abstract,
                "port": listeners[0].getsockname()[1],
                "port6": listeners[1].getsockname()[1],
                "pid": os.getpid(),
                "calls": CALLS,
                "namespaces": True,
                "beside": BESIDE,
                "shared_user_calls": {},
                "attribute_requests": stage.ATTRIBUTE_REQUESTS,
                "script": script,
            },
            user,
        )


def pass_the_secret(bound: socket.socket, place: Path) -> None:
    """Send the open secret to every socket that asks, as an accomplice outside would."""
    while asked := bound.recv(200):
        with (place / "home" / "secret").open() as secret, suppress(OSError):
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", secret.fileno()))
            bound.sendmsg([b"x"], [rights], 0, os.fsdecode(asked))


@contextmanager
def refusing_proxy(at: Attacked) -> Generator[list[EgressEvent]]:
    """Serve a proxy that grants nothing, as the gateway does, at the socket `egress`."""
    events: list[EgressEvent] = []
    door = socket.socket(socket.AF_UNIX)
    path = str(at.place / "egress")
    door.bind(path)
    os.chown(path, at.user, at.user)
    door.listen(1)
    is_over = threading.Event()

    async def serve(line: socket.socket) -> None:
        _, (listener, *_), _, _ = socket.recv_fds(line, 1, 1)
        proxy = EgressProxy(
            "hostile",
            socket.socket(fileno=listener),
            EgressRules(()),
            resolve=resolve_nothing,
            connect=open_stream(None),
            on_event=events.append,
        )
        await proxy.start()
        line.send(b"t")
        await asyncio.to_thread(is_over.wait, 150)
        await proxy.close()

    def take_listener() -> None:
        with door:
            line, _ = door.accept()
        with line:
            asyncio.run(serve(line))

    serving = threading.Thread(target=take_listener, daemon=True)
    serving.start()
    try:
        yield events
    finally:
        is_over.set()
        serving.join(30)


async def resolve_nothing(name: str) -> list[str]:
    raise AssertionError(f"{name} was resolved")


def run_hostile(
    at: Attacked, level: SandboxLevel, door: EgressDoor | None = None
) -> dict[str, dict[str, list[Any]]]:
    access = SandboxAccess((str(at.place / "readable"),), (str(at.place / "writable"),))
    scratch = str(at.place / "scratch")
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp" if level is SandboxLevel.BUBBLEWRAP else scratch,
        "COMITY_PROBE": json.dumps(at.target),
        "LD_LIBRARY_PATH": str(at.python.parent.parent / "lib"),
    }
    groups = ControlGroups() if at.user == 0 else None
    group = None if groups is None else groups.create(f"probe-{os.getpid()}", LIMITS)

    def become_user() -> None:
        for file in () if group is None else group.member_files:
            Path(file).write_text("0", "ascii")
        if at.user != os.getuid():
            os.setgroups([])
            os.setresgid(at.user, at.user, at.user)
            os.setresuid(at.user, at.user, at.user)

    try:
        with (
            opened_policy(level, access, LIMITS) as policy,
            (at.place / "home" / "secret").open() as leaked,
        ):
            os.set_inheritable(leaked.fileno(), True)
            argv = sandbox_command(
                policy,
                (str(at.python), str(at.target["script"])),
                env,
                folder=scratch,
                scratch=scratch,
                door=door,
            )
            done = subprocess.run(
                argv,
                env=env,
                capture_output=True,
                timeout=120,
                check=False,
                preexec_fn=become_user,
                start_new_session=True,
            )
    finally:
        if group is not None:
            group.remove()
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def public_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the Python of these tests to where an ordinary user can run it."""
    place = Path(tmp_path_factory.mktemp("python"))
    for folder in (place, *place.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    base, name = Path(sys.base_prefix), f"python{sys.version_info[0]}.{sys.version_info[1]}"
    unused = shutil.ignore_patterns("test", "site-packages", "__pycache__", "idlelib", "*.a")
    shutil.copytree(base / "lib" / name, place / "lib" / name, ignore=unused)
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy(library, place / "lib")
    # One that scripts/python unpacked has a C library of its own there.
    for folder in (base / "lib").glob("*-linux-gnu"):
        shutil.copytree(folder, place / "lib" / folder.name)
    (place / "bin").mkdir()
    return Path(shutil.copy(base / "bin" / name, place / "bin"))


USERS = [0, NOBODY] if os.getuid() == 0 else [os.getuid()]


@pytest.mark.parametrize("user", USERS, ids=["root" if each == 0 else "user" for each in USERS])
@pytest.mark.parametrize("level", BOTH_LEVELS, ids=lambda level: level.label)
def test_no_probe_leaves_the_sandbox_and_normal_work_goes_on(
    level: SandboxLevel,
    user: int,
    tmp_path: Path,
    public_python: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    skip_without(level)
    signals = list[int]()
    before = signal.signal(signal.SIGURG, lambda number, _: signals.append(number))
    request.addfinalizer(lambda: signal.signal(signal.SIGURG, before))
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    monkeypatch.setattr(sys, "_base_executable", str(public_python))
    with attacked(tmp_path, public_python, user) as at:
        if level is SandboxLevel.BUBBLEWRAP:
            # Such a server always has the proxy, which refuses what was not granted.
            with refusing_proxy(at) as events:
                found = run_hostile(at, level, EgressDoor(socket_path=str(tmp_path / "egress")))
            assert [event.outcome for event in events] == ["refused"] * 2
        else:
            at.target.update(namespaces=False, shared_user_calls=SHARED_USER_CALLS)
            # With a port that it may use, it has sockets: the wider of both filters.
            found = run_hostile(at, level, EgressDoor(port=9))
    opened = {name: why for name, (is_open, why) in found["probes"].items() if is_open}
    broken = {name: why for name, (works, why) in found["normal"].items() if not works}
    assert (opened, broken) == ({}, {})
    assert (len(found["probes"]) >= 100, len(found["normal"])) == (True, 14)
    assert signals == []


def test_the_probes_succeed_without_a_sandbox(tmp_path: Path) -> None:
    """Most probes open something outside of a sandbox, so they can fail."""
    with attacked(tmp_path, Path(sys.executable).resolve(), os.getuid()) as at:
        target = replace(at, target={**at.target, "pid": os.getppid()}).target
        env = {**os.environ, "HOME": str(tmp_path / "scratch"), "COMITY_PROBE": json.dumps(target)}
        harmless = [sys.executable, "-c", _ONLY_HARMLESS, str(HOSTILE)]
        done = subprocess.run(harmless, env=env, capture_output=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert {name: why for name, (is_open, why) in found.items() if not is_open} == {}


_ONLY_HARMLESS = """
import contextlib, io, json, runpy, sys
names = ("read_a_secret_of_the_home", "write_to_a_folder_it_may_read", "signal_the_gateway",
    "connect_to_this_machine", "connect_over_version_6", "connect_to_an_abstract_socket",
    "connect_to_a_socket_in_the_file_system", "connect_a_datagram_socket_and_send",
    "send_a_datagram_to_a_socket_in_the_file_system", "send_a_datagram_from_a_raw_socket",
    "send_a_datagram_to_an_abstract_socket", "pass_an_open_file_out",
    "take_an_open_file_from_outside", "take_a_lease_of_what_it_may_read",
    "be_told_of_changes_by_signals", "load_a_protocol_by_a_pair_of_sockets",
    "connect_to_a_socket_in_a_granted_folder",
    "execute_a_shell", "execute_a_shell_by_the_loader", "execute_a_copy_in_scratch",
    "execute_a_script_in_scratch", "execute_from_memory", "follow_a_link_in_a_granted_folder",
    "read_the_scratch_of_another_server", "listen_on_a_port", "send_a_datagram",
    "listen_without_an_address", "connect_by_fast_open", "connect_by_a_fast_open_message",
    "read_the_limits_of_the_gateway", "change_the_mode_of_a_secret",
    "start_three_hundred_processes", "read_by_the_root_of_its_own_process",
    "follow_a_link_in_scratch_to_the_secret", "swap_a_granted_folder_for_a_link",
    "leave_a_granted_folder_by_dots", "make_a_user_namespace", "read_the_token_of_the_gateway")
text = open(sys.argv[1]).read().partition("\\nprint(")[0]
space = {"__file__": sys.argv[1], "__name__": "hostile"}
exec(compile(text, sys.argv[1], "exec"), space)
print(json.dumps({name: space["attempt"](space["PROBES"][name]) for name in names}))
"""
