"""Turns for others amid long work: a list may be long, and its server has no right to all of us."""

import asyncio
from typing import Final

BREATH_BYTES: Final = 64 * 1024
"""So much of a list takes some milliseconds."""

ENTRY_BYTES: Final = 256
"""What an entry costs at least, however short it is."""


class Breath:
    """Lets others have their turn, by how much has been looked at since they last had one."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = 0

    async def take(self, size: int) -> None:
        """Before an entry of this size is looked at; others go first where enough has been."""
        self._left -= ENTRY_BYTES + size
        if self._left < 0:
            self._left = BREATH_BYTES
            await asyncio.sleep(0)
