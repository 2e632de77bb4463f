"""How the tracer of a gateway is opened and closed."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import MappingProxyType
from typing import Final

from comity.app.settings import Settings
from comity.errors import Misconfigured
from comity.telemetry.setup import is_asked_for, open_tracer
from comity.telemetry.tracing import Tracer

log = logging.getLogger(__name__)

_NO_DESCRIPTION: Final[Mapping[str, str]] = MappingProxyType({})


@asynccontextmanager
async def open_tracing(
    settings: Settings, descriptions: Mapping[str, Mapping[str, str]]
) -> AsyncGenerator[Tracer | None]:
    """Yield the tracer of the gateway, if there is one, and send its last spans at the end.

    `descriptions` has the transport and the address of each server, by its name.
    """
    tracer = _build_tracer(settings, descriptions)
    try:
        yield tracer
    finally:
        if tracer is not None:
            await tracer.close()


def _build_tracer(
    settings: Settings, descriptions: Mapping[str, Mapping[str, str]]
) -> Tracer | None:
    if not settings.telemetry.traces and not is_asked_for(os.environ):
        return None
    try:
        return open_tracer(
            version("comity"), lambda name: descriptions.get(name, _NO_DESCRIPTION), os.environ
        )
    except Misconfigured as error:
        # Whole clusters set OpenTelemetry's variables: that must not keep a gateway from starting.
        log.warning("Telemetry is off: %s", error)
        return None
