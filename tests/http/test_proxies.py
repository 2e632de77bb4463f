"""`http/client/proxies.py`: which connections go through a proxy."""

from comity.http.client.proxies import ProxySettings, proxies_from
from tests.support.cases import loop_over

PROXY = "http://proxy.example.org:3128"


@loop_over(
    ("exempt", "host", "port", "is_direct"),
    [
        ("", "api.example.com", 443, False),
        ("example.com", "example.com", 443, True),
        ("example.com", "api.example.com", 443, True),
        (".example.com", "api.example.com", 443, True),
        ("*.example.com", "api.example.com", 443, True),
        ("example.com", "notexample.com", 443, False),
        ("example.com", "API.Example.COM.", 443, True),
        ("example.com:8443", "example.com", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("10.0.0.0/8", "10.1.2.3", 80, True),
        ("10.0.0.0/8", "11.1.2.3", 80, False),
        ("10.0.0.0/8", "ten.example", 80, False),
        ("10.1.2.3:80", "10.1.2.3", 80, True),
        ("10.1.2.3:80", "10.1.2.3", 81, False),
        ("fd00::/8", "fd00::1", 80, True),
        ("[fd00::1]:80", "fd00::1", 80, True),
        ("fd00::1", "fd00::2", 80, False),
        ("*", "anything.example", 1, True),
        ("other.example, example.com ", "example.com", 1, True),
        ("", "localhost", 80, True),
        ("", "db.localhost", 80, True),
        ("", "127.8.9.1", 80, True),
        ("", "::1", 80, True),
        ("not/a/network", "10.0.0.1", 80, False),
        (",,", "example.com", 80, False),
    ],
)
def test_a_host_is_reached_directly_where_it_is_exempt(
    exempt: str, host: str, port: int, is_direct: bool
) -> None:
    proxies = ProxySettings(PROXY, PROXY, tuple(exempt.split(",")))
    assert proxies.proxy_for("https", host, port) == ("" if is_direct else PROXY)


def test_each_scheme_has_its_variable_and_small_letters_win() -> None:
    environ = {"HTTPS_PROXY": "http://a:1", "https_proxy": "http://b:2", "HTTP_PROXY": "http://c:3"}
    found = proxies_from("", (), environ)
    assert found.proxy_for("https", "example.com", 443) == "http://b:2"
    assert found.proxy_for("http", "example.com", 80) == "http://c:3"
    everything = proxies_from("", (), {"ALL_PROXY": "http://d:4", "NO_PROXY": "example.com"})
    assert everything.proxy_for("http", "example.org", 80) == "http://d:4"
    assert everything.proxy_for("http", "www.example.com", 80) == ""
    assert not proxies_from("", (), {})


def test_a_setting_wins_over_the_environment() -> None:
    environ = {"HTTPS_PROXY": "http://a:1", "NO_PROXY": "example.com"}
    found = proxies_from(PROXY, (), environ)
    assert found.proxy_for("https", "example.org", 443) == PROXY
    assert found.proxy_for("https", "example.com", 443) == ""
    assert proxies_from(PROXY, ("other",), environ).proxy_for("https", "example.com", 443) == PROXY


def test_credentials_of_a_proxy_are_not_shown() -> None:
    assert "hush" not in repr(proxies_from("http://me:hush@proxy:1", (), {}))
