"""Counts tokens: with OpenAI's o200k tokenizer if it is installed, otherwise by length.

No tokenizer fits every model; o200k is a fair measure for most. Without tiktoken or its file, the
count is the length in bytes over 4.3. That estimate is within 7 % of o200k for half of all tools.
Comity never downloads the file.
"""

import hashlib
import importlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, cast

from comity.catalog.search.tool_index import TokenCounter

log = logging.getLogger(__name__)

CACHE_VARIABLE: Final = "TIKTOKEN_CACHE_DIR"
ENCODING_FILE: Final = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""The name that tiktoken gives to the file of o200k_base in FOLDER."""

SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
BYTES_PER_TOKEN: Final = 4.3
MAX_EXACT_BYTES: Final = 64 * 1024
"""In bytes. A longer text can keep the tokenizer busy for long, and exceeds every budget anyway."""


class _TiktokenEncoder(Protocol):
    def encode_ordinary(self, text: str) -> list[int]: ...


class _TiktokenModule(Protocol):
    def get_encoding(self, encoding_name: str) -> _TiktokenEncoder: ...


class ByteTokenCounter:
    """Estimates tokens by the average number of bytes per token, rounded up."""

    method = "bytes/4.3"
    is_exact = False

    def count(self, text: bytes) -> int:
        return math.ceil(len(text) / BYTES_PER_TOKEN)


class O200k:
    """Counts tokens with the o200k tokenizer."""

    method = "o200k"
    is_exact = True

    def __init__(self, encoding: _TiktokenEncoder) -> None:
        self._encoding = encoding

    def count(self, text: bytes) -> int:
        if len(text) > MAX_EXACT_BYTES:
            return ESTIMATE.count(text)
        return len(self._encoding.encode_ordinary(text.decode("utf-8", "replace")))


ESTIMATE: Final = ByteTokenCounter()


def open_token_counter(environ: Mapping[str, str]) -> TokenCounter:
    """Return the most exact counter that is available on this machine."""
    folder = environ.get(CACHE_VARIABLE)
    if not folder or not _has_known_digest(Path(folder) / ENCODING_FILE):
        return ESTIMATE
    try:
        tiktoken = cast("_TiktokenModule", importlib.import_module("tiktoken"))
    except ModuleNotFoundError:
        log.info("%s is set and tiktoken is not installed: tokens are estimated", CACHE_VARIABLE)
        return ESTIMATE
    return O200k(tiktoken.get_encoding("o200k_base"))


def _has_known_digest(file: Path) -> bool:
    """Return whether the file has the known digest; with any other, tiktoken would download it."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    except OSError:
        return False
