"""The JDK's HTTP client offers h2c with each request over plain HTTP, and is served."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.program import EXAMPLE
from tests.interop.processes import comity

CLIENT = Path(__file__).parent / "java" / "PlainClient.java"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK here"),
]


def test_a_client_of_the_jdk_lists_and_calls_tools(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"example": EXAMPLE}}))
    with comity(config) as origin:
        ran = subprocess.run(
            ["java", str(CLIENT), origin], capture_output=True, text=True, timeout=200, check=False
        )
    assert ran.returncode == 0, ran.stderr
    greeted, noted, listed, called, *by_rest = ran.stdout.splitlines()
    assert (greeted, noted) == ("200 HTTP_1_1", "202")
    assert "example__echo" in listed
    assert "from the JDK" in called
    assert "by REST" in "".join(by_rest)
