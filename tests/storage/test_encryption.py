"""Secrets of webhooks, hidden from whoever reads a store."""

from comity.storage.encryption import PepperSealer

PEPPER = b"p" * 32


def test_what_is_sealed_shows_nothing_and_comes_back_by_the_same_pepper() -> None:
    sealer = PepperSealer(PEPPER)
    sealed = sealer.seal(b"secret of a webhook")
    assert b"secret" not in sealed
    assert PepperSealer(PEPPER).unseal(sealed) == b"secret of a webhook"
    assert sealer.seal(b"secret of a webhook") != sealed
    assert repr(sealer) == "Sealed()"


def test_what_others_sealed_or_changed_is_nothing() -> None:
    sealed = PepperSealer(PEPPER).seal(b"secret")
    assert PepperSealer(b"q" * 32).unseal(sealed) is None
    for wrong in (b"", sealed[:-1], sealed[:5], bytes([sealed[0] ^ 1]) + sealed[1:]):
        assert PepperSealer(PEPPER).unseal(wrong) is None
