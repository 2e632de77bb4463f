"""How a tool server's process is begun: its command, its environment, its own session.

The environment is an allow-list, as in the official SDK: a server is somebody else's program and
must not find the operator's cloud keys in its variables. The process leads a session and a group of
its own, so that whatever it starts can be ended with it, and Ctrl-C at the terminal is not its to
answer.
"""

import errno
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from comity.adapters.upstream import orders
from comity.adapters.upstream.containment import why_no_namespace
from comity.adapters.upstream.keeping import Child, Line, Pipes, ask, turn
from comity.wire.errors import Unavailable

type Containment = Literal["auto", "group", "namespace"]

INHERITED = frozenset(
    {
        *("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"),
        # How the network is reached from here: without these `npx` and `uvx` fail behind a proxy.
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
    }
)

_WISHES: Mapping[Containment, bytes] = {
    "auto": orders.WISH_AUTO,
    "group": orders.WISH_GROUP,
    "namespace": orders.WISH_NAMESPACE,
}
_WHAT_TO_CHECK = {
    errno.ENOENT: "there is no such program; check that it is installed and how it is spelt, "
    "or give its full path",
    errno.EACCES: "it may not be executed; check its permissions",
    errno.ENOEXEC: "it is no program for this machine; does a script lack its first line (#!)?",
}


@dataclass(frozen=True, slots=True, repr=False)
class Command:
    """What to run. `env` holds the configured variables only.

    `auto` ends whatever the server started, `group` only what stayed in its process group, and for
    `namespace` the kernel does it, at the price that the server knows itself by another number.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    containment: Containment = "auto"

    @property
    def program(self) -> str:
        return self.argv[0] if self.argv else ""

    def __repr__(self) -> str:
        # Arguments and values may be secrets; the program and the names are not.
        return f"Command({self.program!r}, {len(self.argv)} words, env {sorted(self.env)})"


def environment_for(configured: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """What is inherited from `ours`, overridden by what is configured."""
    inherited = {
        name: value
        for name, value in ours.items()
        # A value that starts like this is an exported shell function: code, not text.
        if (name in INHERITED or name.startswith("LC_")) and not value.startswith("()")
    }
    return inherited | dict(configured)


async def begin(command: Command) -> Child:
    """Start it, or say what the operator should look at.

    It is no child of the gateway's own but of its guard, who ends it should the gateway be killed,
    and from whom it inherits no descriptor. (Decision 0009)
    """
    environment = environment_for(command.env, os.environ)
    try:
        order = _pack(command, environment)
    except ValueError:
        because = "its command line or environment is empty or holds a NUL character"
    else:
        async with turn():
            answer = await _begun(command, order)
        if isinstance(answer, Child):
            return answer
        because = _why(command, environment.get("PATH"), answer)
    # Outside of the handler: the cause's own text may quote an argument.
    raise Unavailable(f"cannot start {command.program!r}: {because}")


async def _begun(command: Command, order: bytes) -> Child | list[str]:
    """The child, or the words in which its guard said that there is none."""
    with Pipes() as pipes:
        line = ask(_WISHES[command.containment], pipes.theirs)
        pipes.let_go()
        try:
            await line.send(order)
        except BaseException:
            line.close()
            raise
        answer = await _answer(line)
        if answer[:1] == ["started"]:
            return Child(line, int(answer[1]), answer[2], pipes.give())
        line.close()
        return answer


async def _answer(line: Line) -> list[str]:
    try:
        return await line.answer()
    except BaseException:
        # Nobody waits for it any more, so it gets no grace either.
        line.signal(signal.SIGKILL)
        line.close()
        raise


def _pack(command: Command, environment: Mapping[str, str]) -> bytes:
    argv = [os.fsencode(word) for word in command.argv]
    env = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    try:
        here = Path.cwd()
    except FileNotFoundError:
        here = Path("/")
    return orders.pack(argv, env, os.fsencode(here / (command.cwd or "")))


def _why(command: Command, path: str | None, answer: list[str]) -> str:
    if answer[:1] != ["failed"]:
        return "the process that was to start it is gone"
    where, number = answer[1], int(answer[2])
    if where in (orders.NO_LINUX, orders.NO_NAMESPACE, orders.NO_PROC):
        return f"{why_no_namespace(where, number)}; or set its `containment` to `auto`"
    if where == orders.IN_FOLDER and command.cwd is not None:
        return f"its working directory {command.cwd!r} cannot be entered; check `cwd`"
    if number == errno.ENOENT and shutil.which(command.program, path=path):
        return "the interpreter that its first line names does not exist"
    return _WHAT_TO_CHECK.get(number) or (os.strerror(number) if number else "the system refused")
