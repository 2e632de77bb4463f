"""Where the records are kept: read from the file or the environment, and never shown."""

from datetime import timedelta
from pathlib import Path

import pytest

from comity.config import load
from comity.wire.errors import Misconfigured


def written(folder: Path, text: str) -> Path:
    path = folder / "comity.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_store_is_read_with_its_variables_and_not_shown(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '[store]\nurl = "postgresql://me:${PASSWORD}@db.example.org/comity"\n'
        'snapshot_max_age = "5s"\n',
    )
    settings = load(path, {"PASSWORD": "s3cret"})
    assert settings.store_url == "postgresql://me:s3cret@db.example.org/comity"
    assert settings.snapshot_max_age == timedelta(seconds=5)
    assert "s3cret" not in repr(settings)


def test_the_environment_names_the_store_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, '[store]\nurl = "sqlite:///here.db"\n')
    assert load(path, {}).store_url == "sqlite:///here.db"
    assert load(path, {"COMITY_STORE_URL": "sqlite:///there.db"}).store_url == "sqlite:///there.db"
    assert load(written(tmp_path, ""), {}).store_url == ""


@pytest.mark.parametrize(
    ("url", "environ", "told"),
    [
        ("mysql://s3cret@db/x", {}, "url: must be as sqlite:///comity.db or postgresql://"),
        ("sqlite:here.db", {}, "url: must be as sqlite"),
        ("sqlite:///here.db?mode=ro", {}, "url: must be as sqlite"),
        ("${STORE}", {}, "url: the variable STORE is not set"),
        ("${STORE}", {"STORE": "redis://s3cret"}, "url: must be as sqlite"),
        ("", {"COMITY_STORE_URL": "nats://s3cret"}, "url: must be as sqlite"),
    ],
)
def test_an_address_of_no_store_is_refused_and_not_quoted(
    tmp_path: Path, url: str, environ: dict[str, str], told: str
) -> None:
    path = written(tmp_path, f'[store]\nurl = "{url}"\n')
    with pytest.raises(Misconfigured, match=told) as refused:
        load(path, environ)
    assert "s3cret" not in str(refused.value)
