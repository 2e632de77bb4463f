"""What the tests of the commands stand on: a desk, and one gateway that all of them may ask."""

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cli.program import EXAMPLE, Desk
from tests.interop.processes import comity


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A gateway before one server that works and one whose program does not exist."""
    config = tmp_path_factory.mktemp("gateway") / "mcp.json"
    absent = {"command": "no-such-program-anywhere"}
    config.write_text(json.dumps({"mcpServers": {"example": EXAMPLE, "absent": absent}}))
    with comity(config) as origin:
        yield origin
