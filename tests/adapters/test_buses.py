"""The bus that an address names, and what is said where it cannot be."""

import sys
from datetime import timedelta

import pytest

from comity.adapters.buses import Reached, open_bus
from comity.wire.errors import Misconfigured

LIFETIME = timedelta(seconds=7)
SECRET = b"s3cret of the nodes"


def test_an_address_opens_a_bus_and_the_leases_beside_it() -> None:
    bus, leases = open_bus(Reached("nats://s3cret@127.0.0.1:1", "test", LIFETIME, SECRET))
    assert not bus.is_connected
    assert leases.lifetime == LIFETIME
    assert "s3cret" not in repr(bus)


def test_without_what_it_needs_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comity.adapters.nats.leases", None)
    with pytest.raises(ModuleNotFoundError):
        open_bus(Reached("nats://127.0.0.1:1", "test", LIFETIME, SECRET))
    monkeypatch.delitem(sys.modules, "comity.adapters.nats.leases")
    monkeypatch.setitem(sys.modules, "nats.js", None)
    with pytest.raises(Misconfigured, match=r"comity\[nats\]"):
        open_bus(Reached("nats://127.0.0.1:1", "test", LIFETIME, SECRET))


def test_a_file_that_is_not_there_is_named_before_anything_is_connected_to() -> None:
    where = Reached("tls://127.0.0.1:1", "test", LIFETIME, SECRET, authority_file="/nowhere/ca.pem")
    with pytest.raises(Misconfigured, match="holds no certificate"):
        open_bus(where)
