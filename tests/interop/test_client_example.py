"""The example of two public servers in the docs does what the page says."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import Snippet, snippets_of
from tests.interop.conftest import DIRECT, Entry, served
from tests.interop.peers import ROOT, javascript, node, package

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="the example is Comity's"),
    # The first of these tests to run may have to install the JavaScript peers.
    pytest.mark.timeout(900),
]

PAGE = ROOT / "docs" / "how-to" / "connect-clients.md"
SECTION = "## From your own program"


def _snippet(language: str) -> Snippet:
    text = PAGE.read_text(encoding="utf-8")
    first = text.count("\n", 0, text.index(SECTION)) + 1
    found = [each for each in snippets_of(PAGE) if each.line > first]
    return next(each for each in found if each.language == language)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that takes the place of the reader's."""
    folder = tmp_path_factory.mktemp("readers")
    (folder / "found.txt").touch()
    return folder


@pytest.fixture(scope="module")
def origin(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = json.loads(_snippet("json").text.replace("/tmp", str(folder)))
    servers = {name: _installed(entry) for name, entry in config["mcpServers"].items()}
    with served(servers, tmp_path_factory.mktemp("readme")) as origin:
        yield origin


def _installed(entry: Entry) -> Entry:
    """The same server at the version that the tests pin: `npx -y` fetches the newest."""
    assert entry["command"] == "npx"
    yes, name, *arguments = entry["args"]
    assert yes == "-y"
    return {"command": node(), "args": [package(name, "dist/index.js"), *arguments]}


def _adapted(snippet: Snippet, origin: str, folder: Path) -> str:
    assert "http://127.0.0.1:2664" in snippet.text
    return snippet.text.replace("http://127.0.0.1:2664", origin).replace("/tmp", str(folder))


async def _run(*command: str, folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            said, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    return said.decode()


async def test_the_python_client_of_the_readme_prints_what_it_promises(
    origin: str, folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "client.py"
    script.write_text(_adapted(_snippet("python"), origin, folder))
    _assert_promised(await _run(sys.executable, str(script), folder=tmp_path))


async def test_the_typescript_client_of_the_readme_prints_what_it_promises(
    origin: str, folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "client.mjs"
    script.write_text(_adapted(_snippet("js"), origin, folder))
    (tmp_path / "node_modules").symlink_to(javascript() / "node_modules")
    _assert_promised(await _run(node(), str(script), folder=tmp_path))


def _assert_promised(said: str) -> None:
    lines = said.splitlines()
    assert "everything__echo" in lines
    assert "filesystem__list_directory" in lines
    assert len([line for line in lines if line.startswith(("everything__", "filesystem__"))]) >= 25
    assert "Echo: hello" in said
    assert "[FILE] found.txt" in said
