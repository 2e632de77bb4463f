"""Play the interop matrix and print it.

    .venv/bin/python -m tests.interop.matrix [CLIENT...] [--docs]

`--docs` also writes the tables into docs/reference/compatibility.md.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.interop.matrix import page
from tests.interop.matrix.parties import CLIENTS
from tests.interop.matrix.stage import staged
from tests.interop.matrix.table import remarks, tables
from tests.interop.peers import TOOLS


def main() -> int:
    asked = _arguments()
    # Where scripts/setup puts uv on a machine that has none; one peer is fetched with it.
    os.environ["PATH"] = os.pathsep.join([str(TOOLS / "uv" / "bin"), os.environ["PATH"]])
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="comity-matrix-") as folder,
        staged(Path(folder)) as stage,
    ):
        for client in CLIENTS:
            if not asked.clients or client.id in asked.clients:
                stage.play(client)
                print(f"{client.title}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        cells = stage.played
    print(tables(cells), remarks(cells), sep="\n\n")
    if asked.docs:
        page.write(cells)
    return int(any(cell.differences() for cell in cells))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.matrix", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    known = [client.id for client in CLIENTS]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(known)}")
    parser.add_argument("--docs", action="store_true", help="write the page, too")
    asked = parser.parse_args()
    if unknown := set(asked.clients) - set(known):
        parser.error(f"there is no client {min(unknown)}")
    if asked.docs and asked.clients:
        parser.error("the page shows all clients")
    return asked


if __name__ == "__main__":
    sys.exit(main())
