"""The TLS listener of the real program, with certificates that change while it runs."""

import http.client
import ipaddress
import os
import signal
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from comity.errors import Misconfigured
from comity.http.tls import open_certificate
from tests.cli.program import Desk
from tests.interop.processes import Program, running
from tests.support.fork_server import COMITY

pytestmark = pytest.mark.integration

SECONDS = 30


def write_certificate(folder: Path, mode: int = 0o600) -> int:
    """Write a new key and a certificate for 127.0.0.1 that it signs itself. Return its number."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "comity test")])
    serial, now = x509.random_serial_number(), datetime.now(UTC)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(host, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    secret = key.private_bytes(form, serialization.PrivateFormat.PKCS8, plain)
    for file, content in (("key.pem", secret), ("cert.pem", certificate.public_bytes(form))):
        # Each file is replaced as a whole, as tools for certificates do.
        draft = folder / f"{file}.new"
        draft.write_bytes(content)
        draft.chmod(mode)
        draft.replace(folder / file)
    return serial


def connect(port: int, folder: Path) -> http.client.HTTPSConnection:
    trusted = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=trusted)
    connection.connect()
    return connection


def serial_of(connection: http.client.HTTPSConnection) -> int:
    assert isinstance(connection.sock, ssl.SSLSocket)
    shown = connection.sock.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def health(connection: http.client.HTTPSConnection) -> tuple[int, bytes]:
    connection.request("GET", "/health")
    reply = connection.getresponse()
    return reply.status, reply.read()


def shown_serial(port: int) -> int:
    """The number of the certificate of a new connection, whoever signed it."""
    shown = ssl.get_server_certificate(("127.0.0.1", port), timeout=SECONDS)
    return x509.load_pem_x509_certificate(shown.encode()).serial_number


@contextmanager
def gateway(folder: Path) -> Generator[tuple[Program, int]]:
    config = folder / "comity.toml"
    config.write_text(
        f'[tls]\ncertificate_file = "{folder}/cert.pem"\nkey_file = "{folder}/key.pem"\n'
    )
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
        port = program.wait_for_line(r"listening on https://127\.0\.0\.1:(\d+)").group(1)
        yield program, int(port)


def test_a_new_certificate_counts_and_drops_no_connection(tmp_path: Path) -> None:
    first = write_certificate(tmp_path)
    with gateway(tmp_path) as (program, port):
        old = connect(port, tmp_path)
        assert serial_of(old) == first
        assert isinstance(old.sock, ssl.SSLSocket)
        assert old.sock.version() in ("TLSv1.2", "TLSv1.3")
        assert health(old) == (200, b'{"status":"ok"}')
        second = write_certificate(tmp_path)
        os.kill(program.pid, signal.SIGHUP)
        program.wait_until(lambda: shown_serial(port) == second)
        program.wait_for_line("the certificate has changed")
        assert health(old) == (200, b'{"status":"ok"}')
        fresh = connect(port, tmp_path)
        assert (serial_of(fresh), health(fresh)[0]) == (second, 200)
        old.close()
        fresh.close()


def test_files_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    first = write_certificate(tmp_path)
    with gateway(tmp_path) as (program, port):
        (tmp_path / "cert.pem").write_text("no certificate")
        program.wait_for_line("the new certificate is not used: .*cert.pem")
        assert shown_serial(port) == first
        third = write_certificate(tmp_path)
        program.wait_until(lambda: shown_serial(port) == third)


def test_old_versions_of_tls_and_plain_http_are_not_served(tmp_path: Path) -> None:
    write_certificate(tmp_path)
    with gateway(tmp_path) as (_, port):
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        plain.request("GET", "/health")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()
    certificate = open_certificate(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    assert certificate is not None
    assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_wrong_files_stop_the_start_with_what_to_do(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    write_certificate(desk.folder)
    names = {"cert": desk.folder / "cert.pem", "key": desk.folder / "key.pem"}
    text = '[tls]\ncertificate_file = "{cert}"\nkey_file = "{key}"\n'
    config = str(desk.write("comity.toml", text.format(**names)))
    names["key"].chmod(0o644)
    ran = desk.run("serve", "-c", config, "--port", "0")
    assert (ran.status, "tls.key_file: other users can read" in ran.err) == (2, True), ran
    names["key"].chmod(0o600)
    names["key"].write_text("PRIVATE s3cret")
    ran = desk.run("serve", "-c", config, "--port", "0")
    assert (ran.status, "check tls.certificate_file and tls.key_file" in ran.err) == (2, True), ran
    assert "s3cret" not in ran.err
    with pytest.raises(Misconfigured, match="belong together"):
        open_certificate("a", "")
