"""The lines of an exported journal: of a running gateway, of a store, or of a file."""

import gzip
import importlib
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Protocol, cast

from comity.cli.administering import is_offline, settings_instead, settings_of
from comity.cli.asking import Answer, Gateway
from comity.config import Settings
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.exported import LINE_BYTES

STDIO: Final = "-"


class _Room(Protocol):
    def export(self, settings: Settings) -> Iterator[bytes]: ...


def lines(url: str, config: Path | None) -> Iterator[bytes]:
    """Every line, without its end. Raises Misconfigured, Unavailable."""
    if not is_offline():
        gateway = Gateway(url)
        try:
            page = gateway.get("journal", "export")
        except Unavailable as away:
            settings = settings_instead(away, config)
        else:
            yield from _pages(gateway, page)
            return
    else:
        settings = settings_of(config)
    # Loaded only now: a store's packages take a while, and a running gateway has its own.
    yield from cast("_Room", importlib.import_module("comity.cli.direct")).export(settings)


def _pages(gateway: Gateway, page: Answer) -> Iterator[bytes]:
    while True:
        for line in page["lines"]:
            yield str(line).encode()
        if "next" not in page:
            return
        page = gateway.get("journal", "export", cursor=page["next"])


def read(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, each within bounds; an empty one at its end is none."""
    try:
        while line := file.readline(LINE_BYTES):
            yield line
    except (OSError, EOFError) as problem:
        raise Misconfigured(f"it cannot be read to its end: {problem}") from None


@contextmanager
def reading(name: str) -> Generator[IO[bytes]]:
    """A file by its name, compressed if that ends in .gz; `-` is standard input."""
    if name == STDIO:
        yield sys.stdin.buffer
        return
    with _opened(name, "rb") as file:
        yield file


@contextmanager
def writing(name: str) -> Generator[IO[bytes]]:
    """A new file in the same way; `-` is standard output."""
    if name == STDIO:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _opened(name, "xb") as file:
        yield file


def _opened(name: str, mode: str) -> IO[bytes]:
    try:
        if name.endswith(".gz"):
            return cast("IO[bytes]", gzip.open(name, mode, compresslevel=6))
        return cast("IO[bytes]", Path(name).open(mode))
    except OSError as problem:
        raise Misconfigured(f"{name}: {problem.strerror or problem}") from None
