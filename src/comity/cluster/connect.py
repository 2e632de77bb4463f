"""Opens the bus and the leases that the settings name. NATS is an optional extra."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from comity.cluster.bus import Bus, FirstSeenStore, LeaseStore
from comity.cluster.nats.addresses import NatsAddressList
from comity.errors import Misconfigured


@dataclass(frozen=True, slots=True, repr=False)
class ClusterAddress:
    """The address of the bus between the nodes. It may hold a secret."""

    url: str
    deployment: str
    lifetime: timedelta
    secret: bytes
    """The secret that all nodes of the deployment share and seal their messages with."""
    credentials_file: str = ""
    authority_file: str = ""
    allow_open: bool = False


def open_bus(address: ClusterAddress) -> tuple[Bus, LeaseStore]:
    """Create the bus and the leases. Raise Misconfigured if the extra is not installed."""
    addresses = addresses_of(address)
    with _extra():
        # Imported here because NATS is an optional extra.
        from comity.cluster.nats.bus import NatsBus

        # This module needs the same extra.
        from comity.cluster.nats.jetstream import NatsLeases
    bus = NatsBus(addresses, address.secret)
    return bus, NatsLeases(bus, address.lifetime)


def addresses_of(address: ClusterAddress) -> NatsAddressList:
    """Parse the addresses, without connecting. Raise Misconfigured if they are invalid."""
    addresses = NatsAddressList.of(
        [address.url],
        address.deployment,
        _path(address.credentials_file),
        _path(address.authority_file),
    )
    if not address.allow_open:
        addresses.refuse_open_servers()
    return addresses


def open_firsts(bus: Bus) -> FirstSeenStore:
    """Return the store of recent pushes for all nodes, on a bus that `open_bus` created."""
    with _extra():
        # Imported here because NATS is an optional extra.
        from comity.cluster.nats.bus import NatsBus

        # This module needs the same extra.
        from comity.cluster.nats.jetstream import NatsFirsts
    assert isinstance(bus, NatsBus)
    return NatsFirsts(bus)


@contextmanager
def _extra() -> Generator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith(("nats", "cryptography")):
            raise
        raise Misconfigured(
            "to join several nodes, install what that needs: pip install 'comity[nats]'"
        ) from None


def _path(name: str) -> Path | None:
    return Path(name) if name else None
