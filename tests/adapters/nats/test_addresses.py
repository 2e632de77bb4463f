"""Addresses of NATS, and what they do not tell."""

from pathlib import Path

import pytest

from comity.adapters.nats.addresses import Addresses, Server
from comity.wire.errors import Misconfigured
from tests.adapters.nats.test_credentials import a_file, a_seed


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("nats://host", Server("host", 4222, False)),
        ("nats://host:14222/", Server("host", 14222, False)),
        ("tls://host", Server("host", 4222, True)),
        ("nats://[::1]:4222", Server("::1", 4222, False)),
        ("nats://ana:se%40cret@host", Server("host", 4222, False, "ana", "se@cret")),
        ("nats://to-ken@host", Server("host", 4222, False, "to-ken")),
    ],
)
def test_an_address_is_read(url: str, read: Server) -> None:
    assert Server.of(url) == read


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
        Addresses.of([url])
    assert "nats://host:4222" in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_several_addresses_may_stand_in_one_text() -> None:
    addresses = Addresses.of(["nats://a, nats://b:1", "nats://c"])
    assert addresses.described == "nats://a:4222, nats://b:1, nats://c:4222"
    with pytest.raises(Misconfigured):
        Addresses.of([" , "])


def test_what_is_secret_is_in_no_text() -> None:
    addresses = Addresses.of(["nats://ana:hidden@[::1]", "nats://hidden@b"])
    for text in (repr(addresses), str(addresses), addresses.described):
        assert "hidden" not in text
    assert addresses.servers[0].url == "nats://[::1]:4222"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "x" * 65])
def test_a_deployments_name_is_a_part_of_a_subject(name: str) -> None:
    with pytest.raises(Misconfigured, match="deployment"):
        Addresses.of(["nats://a"], name)


def test_an_authority_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing", encoding="utf-8")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(Misconfigured, match=name):
            Addresses.of(["tls://a"], authority_file=tmp_path / name)
    assert Addresses.of(["tls://a"]).encryption is not None
    assert Addresses.of(["nats://a"]).encryption is None


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
    Addresses.of([url]).refuse_open_servers()


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
        Addresses.of([url]).refuse_open_servers()
    assert "hidden" not in str(refused.value)
    assert "127.0.0.1:" not in str(refused.value)


def test_a_file_of_credentials_is_a_login(tmp_path: Path) -> None:
    file = a_file(tmp_path, a_seed())
    Addresses.of(["nats://10.0.0.1"], credentials_file=file).refuse_open_servers()
