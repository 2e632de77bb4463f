"""How many tokens a text costs: by OpenAI's o200k where it is at hand, else by its length.

There is no tokenizer to be had for every model. o200k is a fair measure of most; where it, or the
file that it reads, is not on this machine, the number is the length in bytes over 4.3, which is
within 7 % of it for half of all tools. Nothing is fetched: what is not here is not used.
"""

import hashlib
import importlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, cast

from comity.ports.finding import Tokens

log = logging.getLogger(__name__)

FOLDER: Final = "TIKTOKEN_CACHE_DIR"
FILE: Final = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""How tiktoken names the file of o200k_base there."""

SHA256: Final = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
BYTES_PER_TOKEN: Final = 4.3
LONGEST: Final = 64 * 1024
"""Bytes. Beyond that a tokenizer can be kept busy for long, and no budget has room anyway."""


class _Encoding(Protocol):
    def encode_ordinary(self, text: str) -> list[int]: ...


class _Tiktoken(Protocol):
    def get_encoding(self, encoding_name: str) -> _Encoding: ...


class Estimate:
    """The number of bytes over what a token has of them on average, rounded up."""

    method = "bytes/4.3"
    is_exact = False

    def count(self, text: bytes) -> int:
        return math.ceil(len(text) / BYTES_PER_TOKEN)


class O200k:
    """What the tokenizer says."""

    method = "o200k"
    is_exact = True

    def __init__(self, encoding: _Encoding) -> None:
        self._encoding = encoding

    def count(self, text: bytes) -> int:
        if len(text) > LONGEST:
            return ESTIMATE.count(text)
        return len(self._encoding.encode_ordinary(text.decode("utf-8", "replace")))


ESTIMATE: Final = Estimate()


def open_tokens(environ: Mapping[str, str]) -> Tokens:
    """The best count there is on this machine."""
    folder = environ.get(FOLDER)
    if not folder or not _is_whole(Path(folder) / FILE):
        return ESTIMATE
    try:
        tiktoken = cast("_Tiktoken", importlib.import_module("tiktoken"))
    except ModuleNotFoundError:
        log.info("%s is set and tiktoken is not installed: tokens are estimated", FOLDER)
        return ESTIMATE
    return O200k(tiktoken.get_encoding("o200k_base"))


def _is_whole(file: Path) -> bool:
    """Whether the file is the known one; with any other, tiktoken would fetch its own."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
    except OSError:
        return False
