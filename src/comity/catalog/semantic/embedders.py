"""Opens the built-in embedder and the vector index, whose packages are an optional extra."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from comity.catalog.search.tool_index import Embedder, VectorIndex
from comity.errors import Misconfigured

_PACKAGES: Final = ("numpy", "onnxruntime")
INSTALL_HINT: Final = "semantic search needs an extra: pip install 'comity[semantic]'"


def open_minilm(folder: str = "") -> Embedder:
    """Open the built-in MiniLM model.

    Raises Misconfigured, with the remedy, if packages or weights are missing.
    """
    with _require_packages():
        # An optional dependency, and slow to import.
        from comity.catalog.semantic.minilm import MiniLm, find_weights
    return MiniLm(find_weights(folder))


def open_vector_index(
    embedder: Embedder, folder: Path | None, *, at_once: bool = True
) -> VectorIndex:
    """Open the vector index of a model, stored in a folder or in memory only.

    With `at_once`, the vectors are made now; otherwise the first search starts that. Raises
    Misconfigured if packages are missing.
    """
    with _require_packages():
        # An optional dependency, and slow to import.
        from comity.catalog.semantic.index import EmbeddingIndex

        # This module needs the same extra.
        from comity.catalog.semantic.vectors import VectorFile
    kept = None if folder is None else VectorFile(folder, embedder.name, embedder.size)
    return EmbeddingIndex(embedder, kept, at_once=at_once)


@contextmanager
def _require_packages() -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise Misconfigured(INSTALL_HINT) from None
