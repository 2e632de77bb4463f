"""The bus on NATS where the network or NATS itself misbehaves; what all promise is a contract."""

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from comity.cluster.bus import BusMessage
from comity.cluster.nats import connection
from comity.cluster.nats.addresses import NatsAddressList
from comity.cluster.nats.bus import NatsBus
from comity.cluster.nats.connection import MOST_WAITING
from comity.cluster.nats.seals import SEAL_SIZE
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from tests.cluster.nats_cluster import SECRET, NatsCluster, a_nats_cluster
from tests.cluster.proxies import a_proxy
from tests.contracts.nodes import eventually
from tests.interop.processes import free_port

KIB = b"x" * 1024


@contextlib.asynccontextmanager
async def a_bus(*urls: str) -> AsyncGenerator[NatsBus]:
    bus = NatsBus(NatsAddressList.of(urls), SECRET)
    await bus.open()
    try:
        yield bus
    finally:
        await bus.close()


async def test_a_server_that_falls_silent_is_left_for_another_while_a_node_keeps_talking(
    nats: NatsCluster,
) -> None:
    """nats.py #671: with a full buffer, closing a dead connection took minutes. Here, seconds."""
    async with (
        a_proxy(nats.servers[0].port) as one,
        a_proxy(nats.servers[0].port) as two,
        a_bus(*nats.urls) as hearer,
        a_bus(f"nats://127.0.0.1:{one.port}", f"nats://127.0.0.1:{two.port}") as speaker,
    ):
        heard: list[BusMessage] = []
        own: list[BusMessage] = []
        changes: list[bool] = []
        await hearer.subscribe("talk.it", heard.append)
        await speaker.subscribe("talk.*", own.append)
        speaker.watch(changes.append)
        (one if one.connections else two).swallow()
        refused = 0
        began = time.monotonic()
        while changes != [False, True]:
            assert time.monotonic() - began < 15
            try:
                speaker.publish("talk.it", KIB * 64)
            except Unavailable:
                refused += 1
            await asyncio.sleep(0.001)
        # More than the socket and our bound together hold was offered, and none of it was kept.
        assert refused > 0
        before = len(heard)
        speaker.publish("talk.it", b"back")
        await eventually(lambda: len(heard) > before and heard[-1].data == b"back")
        hearer.publish("talk.it", b"and you")
        await eventually(lambda: bool(own))
        assert [each.data for each in own] == [b"and you"]


async def test_what_a_silent_server_still_held_comes_to_nobody_when_it_speaks_again(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It would come after what was said over the next connection, and to its own sender."""
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 2) as nats:
        first, second = nats.servers
        async with a_bus(second.url) as hearer, a_bus(first.url, second.url) as speaker:
            await _on(speaker, first.port)
            heard: list[bytes] = []
            own: list[BusMessage] = []
            changes: list[bool] = []
            await hearer.subscribe("late.it", lambda each: heard.append(each.data))
            await speaker.subscribe("late.it", own.append)
            await _until_heard(speaker, "late.it", heard)
            speaker.watch(changes.append)
            first.fall_silent()
            for number in range(50):
                speaker.publish("late.it", b"before %d" % number)
            await speaker.wait_until_drained()
            await eventually(lambda: changes == [False, True])
            await _until_heard(speaker, "late.it", heard, b"after")
            first.speak_again()
            await nats.ready()
            # Whatever `first` held is out before what another of its clients says now.
            async with a_bus(first.url) as third:
                await _until_heard(third, "late.it", heard, b"end")
            after = heard[heard.index(b"after") :]
            assert [each for each in after if each.startswith(b"before")] == []
            assert [each.data for each in own if each.data != b"end"] == []


async def _on(bus: NatsBus, port: int) -> None:
    """Until it is connected to that server, which chance decides."""
    for _ in range(64):
        reached = bus.connection.connected_url
        assert reached is not None
        if reached.port == port:
            return
        lost = bus.connection.lost
        bus.connection.lose("to try again")
        await eventually(lambda lost=lost: lost.done() and bus.is_connected)
    raise AssertionError("never there")


async def _until_heard(
    bus: NatsBus, subject: str, heard: list[bytes], data: bytes = b"first"
) -> None:
    def is_heard() -> bool:
        with contextlib.suppress(Unavailable):
            bus.publish(subject, data)
        return data in heard

    await eventually(is_heard)


def _fill(bus: NatsBus) -> int:
    """How much was taken before it was too much."""
    for number in range(10 * MOST_WAITING // len(KIB * 512)):
        try:
            bus.publish("much.it", KIB * 512)
        except Unavailable as refused:
            assert "too much waits" in str(refused)  # noqa: PT017 (it may come or not)
            return number * len(KIB * 512)
    raise AssertionError("there is no end to what is taken")


async def test_what_waits_to_go_is_bounded(nats: NatsCluster) -> None:
    async with (
        a_proxy(nats.servers[0].port) as proxy,
        a_bus(f"nats://127.0.0.1:{proxy.port}") as bus,
    ):
        proxy.swallow()
        sent = _fill(bus)
        # Without a turn of the loop the socket took what it could, and we kept the rest.
        assert MOST_WAITING <= sent < 4 * MOST_WAITING
        proxy.forward()
        await bus.wait_until_drained()
        bus.publish("much.it", b"again")


async def test_whoever_waits_for_room_on_a_connection_that_is_lost_is_told(
    nats: NatsCluster,
) -> None:
    async with (
        a_proxy(nats.servers[0].port) as proxy,
        a_bus(f"nats://127.0.0.1:{proxy.port}") as bus,
    ):
        proxy.swallow()
        _fill(bus)
        draining = asyncio.ensure_future(bus.wait_until_drained())
        with pytest.raises(Unavailable):
            await asyncio.wait_for(draining, 20)


async def test_what_is_larger_than_nats_takes_is_refused_before_nats_cuts_us_off(
    nats: NatsCluster,
) -> None:
    async with a_bus(*nats.urls) as bus, a_bus(*nats.urls) as other:
        heard: list[BusMessage] = []
        await other.subscribe("large.it", heard.append)
        with pytest.raises(MalformedMessage, match="max_payload"):
            bus.publish("large.it", KIB * 1024)
        bus.publish("large.it", (KIB * 1024)[:-SEAL_SIZE])
        await eventually(lambda: bool(heard))
        assert bus.is_connected


async def test_a_node_may_start_before_nats_and_finds_it_later(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), 1)
    bus = NatsBus(NatsAddressList.of([cluster.urls[0].replace("//", "//ana:hidden@")]), SECRET)
    told: list[bool] = []
    bus.watch(told.append)
    await bus.open()
    try:
        assert not bus.is_connected
        with pytest.raises(Unavailable):
            bus.publish("a", b"")
        heard: list[BusMessage] = []
        await bus.subscribe("early.it", heard.append)
        await asyncio.to_thread(cluster.start)
        await eventually(lambda: told == [True])
        async with a_bus(*cluster.urls) as other:
            other.publish("early.it", b"good morning")
            await eventually(lambda: bool(heard))
    finally:
        await bus.close()
        cluster.stop()
    said = [each for each in caplog.records if "no connection to NATS" in each.getMessage()]
    assert len(said) == 1, "the same reason is told once"
    assert "hidden" not in caplog.text + repr(bus)


async def test_a_wrong_password_is_told_and_tried_again_for_ever(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    settings = "authorization { user: ana, password: right }"
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 1, settings) as cluster:
        async with a_bus(cluster.urls[0].replace("//", "//ana:hidden@")) as bus:
            assert not bus.is_connected
            assert "Authorization Violation" in caplog.text
            assert "hidden" not in caplog.text
        async with a_bus(cluster.urls[0].replace("//", "//ana:right@")) as bus:
            assert bus.is_connected


async def test_credentials_never_go_to_a_server_that_does_not_encrypt(nats: NatsCluster) -> None:
    """Whoever is in between could say that encryption is not needed."""
    given = bytearray()
    listening: set[asyncio.StreamWriter] = set()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listening.add(writer)
        writer.write(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576}\r\n')
        with contextlib.suppress(OSError):
            given.extend(await reader.read(65_536))
        writer.transport.abort()
        listening.discard(writer)

    port = free_port()
    server = await asyncio.start_server(listen, "127.0.0.1", port)
    try:
        async with a_bus(f"tls://ana:hidden@127.0.0.1:{port}") as bus:
            assert not bus.is_connected
        await eventually(lambda: not listening)
    finally:
        server.close()
    assert bytes(given) == b""


async def test_a_hearer_that_is_slow_delays_its_node_and_loses_nothing(nats: NatsCluster) -> None:
    async with a_bus(*nats.urls) as speaker, a_bus(*nats.urls) as other:
        heard: list[int] = []

        def hear(each: BusMessage) -> None:
            if len(heard) % 500 == 0:
                time.sleep(0.02)  # the loop itself stands still
            heard.append(int(each.data[:8]))

        await other.subscribe("slow.it", hear)
        for number in range(5000):
            speaker.publish("slow.it", b"%08d" % number + KIB)
            if number % 200 == 0:
                await speaker.wait_until_drained()
        await eventually(lambda: len(heard) == 5000)
        assert heard == list(range(5000))


async def test_a_node_too_slow_for_nats_is_cut_off_and_told(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """NATS drops a client whose socket stays full; that is a lost connection, never silence."""
    caplog.set_level(logging.WARNING)
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), 1)
    try:
        cluster.start()
        port = cluster.servers[0].port
        async with (
            a_proxy(port) as proxy,
            a_bus(*cluster.urls) as speaker,
            a_bus(f"nats://127.0.0.1:{proxy.port}") as slow,
        ):
            changes: list[bool] = []
            slow.watch(changes.append)
            await slow.subscribe("flood.it", lambda _: None)
            proxy.swallow()
            for _ in range(64):
                speaker.publish("flood.it", KIB * 512)
                await speaker.wait_until_drained()
            await eventually(lambda: changes[:1] == [False])
            proxy.forward()
            await eventually(lambda: changes == [False, True])
        assert "the connection to NATS is lost" in caplog.text
    finally:
        cluster.stop()


async def test_whoever_may_not_use_a_subject_is_told_and_stays_connected(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    settings = (
        "authorization { users: [ { user: ana, password: right,"
        ' permissions: { publish: "may.>", subscribe: "may.>" } } ] }'
    )
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 1, settings) as cluster:
        async with a_bus(cluster.urls[0].replace("//", "//ana:right@")) as bus:
            bus.publish("may.not", b"")
            bus.publish("mayhem", b"")
            await bus.connection.settled()
            assert bus.is_connected
    assert "NATS denied a permission" in caplog.text


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
        trusting = NatsAddressList.of([url], authority_file=folder / "server.pem")
        one, other = NatsBus(trusting, SECRET), NatsBus(trusting, SECRET)
        wrong = NatsBus(NatsAddressList.of([url], authority_file=folder / "stranger.pem"), SECRET)
        for bus in (one, other, wrong):
            await bus.open()
        try:
            heard: list[BusMessage] = []
            await other.subscribe("a", heard.append)
            one.publish("a", b"x" * 300_000)
            await one.wait_until_drained()
            one.publish("a", b"end")
            await eventually(lambda: len(heard) == 2)
            assert [len(each.data) for each in heard] == [300_000, 3]
            assert not wrong.is_connected
            assert "CERTIFICATE_VERIFY_FAILED" in caplog.text
        finally:
            for bus in (one, other, wrong):
                await bus.close()


async def version_at(url: str) -> str:
    addresses = NatsAddressList.of([url])
    return await connection.usable_version(addresses.servers[0], addresses)


async def test_a_server_that_nodes_can_use_tells_its_version(nats: NatsCluster) -> None:
    major, minor, _ = (await version_at(nats.servers[0].url)).split(".")
    assert (int(major), int(minor)) >= connection.OLDEST


async def test_an_old_server_is_refused(nats: NatsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OLDEST", (99, 1))
    with pytest.raises(Misconfigured, match=r"it runs version 2\.\d+\.\d+; nodes need 99.1"):
        await version_at(nats.servers[0].url)


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path, 1)
    server = cluster.servers[0]
    server.configure(f'listen: "127.0.0.1:{server.port}"\nhttp: "127.0.0.1:{server.watch_port}"\n')
    try:
        cluster.start()
        with pytest.raises(Unavailable, match="JetStream is off"):
            await version_at(server.url)
    finally:
        cluster.stop()


async def test_an_account_without_jetstream_is_refused(tmp_path: Path) -> None:
    accounts = "accounts { A { users: [{user: u, password: p}] } }"
    with a_nats_cluster(tmp_path, 1, accounts) as cluster:
        url = cluster.servers[0].url
        with pytest.raises(Unavailable, match="this account may not use JetStream"):
            await version_at(url.replace("//", "//u:p@"))
        with pytest.raises(Unavailable, match=r"(?i)authorization"):
            await version_at(url.replace("//", "//u:wrong@"))


async def test_a_server_that_is_away_is_told() -> None:
    with pytest.raises(Unavailable, match=r"refused|failed"):
        await version_at(f"nats://127.0.0.1:{free_port()}")
