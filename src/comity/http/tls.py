"""The certificate of the listener, which can change while the gateway runs.

Each handshake uses the newest certificate. Open connections keep theirs, so a change drops none.
"""

import logging
import ssl
from pathlib import Path

from comity.config.secret_files import read_secret
from comity.errors import Misconfigured

log = logging.getLogger(__name__)


class ListenerCertificate:
    """The TLS contexts of a listener: one that accepts connections, and the newest behind it."""

    def __init__(self, certificate_file: str, key_file: str) -> None:
        """Raises Misconfigured if the files cannot be used."""
        self._certificate = Path(certificate_file).expanduser()
        self._key = Path(key_file).expanduser()
        self._newest = self._load()
        self._loaded = self._contents()
        self.context = self._load()
        # OpenSSL calls it in each handshake, with or without a server name.
        self.context.sni_callback = self._use_newest

    @property
    def paths(self) -> tuple[Path, ...]:
        return self._certificate, self._key

    def reload(self) -> bool:
        """Load the files again if they changed, and return whether a new certificate counts.

        Files that cannot be used change nothing; the log says why.
        """
        try:
            contents = self._contents()
            if contents == self._loaded:
                return False
            self._newest = self._load()
        except Misconfigured as problem:
            log.error("the new certificate is not used: %s", problem)  # noqa: TRY400  # an operator's error
            return False
        self._loaded = contents
        return True

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _contents(self) -> tuple[bytes, bytes]:
        try:
            return self._certificate.read_bytes(), read_secret(self._key, "tls.key_file")
        except OSError as problem:
            raise Misconfigured(
                f"tls.certificate_file: {self._certificate} cannot be read: {problem.strerror}"
            ) from None

    def _load(self) -> ssl.SSLContext:
        self._contents()
        context = _new_context()
        try:
            # Without a password, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self._certificate, self._key, password="")
        except (ssl.SSLError, OSError, ValueError) as problem:
            reason = getattr(problem, "reason", None) or type(problem).__name__
            raise Misconfigured(
                f"{self._certificate} and {self._key} are no certificate and its key in PEM form "
                f"({reason}); check tls.certificate_file and tls.key_file"
            ) from None
        return context


def _new_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def open_certificate(certificate_file: str, key_file: str) -> ListenerCertificate | None:
    """Return the certificate of the listener, or None without one. Raises Misconfigured."""
    if bool(certificate_file) != bool(key_file):
        raise Misconfigured("tls.certificate_file and tls.key_file belong together; set both")
    return ListenerCertificate(certificate_file, key_file) if certificate_file else None
