"""Calls that tell of themselves before their end, as the settings say."""

from typing import Final

from comity.app.caring import Caring
from comity.config import Settings
from comity.kernel.streaming import Streaming
from comity.kernel.switchboard import AllServers
from comity.rules.negotiation import offer
from comity.wire import jsonrpc
from comity.wire.negotiation import Extension

_PIECES: Final = {"mgp": jsonrpc.to_raw(offer({Extension.STREAMING}))}


def have_calls_streamed(settings: Settings, caring: Caring, everything: AllServers) -> Streaming:
    """Pass on what calls tell; for servers that are admitted from now on."""
    streaming = Streaming(for_progress=settings.stream_for_progress)
    streaming.join(everything.methods)
    if settings.stream_for_progress:
        # A plain client hears pieces as steps of its progress, so its servers may send them.
        everything.presence.for_plain = _PIECES
    caring.streaming = streaming
    return streaming
