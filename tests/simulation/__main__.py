"""Starts `scripts/simulate`: first the virtual clock, then everything that reads a clock."""

import sys

from tests.simulation import clock


def start() -> int:
    clock.install()
    # Imported here because default arguments of Comity hold the functions of the module `time`.
    from tests.simulation.run import main

    return main()


sys.exit(start())
