"""Whether the weights of the built-in embedder are on this machine, as `scripts/setup` has them."""

from pathlib import Path

import pytest

from comity.adapters.embedders_minilm import find_weights
from comity.wire.errors import Misconfigured


def found() -> Path | None:
    try:
        return find_weights()
    except Misconfigured:
        return None


FOLDER = found()
needs_weights = pytest.mark.skipif(FOLDER is None, reason="the weights are not installed here")
