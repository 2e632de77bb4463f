"""The gateway as people run it, but it collects its garbage when told, so that memory tells a leak.

Run as `python -m tests.interop.measured serve CONFIG`. At SIGUSR1 it says on stderr how often it
has collected and how many objects there are.
"""

import gc
import itertools
import os
import signal
import sys
import weakref

from comity.cli.main import main

_times = itertools.count(1)


def count_objects() -> int:
    """Count the objects. A SQLite connection drops references to dead cursors 200 at a time."""
    return sum(type(each) is not weakref.ref or each() is not None for each in gc.get_objects())


def collect(number: int, frame: object) -> None:
    gc.collect()
    # Not by `print`: a signal may come while somebody else is printing.
    os.write(2, f"collected {next(_times)}: {count_objects()} objects\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, collect)
    sys.exit(main(sys.argv[1:]))
