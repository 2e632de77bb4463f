"""Who carries news of asks to somewhere else."""

from typing import Protocol


class Postman(Protocol):
    async def post(self, body: bytes) -> None:
        """Bring it there, once; Unavailable where it did not arrive. Cancelled at any time."""
        ...
