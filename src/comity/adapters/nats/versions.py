"""Which version the NATS servers of an address run, and whether they do what nodes need."""

import asyncio
from typing import Final

from nats import errors

from comity.adapters.nats.addresses import Addresses, Server
from comity.adapters.nats.link import Link
from comity.wire.errors import Unavailable

OLDEST: Final = (2, 11)
_SECONDS: Final = 5.0


def oldest_version() -> str:
    """The oldest version of NATS that nodes can use."""
    return ".".join(str(part) for part in OLDEST)


def _ignore(sid: int, subject: bytes, reply: bytes, data: bytes) -> None:
    """Take no message: this link subscribes to nothing."""


async def usable_version(server: Server, addresses: Addresses) -> str:
    """Log in and ask for JetStream. Unavailable says what is missing."""
    link = Link(_ignore)
    try:
        async with asyncio.timeout(_SECONDS):
            await link.reach(server, addresses)
            version = link.connected_server_version
            answer = await link.request("$JS.API.INFO")
    except errors.NoRespondersError:
        raise Unavailable("JetStream is off") from None
    except (OSError, TimeoutError, errors.Error) as error:
        raise Unavailable(str(error) or type(error).__name__) from None
    finally:
        link.lose("not needed any more")
    if b'"error"' in answer.data:
        raise Unavailable("this account may not use JetStream")
    told = f"{version.major}.{version.minor}.{version.patch}"
    if (version.major, version.minor) < OLDEST:
        raise Unavailable(f"it runs version {told}, and nodes need {oldest_version()} or newer")
    return told
