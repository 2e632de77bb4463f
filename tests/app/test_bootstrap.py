"""`comity serve --bootstrap-admin`: the first administrator of an empty store."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from comity.app.offline import export_audit_lines
from comity.app.records import open_store
from comity.identity.keys import KeyAdmin
from comity.identity.principals import ApiKey
from tests.cli.program import EXAMPLE
from tests.support.bootstrap import KEY, call_tool, printing_gateway
from tests.support.fork_server import COMITY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

CONFIG = f"""
port = 0
[store]
url = "sqlite:///FOLDER/comity.db"
[identity]
mode = "MODE"
[policy]
require_approval = "never"
[[servers]]
id = "try"
command = "{EXAMPLE["command"]}"
args = {json.dumps(EXAMPLE["args"])}
"""


def written(folder: Path, mode: str = "required", more: str = "") -> Path:
    config = folder / "comity.toml"
    config.write_text(CONFIG.replace("FOLDER", str(folder)).replace("MODE", mode) + more)
    return config


def serving(config: Path) -> list[str]:
    return [COMITY, "serve", "--bootstrap-admin", "-c", str(config)]


def test_first_start_prints_a_key_that_may_do_everything_and_no_other_start_does(
    tmp_path: Path,
) -> None:
    config = written(tmp_path)
    debug = {"LOG_LEVEL": "DEBUG"}
    with printing_gateway(serving(config), tmp_path / "first", debug) as gateway:
        (key,) = gateway.keys
        assert call_tool(gateway.origin, "try__echo", key, message="hello")[0] == 200
        assert call_tool(gateway.origin, "try__echo", key[:-1] + "!", message="x")[0] == 401
        assert not KEY.search(gateway.program.said)
    with printing_gateway(serving(config), tmp_path / "second", debug) as gateway:
        assert gateway.keys == []
        assert call_tool(gateway.origin, "try__echo", key, message="again")[0] == 200
    recorded = b"".join(export_audit_lines(config))
    assert b"person:admin" in recorded
    assert key.encode() not in recorded


def test_a_start_without_the_option_creates_nobody(tmp_path: Path) -> None:
    config = written(tmp_path)
    with printing_gateway([COMITY, "serve", "-c", str(config)], tmp_path / "out") as gateway:
        assert gateway.keys == []


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("local", ""),
        ("required", '[[grants]]\nsubject = "person:ana"\nverb = "*"\ntarget = "*"\n'),
    ],
)
def test_no_key_is_created_where_somebody_else_administers(
    tmp_path: Path, mode: str, more: str
) -> None:
    config = written(tmp_path, mode, more)
    with printing_gateway(serving(config), tmp_path / "out") as gateway:
        assert gateway.keys == []


def test_several_nodes_that_start_at_once_create_one_key(tmp_path: Path) -> None:
    async def created() -> int:
        stores = [open_store(f"sqlite:///{tmp_path}/comity.db") for _ in range(4)]
        for each in stores:
            await each.open()
        draft = ApiKey("", "person:admin", b"")
        admins = [KeyAdmin(each, b"pepper" * 8) for each in stores]
        keys = [each.create_first("person:local", replace(draft)) for each in admins]
        made = [each for each in await asyncio.gather(*keys) if each is not None]
        assert len(await stores[0].keys.page()) == 1
        for each in stores:
            await each.close()
        return len(made)

    assert asyncio.run(created()) == 1
