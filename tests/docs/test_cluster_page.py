"""The settings of NATS that the page about several nodes gives: three servers run with them."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from comity.cluster.bus import BusMessage
from comity.cluster.nats.addresses import NatsAddressList
from comity.cluster.nats.bus import NatsBus
from comity.cluster.nats.jetstream import NatsLeases
from comity.errors import Unavailable
from tests.cluster.nats_cluster import SECRET, NatsCluster, NatsServer
from tests.contracts.nodes import eventually, insist
from tests.docs.pages import ROOT, snippets_of

PAGE = ROOT / "docs" / "operate" / "cluster.md"


def _of(server: NatsServer, servers: list[NatsServer], text: str) -> str:
    """As the page has it, here and on free ports."""
    routes = ", ".join(f'"nats-route://127.0.0.1:{each.route_port}"' for each in servers)
    changed = (
        text.replace("nats-1", server.name, 1)
        .replace("0.0.0.0:4222", f"127.0.0.1:{server.port}")
        .replace("0.0.0.0:6222", f"127.0.0.1:{server.route_port}")
        .replace("/var/lib/nats", str(server.store))
    )
    changed = re.sub(r"routes: \[.*\]", f"routes: [{routes}]", changed)
    return f'http: "127.0.0.1:{server.watch_port}"\n{changed}'


async def test_nodes_have_all_they_need_with_the_settings_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COMITY_NATS_PASSWORD", "right")
    (settings,) = [each.text for each in snippets_of(PAGE) if each.language == "conf"]
    cluster = NatsCluster(tmp_path, 3)
    for server in cluster.servers:
        server.configure(_of(server, cluster.servers, settings))
    urls = [url.replace("//", "//comity:right@") for url in cluster.urls]
    try:
        cluster.start()
        one, other = (NatsBus(NatsAddressList.of(urls, "production"), SECRET) for _ in range(2))
        await one.open()
        await other.open()
        heard: list[BusMessage] = []
        inbox = one.inbox()
        await one.subscribe(inbox, heard.append)
        await other.subscribe("production.it", lambda asked: other.publish(asked.reply, b"yes"))

        def is_heard() -> bool:
            one.publish("production.it", b"", inbox)
            return bool(heard)

        await eventually(is_heard)
        leases = NatsLeases(one, timedelta(seconds=10))
        lease = await insist(lambda: leases.take("server.it", "n1"), Unavailable)
        assert lease is not None
        assert await leases.renew(lease)
        assert await NatsLeases(other, timedelta(seconds=10)).holder("server.it") == lease
        await leases.release(lease)
        assert "denied a permission" not in caplog.text
        one.publish("elsewhere.it", b"")
        await eventually(lambda: "denied a permission" in caplog.text)
        await one.close()
        await other.close()
    finally:
        cluster.stop()
