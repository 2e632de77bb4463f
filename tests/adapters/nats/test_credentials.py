"""Credentials in a file, with a NATS server that knows them."""

import base64
import binascii
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from comity.adapters.nats.addresses import Addresses
from comity.adapters.nats.bus import NatsBus
from comity.adapters.nats.credentials import Credentials
from comity.wire.errors import Misconfigured
from tests.cluster.nats_cluster import SECRET, a_nats_cluster


def a_seed() -> str:
    """As `nk -gen user` makes one."""
    raw = Ed25519PrivateKey.generate().private_bytes_raw()
    kind, role = 18 << 3, 20 << 3
    body = bytes([kind | (role >> 5), (role & 31) << 3]) + raw
    check = binascii.crc_hqx(body, 0).to_bytes(2, "little")
    return base64.b32encode(body + check).rstrip(b"=").decode()


def a_file(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "user.creds"
    file.write_text(text, encoding="utf-8")
    return file


async def test_nats_lets_in_whoever_holds_the_seed_and_nobody_else(tmp_path: Path) -> None:
    file = a_file(tmp_path, a_seed() + "\n")
    user = Credentials(file).public_key()
    stranger = a_file(tmp_path / "other", a_seed())
    with a_nats_cluster(tmp_path, 1, f"authorization {{ users: [ {{ nkey: {user} }} ] }}") as nats:
        bus = NatsBus(Addresses.of(nats.urls, credentials_file=file), SECRET)
        await bus.open()
        assert bus.is_connected
        await bus.close()
        wrong = NatsBus(Addresses.of(nats.urls, credentials_file=stranger), SECRET)
        await wrong.open()
        assert not wrong.is_connected
        await wrong.close()


def test_a_creds_file_holds_a_token_and_a_seed(tmp_path: Path) -> None:
    seed = a_seed()
    file = a_file(
        tmp_path,
        "-----BEGIN NATS USER JWT-----\nabc.def-_.ghi\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n",
    )
    credentials = Credentials(file)
    assert credentials.token() == b"abc.def-_.ghi"
    assert credentials.public_key().startswith("U")
    assert seed not in repr(credentials)
    assert len(base64.b64decode(credentials.signature("nonce"))) == 64


@pytest.mark.parametrize("text", ["", "SU", "SUAAAA", "SUA" + "B" * 55, "password"])
def test_a_file_without_a_seed_is_refused_without_being_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        Credentials(a_file(tmp_path, text))
    assert "nsc generate creds" in str(refused.value)
    assert len(text) < 3 or text not in str(refused.value).replace("(it begins with SU)", "")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="missing"):
        Credentials(tmp_path / "missing")
