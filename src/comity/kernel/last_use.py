"""When each key was last used: noted at every use, written down now and then. (REG auth)"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Final

from comity.wire.errors import Unavailable

log = logging.getLogger(__name__)

MOST: Final = 100_000

type Write = Callable[[Mapping[str, datetime]], Awaitable[None]]


class LastUse:
    """What is not written down yet; no call waits for that."""

    def __init__(self) -> None:
        self._noted: dict[str, datetime] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, key: str, at: datetime) -> None:
        self._noted[key] = at

    async def flush(self, write: Write) -> None:
        """Write all that was noted; what a store does not take now is kept for the next time."""
        noted, self._noted = self._noted, {}
        if not noted:
            return
        try:
            await write(noted)
        except Unavailable as error:
            log.info("when keys were last used is not written down yet: %s", error)
            if len(noted) + len(self._noted) <= MOST:
                self._noted = {**noted, **self._noted}
