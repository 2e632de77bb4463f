"""Whether the weights of the built-in embedder are on this machine, as `scripts/setup` has them."""

from pathlib import Path

import pytest

from comity.catalog.semantic.minilm import find_weights
from comity.errors import Misconfigured


def found() -> Path | None:
    try:
        return find_weights()
    except Misconfigured:
        return None


FOLDER = found()
needs_weights = pytest.mark.skipif(FOLDER is None, reason="the weights are not installed here")
