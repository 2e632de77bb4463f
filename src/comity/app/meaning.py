"""Search by meaning as the settings say; none where nobody asked for it and it is not there."""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from comity.adapters.embedders import open_meanings, open_minilm
from comity.adapters.stores import file_of
from comity.config import Settings
from comity.plugins import found_embedder
from comity.ports.finding import Similarity
from comity.wire.errors import Misconfigured

log = logging.getLogger(__name__)

AUTO: Final = "auto"
NONE: Final = "none"
MINILM: Final = "minilm"


def similarity_of(settings: Settings) -> Similarity | None:
    """Vectors of what tools mean. Raises Misconfigured where what was named cannot be had.

    With `auto`, which is the default, what is missing is no mistake: tools are found by their
    words, and each answer says so.
    """
    if settings.embedder == NONE:
        return None
    try:
        return _opened(settings)
    except Misconfigured as missing:
        if settings.embedder != AUTO or settings.embedder_model:
            raise
        log.info("tools are searched by their words alone: %s", missing)
        return None


@asynccontextmanager
async def by_meaning(settings: Settings) -> AsyncGenerator[Similarity | None]:
    """The same, closed on the way out."""
    similarity = similarity_of(settings)
    try:
        yield similarity
    finally:
        if similarity is not None:
            await similarity.close()


def _opened(settings: Settings) -> Similarity:
    if settings.embedder in (AUTO, MINILM):
        embedder = open_minilm(settings.embedder_model)
    else:
        embedder = found_embedder(settings.embedder)
    # Where clients have to search for tools, the first of them should find by meaning already.
    at_once = settings.discovery_mode == "on"
    return open_meanings(embedder, vectors_folder(settings), at_once=at_once)


def vectors_folder(settings: Settings) -> Path | None:
    """Where vectors are kept: where it was said, else beside the store, else nowhere."""
    if settings.vectors_folder:
        return Path(settings.vectors_folder)
    file = file_of(settings.store_url)
    return None if file is None else file.with_name(f"{file.name}.vectors")
