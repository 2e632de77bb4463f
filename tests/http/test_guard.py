"""Who is counted as whom among those who connect; what they may hold is in test_connection."""

from comity.http.connection import source_of
from tests.support.cases import loop_over


@loop_over(
    ("address", "source"),
    [
        ("", ""),
        ("192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_connections_are_counted_by_whom_they_come_from(address: str, source: str) -> None:
    assert source_of(address) == source
