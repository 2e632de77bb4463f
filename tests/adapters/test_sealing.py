"""Secrets of webhooks, hidden from whoever reads a store."""

import importlib
from typing import Any

import pytest

from comity.adapters.sealing import Sealed, Unsealed
from comity.wire.errors import Misconfigured

PEPPER = b"p" * 32


def test_what_is_sealed_shows_nothing_and_comes_back_by_the_same_pepper() -> None:
    sealer = Sealed(PEPPER)
    sealed = sealer.seal(b"secret of a webhook")
    assert b"secret" not in sealed
    assert Sealed(PEPPER).unseal(sealed) == b"secret of a webhook"
    assert sealer.seal(b"secret of a webhook") != sealed
    assert repr(sealer) == "Sealed()"


def test_what_others_sealed_or_changed_is_nothing() -> None:
    sealed = Sealed(PEPPER).seal(b"secret")
    assert Sealed(b"q" * 32).unseal(sealed) is None
    for wrong in (b"", sealed[:-1], sealed[:5], bytes([sealed[0] ^ 1]) + sealed[1:]):
        assert Sealed(PEPPER).unseal(wrong) is None


def test_in_memory_nothing_needs_to_be_hidden() -> None:
    assert Unsealed().unseal(Unsealed().seal(b"x")) == b"x"


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(Misconfigured, match="pip install"):
        Sealed(PEPPER)
