"""The proxies for outgoing connections, from the settings or the usual variables."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_EVERYTHING: Final = "*"
_NEVER: Final = "localhost"


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The proxy URL of each scheme, and the hosts that are reached without a proxy.

    A host is exempt by its name, by a domain, by an address, by a network (`10.0.0.0/8`) or by `*`.
    All but `*` may have a port. `example.org` and `.example.org` cover all names below the domain.
    The addresses of this machine are always exempt.
    """

    http: str = field(default="", repr=False)
    https: str = field(default="", repr=False)
    exempt: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.http or self.https)

    def proxy_for(self, scheme: str, host: str, port: int) -> str:
        """Return the URL of the proxy. It is empty if the host is reached directly."""
        proxy = self.https if scheme == "https" else self.http
        return "" if not proxy or self._is_exempt(host.lower().rstrip("."), port) else proxy

    def _is_exempt(self, host: str, port: int) -> bool:
        address = _address(host)
        if host == _NEVER or host.endswith(f".{_NEVER}"):
            return True
        if address is not None and address.is_loopback:
            return True
        return any(_covers(entry.strip().lower(), host, address, port) for entry in self.exempt)


NO_PROXIES: Final = ProxySettings()


def proxies_from(proxy: str, exempt: tuple[str, ...], environ: Mapping[str, str]) -> ProxySettings:
    """Return the proxies of the settings, or those of the environment if the settings name none."""
    exempt = exempt or tuple(filter(None, _variable(environ, "NO_PROXY").split(",")))
    if proxy:
        return ProxySettings(proxy, proxy, exempt)
    usual = _variable(environ, "ALL_PROXY")
    return ProxySettings(
        _variable(environ, "HTTP_PROXY") or usual,
        _variable(environ, "HTTPS_PROXY") or usual,
        exempt,
    )


def _variable(environ: Mapping[str, str], name: str) -> str:
    """Return a variable in either spelling. Lower case wins, as with other programs."""
    return (environ.get(name.lower()) or environ.get(name) or "").strip()


def _covers(entry: str, host: str, address: "_Address | None", port: int) -> bool:
    if entry == _EVERYTHING:
        return True
    entry, _, wanted = _split_port(entry)
    if wanted and wanted != str(port):
        return False
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            return False
    domain = entry.removeprefix("*").removeprefix(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _split_port(entry: str) -> tuple[str, str, str]:
    """Split `host:8080` in its parts. The colons of a bare IPv6 address do not count."""
    if entry.count(":") > 1 and not entry.startswith("["):
        return entry, "", ""
    name, colon, port = entry.rpartition(":")
    return (name, colon, port) if colon and port.isdigit() else (entry, "", "")


type _Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
