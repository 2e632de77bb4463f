"""What a process reads for its first gateway, it does not read for the next ones."""

import gzip
import importlib.metadata
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from comity.app.gateway import assemble_gateway
from comity.app.plugins import load_plugin_embedder, load_plugin_validators
from comity.errors import Misconfigured
from comity.inference.model import ModelSpec
from comity.inference.providers.registry import make_model
from tests.support.settings import settings_with


def is_of_the_console(path: Path) -> bool:
    return Path("console", "static").as_posix() in path.as_posix()


async def assemble() -> None:
    async with assemble_gateway(settings_with()):
        pass


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of the costly reads takes place from here on."""
    counts = Counter[str]()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            counts[name] += name != "read_bytes" or is_of_the_console(arguments[0])
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    count(importlib.metadata, "distributions")
    count(ssl, "create_default_context")
    count(gzip, "compress")
    count(Path, "read_bytes")
    return counts


NOTHING: dict[str, int] = {}


@pytest.fixture
async def first_gateway() -> None:
    """A gateway was assembled in this process before."""
    await assemble()


@pytest.mark.usefixtures("first_gateway")
async def test_a_second_gateway_of_a_process_reads_nothing_again(reads: Counter[str]) -> None:
    await assemble()
    assert +reads == NOTHING


@pytest.mark.usefixtures("first_gateway")
def test_every_kind_of_plugin_is_sought_in_the_same_entry_points(reads: Counter[str]) -> None:
    assert load_plugin_validators() == NOTHING
    with pytest.raises(Misconfigured, match="there is no embedder"):
        load_plugin_embedder("absent")
    with pytest.raises(Misconfigured, match="unknown api"):
        make_model(ModelSpec("m", "absent", "m", "http://127.0.0.1:9"))
    assert +reads == NOTHING
