"""The pytest plugin of the kit: `time.monotonic` follows a virtual loop where one runs.

`tests/conftest.py` loads it before anything imports Comity, because parameters of Comity have
`time.monotonic` as their default: they hold the function that stood there at their import.

It changes no test that does not use the kit. The function gives the time of the machine unless the
running loop of the same thread is a `VirtualLoop`, and only the fixtures of `tests.kit.fixtures`
make one. Other threads and code outside of a loop have no such loop. `asyncio`, `threading` and
`queue` either ask their loop or hold the function of the machine, which is not replaced for them.
"""

import time

from tests.kit.clock import monotonic

time.monotonic = monotonic
