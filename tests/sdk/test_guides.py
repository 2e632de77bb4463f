"""The pages about the SDK run as they are written."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from comity.sdk import server as kit
from tests.docs.pages import ROOT, snippets_of
from tests.docs.transcript import steps_of
from tests.interop.processes import comity

PAGE = (ROOT / "docs" / "how-to" / "write-a-live-server.md").read_text(encoding="utf-8")


async def test_the_server_of_the_page_passes_the_test_of_the_page() -> None:
    server, test = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert server.endswith("server.run()\n")
    names: dict[str, Any] = {}
    for text in (server.removesuffix("server.run()\n"), test):
        exec(compile(text, "write-a-live-server.md", "exec"), names)  # noqa: S102  # our own page
    await names["test_it_remembers"]()


def test_what_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(?:@)?(?:server|feature)\.(\w+)", PAGE))
    offered = {*dir(kit.Server("x")), *dir(kit.Feature), "py"}
    assert named - offered == set()
    results = re.findall(r"`(HostPushResult|Reply|HostElevationResult)\(([\w, ]+)\)`", PAGE)
    assert len(results) == 3
    for name, members in results:
        assert set(members.split(", ")) <= set(getattr(kit, name).__dataclass_fields__)


TUTORIAL = ROOT / "docs" / "tutorials" / "topic.md"

PROGRAM = "examples/topics/walkthrough.py"

ID = re.compile(r"\b[0-9a-f]{8}\b")


def masked(lines: str) -> list[str]:
    """Ids are others in each run; which of them are the same is not: each has its number."""
    known: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return known.setdefault(found.group(), f"<{len(known) + 1}>")

    return [ID.sub(number, line).rstrip() for line in lines.strip("\n").splitlines()]


@pytest.mark.timeout(180)
@pytest.mark.requirement("MCPX-9.4-delegated", "MCPX-2.1-progressive", "MCPX-2.1-governance")
def test_the_example_prints_what_the_guide_shows(tmp_path: Path) -> None:
    snippets = snippets_of(TUTORIAL)
    (configuration,) = [each.text for each in snippets if each.language == "toml"]
    shown = [steps_of(each.text) for each in snippets if each.language == "console"]
    (step,) = [step for steps in shown for step in steps if PROGRAM in step.command]
    (tmp_path / "comity.toml").write_text(configuration, encoding="utf-8")
    with comity(tmp_path / "comity.toml") as url:
        done = subprocess.run(
            [sys.executable, str(ROOT / PROGRAM), url],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert masked(done.stdout) == masked("\n".join(step.expected))
