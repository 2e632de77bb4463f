"""A server that reads, writes, connects, fetches and executes as asked. Run as a program."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("confined")


@server.tool()
def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as refused:
        raise ToolError(str(refused)) from None


@server.tool()
def write(path: str, text: str) -> str:
    return str(Path(path).write_text(text))


@server.tool()
def watch(path: str, log: str) -> str:
    """Read a file again and again for two minutes, and note each time in a log."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        text = Path(path).read_text()
        with Path(log).open("a") as file:
            file.write(text)
        time.sleep(0.01)
    return "watched to the end"


@server.tool()
def connect(host: str, port: int) -> str:
    with socket.create_connection((host, port), 5):
        return "connected"


@server.tool()
def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310
            return answer.read().decode()
    except urllib.error.HTTPError as refused:
        return f"{refused.code}: {refused.read().decode()}"


@server.tool()
def execute(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout


@server.tool()
def variables() -> str:
    return " ".join(sorted(os.environ))


@server.tool()
def fork_endlessly() -> str:
    children: list[int] = []
    try:
        while True:
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
    except OSError as refused:
        return f"{len(children)} {refused.strerror}"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@server.tool()
def fill_the_disk() -> str:
    written = 0
    with Path(os.environ["HOME"], "large").open("wb") as file:
        try:
            while True:
                written += file.write(bytes(1024 * 1024))
        except OSError as refused:
            return f"{written} {refused.strerror}"


@server.tool()
def fill_scratch(megabytes: int) -> str:
    """Write files of a megabyte each to its scratch folder."""
    for number in range(megabytes):
        try:
            Path(os.environ["HOME"], f"part-{number}").write_bytes(bytes(1024 * 1024))
        except OSError as refused:
            return f"{number} {refused.strerror}"
    return f"{megabytes} all"


@server.tool()
def open_files() -> str:
    held: list[int] = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as refused:
        return f"{len(held)} {refused.strerror}"
    finally:
        for each in held:
            os.close(each)


@server.tool()
def take_memory(megabytes: int) -> str:
    try:
        return str(len([bytearray(b"x" * 1024 * 1024) for _ in range(megabytes)]))
    except MemoryError:
        # The error has no text of its own.
        return "MemoryError"


server.run()
