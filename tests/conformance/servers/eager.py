"""A server of the kit that would speak at once, with tools that answer with data, or fail."""

import asyncio
from contextlib import suppress
from typing import Annotated

from pydantic import BaseModel, Field

from comity.sdk.server import HostRefusal, HostRequestFailure, Security, Server

server = Server("eager")
news = server.feature("eager.news", "Tells as soon as it can", uses=["pushEvents"])


class Measured(BaseModel):
    """What was measured."""

    place: str = Field(description="where")
    degrees: float = Field(description="how warm it is there, in Celsius")


@server.tool(Security("safe"))
async def measure(
    place: Annotated[str, Field(description="where to measure, as a town")],
    depth: Annotated[float, Field(description="metres below ground", ge=0)] = 0,
) -> Measured:
    """Measure how warm it is."""
    return Measured(place=place, degrees=21.5 - depth)


@server.tool(Security("safe"))
async def fail() -> str:
    """Fail, and say why."""
    raise ValueError("the thermometer is broken")


@server.tool(Security("safe"))
async def plain() -> list[str]:
    """Answer with words alone."""
    return ["only", "words"]


@server.background
async def hurry() -> None:
    """Push before anybody may have heard that there is such a server."""
    while True:
        with suppress(HostRequestFailure, HostRefusal):
            await news.push("first", "it has begun")
        await asyncio.sleep(0.005)


if __name__ == "__main__":
    server.run()
