"""Addresses of NATS and credentials in a file, and what they do not tell."""

import base64
import binascii
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from comity.cluster.nats.addresses import NatsAddressList, NatsCredentials, NatsServerAddress
from comity.cluster.nats.bus import NatsBus
from comity.errors import Misconfigured
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
    user = NatsCredentials(file).public_key()
    stranger = a_file(tmp_path / "other", a_seed())
    with a_nats_cluster(tmp_path, 1, f"authorization {{ users: [ {{ nkey: {user} }} ] }}") as nats:
        bus = NatsBus(NatsAddressList.of(nats.urls, credentials_file=file), SECRET)
        await bus.open()
        assert bus.is_connected
        await bus.close()
        wrong = NatsBus(NatsAddressList.of(nats.urls, credentials_file=stranger), SECRET)
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
    credentials = NatsCredentials(file)
    assert credentials.token() == b"abc.def-_.ghi"
    assert credentials.public_key().startswith("U")
    assert seed not in repr(credentials)
    assert len(base64.b64decode(credentials.signature("nonce"))) == 64


@pytest.mark.parametrize("text", ["", "SU", "SUAAAA", "SUA" + "B" * 55, "password"])
def test_a_file_without_a_seed_is_refused_without_being_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        NatsCredentials(a_file(tmp_path, text))
    assert "nsc generate creds" in str(refused.value)
    assert len(text) < 3 or text not in str(refused.value).replace("(it begins with SU)", "")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="missing"):
        NatsCredentials(tmp_path / "missing")


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("nats://host", NatsServerAddress("host", 4222, False)),
        ("nats://host:14222/", NatsServerAddress("host", 14222, False)),
        ("tls://host", NatsServerAddress("host", 4222, True)),
        ("nats://[::1]:4222", NatsServerAddress("::1", 4222, False)),
        ("nats://ana:se%40cret@host", NatsServerAddress("host", 4222, False, "ana", "se@cret")),
        ("nats://to-ken@host", NatsServerAddress("host", 4222, False, "to-ken")),
    ],
)
def test_an_address_is_read(url: str, read: NatsServerAddress) -> None:
    assert NatsServerAddress.of(url) == read


@pytest.mark.parametrize(
    "url",
    [
        "host",
        "http://ana:hidden@host",
        "nats://",
        "nats://ana:hidden@host:nought",
        "nats://ana:hidden@host:70000",
        "nats://ana:hidden@host/path",
        "nats://host?password=hidden",
        "nats://[::1",
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        NatsAddressList.of([url])
    assert "nats://host:4222" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_several_addresses_may_stand_in_one_text() -> None:
    addresses = NatsAddressList.of(["nats://a, nats://b:1", "nats://c"])
    assert addresses.described == "nats://a:4222, nats://b:1, nats://c:4222"
    with pytest.raises(Misconfigured):
        NatsAddressList.of([" , "])


def test_what_is_secret_is_in_no_text() -> None:
    addresses = NatsAddressList.of(["nats://ana:hidden@[::1]", "nats://hidden@b"])
    for text in (repr(addresses), str(addresses), addresses.described):
        assert "hidden" not in text
    assert addresses.servers[0].url == "nats://[::1]:4222"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "x" * 65])
def test_a_deployments_name_is_a_part_of_a_subject(name: str) -> None:
    with pytest.raises(Misconfigured, match="deployment"):
        NatsAddressList.of(["nats://a"], name)


def test_an_authority_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing", encoding="utf-8")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(Misconfigured, match=name):
            NatsAddressList.of(["tls://a"], authority_file=tmp_path / name)
    assert NatsAddressList.of(["tls://a"]).encryption is not None
    assert NatsAddressList.of(["nats://a"]).encryption is None


@pytest.mark.parametrize(
    "url",
    [
        "nats://127.0.0.1:4222",
        "nats://127.9.9.9",
        "nats://[::1]",
        "nats://LocalHost",
        "nats://ana:hidden@nats.example.org",
        "tls://to-ken@10.0.0.1",
    ],
)
def test_a_server_of_this_machine_or_with_a_login_is_not_open(url: str) -> None:
    NatsAddressList.of([url]).refuse_open_servers()


@pytest.mark.parametrize(
    "url",
    [
        "nats://10.0.0.1",
        "tls://nats.example.org",
        "nats://127.0.0.1.example.org",
        "nats://0.0.0.0",
        "nats://127.0.0.1,nats://10.0.0.1",
        "nats://hidden@127.0.0.1,nats://10.0.0.1",
    ],
)
def test_a_server_beyond_this_machine_without_a_login_is_refused_with_what_to_do(url: str) -> None:
    with pytest.raises(Misconfigured, match="allow_open_nats = true") as refused:
        NatsAddressList.of([url]).refuse_open_servers()
    assert "hidden" not in str(refused.value)
    assert "127.0.0.1:" not in str(refused.value)


def test_a_file_of_credentials_is_a_login(tmp_path: Path) -> None:
    file = a_file(tmp_path, a_seed())
    NatsAddressList.of(["nats://10.0.0.1"], credentials_file=file).refuse_open_servers()
