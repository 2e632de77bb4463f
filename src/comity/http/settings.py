"""The tables `[network]` and `[tls]`, and the types of settings for hosts and networks."""

from dataclasses import dataclass
from typing import Final

from comity.config.document import ConfigValue
from comity.config.fields import FieldType, setting, text_list_type
from comity.http.trusted_proxies import TrustedProxies


def _networks(value: ConfigValue) -> tuple[str, ...]:
    for item in value.items():
        try:
            TrustedProxies([item.text()])
        except ValueError:
            raise item.wrong("must be written as 10.0.0.0/8, 192.0.2.7 or 2001:db8::/32") from None
    return tuple(item.text() for item in value.items())


NETWORKS: Final = FieldType(
    _networks, {"type": "array", "items": {"type": "string", "pattern": "^[0-9A-Fa-f:./]+$"}}
)
HOSTS: Final = text_list_type(
    r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "gateway.example.org, without a port"
)
ORIGINS: Final = text_list_type(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+", "https://app.example.org")
_EXEMPT: Final = text_list_type(r"\S+", "a host, a domain or a network, as 10.0.0.0/8")


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The proxy for outgoing connections, and the hosts that need none."""

    proxy: str = setting(
        "", "The HTTP proxy for outgoing connections; unset, HTTPS_PROXY and HTTP_PROXY decide."
    )
    no_proxy: tuple[str, ...] = setting(
        (), "Hosts that Comity reaches without the proxy; unset, NO_PROXY decides.", _EXEMPT
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The certificate of the listener."""

    certificate_file: str = setting(
        "", "The PEM file of the certificate and its chain; with it, Comity listens with TLS."
    )
    key_file: str = setting("", "The PEM file of its private key, which only its owner may read.")
