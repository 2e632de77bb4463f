"""How nodes find each other: read from the file or the environment, and never shown."""

from datetime import timedelta
from pathlib import Path

import pytest

from comity.app.settings_reader import load_settings
from comity.errors import Misconfigured


def written(folder: Path, text: str) -> Path:
    path = folder / "comity.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_cluster_is_read_with_its_variables_and_not_shown(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[cluster]\nurl = "nats://${TOKEN}@a.example.org:4222,tls://b.example.org"\n'
        'node = "east-1"\nname = "staging"\nheartbeat_interval = "500ms"\n'
        'dead_after = "3s"\nlease_ttl = 6\n',
    )
    settings = load_settings(path, {"TOKEN": "s3cret"})
    assert settings.cluster.url == "nats://s3cret@a.example.org:4222,tls://b.example.org"
    assert (settings.cluster.node, settings.cluster.name) == ("east-1", "staging")
    assert settings.cluster.heartbeat_interval == timedelta(milliseconds=500)
    assert settings.cluster.dead_after == timedelta(seconds=3)
    assert settings.cluster.lease_ttl == timedelta(seconds=6)
    assert "s3cret" not in repr(settings)


def test_the_environment_names_the_cluster_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, '[cluster]\nurl = "nats://here"\n')
    assert load_settings(path, {}).cluster.url == "nats://here"
    assert load_settings(path, {"COMITY_CLUSTER_URL": "nats://there"}).cluster.url == "nats://there"
    assert load_settings(written(tmp_path, ""), {}).cluster.url == ""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('url = "http://s3cret@a"', "url: must be as nats://host:4222"),
        ('url = "nats://a, nats://b"', "url: must be as nats://host:4222"),
        ('url = "${CLUSTER}"', "url: the variable CLUSTER is not set"),
        ('node = "a.b"', "node: must be 1 to 32"),
        ('name = "*"', "name: must be 1 to 32"),
        ('lease_ttl = "soon"', "lease_ttl: must be a time"),
    ],
)
def test_a_mistake_about_the_cluster_is_named_and_not_quoted(
    tmp_path: Path, line: str, told: str
) -> None:
    with pytest.raises(Misconfigured, match=told) as refused:
        load_settings(written(tmp_path, f"[cluster]\n{line}\n"), {})
    assert "s3cret" not in str(refused.value)


def test_a_server_that_runs_elsewhere_is_placed_nowhere(tmp_path: Path) -> None:
    entry = '[[servers]]\nid = "a"\nreplicas = "single"\n'
    assert (
        load_settings(written(tmp_path, f'{entry}command = "x"\n'), {}).servers[0].replicas
        == "single"
    )
    with pytest.raises(Misconfigured, match="is for servers with a command"):
        load_settings(written(tmp_path, f'{entry}url = "https://a.example.org/mcp"\n'), {})
