"""The bus and the leases between nodes that an address names; the packages for it are an extra."""

import importlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, cast

from comity.adapters.nats.addresses import Addresses
from comity.ports.clustering import Bus, Leases
from comity.ports.pushes import Firsts
from comity.wire.errors import Misconfigured


@dataclass(frozen=True, slots=True, repr=False)
class Reached:
    """Where the other nodes are found; the address may hold a secret."""

    url: str
    deployment: str
    lifetime: timedelta
    secret: bytes
    """What all nodes of the deployment share, and seal their messages with."""
    credentials_file: str = ""
    authority_file: str = ""
    allow_open: bool = False


class _Buses(Protocol):
    def NatsBus(self, addresses: Addresses, secret: bytes) -> Bus: ...  # noqa: N802 - a class


class _Leases(Protocol):
    def NatsLeases(self, bus: Bus, lifetime: timedelta) -> Leases: ...  # noqa: N802 - a class


class _Pushes(Protocol):
    def NatsFirsts(self, bus: Bus) -> Firsts: ...  # noqa: N802 - a class


def open_bus(where: Reached) -> tuple[Bus, Leases]:
    """Raises Misconfigured where the extra for it is not installed; connects to nothing yet."""
    addresses = addresses_of(where)
    bus = cast("_Buses", _room("bus")).NatsBus(addresses, where.secret)
    return bus, cast("_Leases", _room("leases")).NatsLeases(bus, where.lifetime)


def addresses_of(where: Reached) -> Addresses:
    """Raises Misconfigured where they cannot be used; connects to nothing."""
    addresses = Addresses.of(
        [where.url],
        where.deployment,
        _path(where.credentials_file),
        _path(where.authority_file),
    )
    if not where.allow_open:
        addresses.refuse_open_servers()
    return addresses


def open_firsts(bus: Bus) -> Firsts:
    """Who knows at all nodes which pushes were there lately, over a bus that `open_bus` opened."""
    return cast("_Pushes", _room("pushes")).NatsFirsts(bus)


def _room(name: str) -> object:
    try:
        return importlib.import_module(f"comity.adapters.nats.{name}")
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith(("nats", "cryptography")):
            raise
        raise Misconfigured(
            "to join several nodes, install what that needs: pip install 'comity[nats]'"
        ) from None


def _path(named: str) -> Path | None:
    return Path(named) if named else None
