"""`comity.sdk.agent` imports where only the packages of a plain install are there."""

import subprocess
import sys

WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"aiohttp", "yarl", "mcp"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import asyncio
from comity.sdk.agent import Agent
from comity.wire.errors import Misconfigured

async def main():
    try:
        async with Agent("http://127.0.0.1:9/mcp"):
            pass
    except Misconfigured as error:
        print(error)

asyncio.run(main())
"""


def test_an_agent_is_imported_without_extras_and_says_what_it_needs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "pip install 'comity[sdk]'" in ran.stdout
