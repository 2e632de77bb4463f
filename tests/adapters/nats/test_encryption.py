"""The bus over TLS, with a NATS server that has a certificate of an authority of our own."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from comity.adapters.nats.addresses import Addresses
from comity.adapters.nats.bus import NatsBus
from comity.ports.clustering import Heard
from tests.cluster.nats_cluster import SECRET, a_nats_cluster
from tests.contracts.nodes import eventually


def _write_down(folder: Path, name: str, key: ec.EllipticCurvePrivateKey) -> None:
    """A certificate that vouches for itself, for 127.0.0.1 alone."""
    now = datetime.now(UTC)
    title = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(title)
        .issuer_name(title)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("server", "stranger"):
        _write_down(tmp_path, name, ec.generate_private_key(ec.SECP256R1()))
    return tmp_path


async def test_nodes_hear_each_other_encrypted_and_trust_nobody_else(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = f'cert_file: "{folder / "server.pem"}", key_file: "{folder / "server.key"}"'
    with a_nats_cluster(folder / "nats", 1, f"tls {{ {files} }}") as nats:
        url = nats.urls[0].replace("nats://", "tls://")
        trusting = Addresses.of([url], authority_file=folder / "server.pem")
        one, other = NatsBus(trusting, SECRET), NatsBus(trusting, SECRET)
        wrong = NatsBus(Addresses.of([url], authority_file=folder / "stranger.pem"), SECRET)
        for bus in (one, other, wrong):
            await bus.open()
        try:
            heard: list[Heard] = []
            await other.subscribe("a", heard.append)
            one.publish("a", b"x" * 300_000)
            await one.drained()
            one.publish("a", b"end")
            await eventually(lambda: len(heard) == 2)
            assert [len(each.data) for each in heard] == [300_000, 3]
            assert not wrong.is_connected
            assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
        finally:
            for bus in (one, other, wrong):
                await bus.close()
