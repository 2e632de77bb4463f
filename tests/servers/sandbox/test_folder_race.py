"""One server exchanges a folder for a link, while another one is started with the folder."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from comity.errors import Unavailable
from comity.servers.sandbox import reach, wiring
from comity.servers.sandbox.launch import sandbox_command
from comity.servers.sandbox.model import (
    LEVEL_BY_LABEL,
    SandboxAccess,
    SandboxLevel,
    SandboxLimits,
)
from comity.servers.sandbox.reach import open_folders
from comity.servers.sandbox.service import SandboxRequest
from tests.interop.processes import comity
from tests.servers.sandbox.levels import BOTH_LEVELS, opened_policy, skip_without
from tests.servers.sandbox.test_confined_gateway import LEVELS, Confined, within

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]

SERVER = Path(__file__).with_name("swapping_server.py")
RESTARTS = 20

each_level = pytest.mark.parametrize("level", BOTH_LEVELS, ids=lambda level: level.label)


@contextmanager
def two_servers(folder: Path, level: str, outer: Path, inner: Path) -> Generator[Confined]:
    """Run a gateway whose server `writer` may write to a folder, and `reader` read one inside."""
    entries = "".join(
        f"""
[[servers]]
id = "{name}"
command = {json.dumps(sys.executable)}
args = ["-I", "-S", {json.dumps(str(SERVER))}]
sandbox = "{level}"
max_restarts = 1000
backoff_base = "50ms"
backoff_max = "50ms"

[servers.policy]
permissions = {{ "{permission}" = [{json.dumps(str(place))}] }}
"""
        for name, permission, place in (
            ("writer", "filesystem.write", outer),
            ("reader", "filesystem.read", inner),
        )
    )
    config = folder / "comity.toml"
    config.write_text(f'[store]\nurl = "sqlite:///{folder / "store.db"}"\n{entries}')
    with comity(config) as origin:
        yield Confined(origin, config)


@LEVELS
def test_a_folder_that_is_exchanged_during_starts_opens_nothing_else(
    level: str, tmp_path: Path
) -> None:
    skip_without(LEVEL_BY_LABEL[level])
    docs, secret = tmp_path / "data" / "docs", tmp_path / "secret"
    for place, text in ((docs, "a document"), (secret, "the secret")):
        place.mkdir(parents=True)
        (place / "file").write_text(text)
    (tmp_path / "data" / "link").symlink_to(secret)
    with two_servers(tmp_path, level, docs.parent, docs) as gateway:
        body = {"folder": str(docs), "link": str(docs.with_name("link"))}
        assert "swapping" in json.dumps(gateway.ask("/tools/writer__swap", body))
        texts = list[str]()
        for _ in range(RESTARTS):
            gateway.ask("/api/servers/reader/restart", {})
            answers = list[str]()

            def reads(answers: list[str] = answers) -> bool:
                said = gateway.ask("/tools/reader__read", {"path": str(docs / "file")})
                answers.append(json.dumps(said))
                return "a document" in answers[-1] or "the secret" in answers[-1]

            assert within(reads, 60), answers[-1]
            texts.append(answers[-1])
    assert ["the secret" in text for text in texts] == [False] * RESTARTS


@each_level
@pytest.mark.parametrize("is_writable", [False, True], ids=["readable", "writable"])
def test_a_folder_that_is_exchanged_after_its_check_is_not_mounted(
    level: SandboxLevel, is_writable: bool, tmp_path: Path
) -> None:
    skip_without(level)
    place, secret, own = (tmp_path / name for name in ("place", "secret", "own"))
    for folder in (place, secret, own):
        folder.mkdir()
        (folder / "file").write_text(f"the file in {folder.name}")
    places = (str(place),)
    access = SandboxAccess(writable=places) if is_writable else SandboxAccess(places)
    with opened_policy(level, access, SandboxLimits()) as policy:
        argv = sandbox_command(
            policy,
            (sys.executable, "-I", "-S", "-c", f"print(open({str(place / 'file')!r}).read())"),
            os.environ,
            folder=str(own),
            scratch=str(own),
        )

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

        assert run().stdout == "the file in place\n"
        place.rename(tmp_path / "aside")
        place.symlink_to(secret)
        linked = run()
        place.unlink()
        secret.rename(place)
        replaced = run()
        place.rename(secret)
        absent = run()
    for done in (linked, replaced, absent):
        assert (done.returncode != 0, done.stdout) == (True, ""), done
    assert "was exchanged for another folder" in linked.stderr + replaced.stderr


def test_a_part_that_becomes_a_link_during_the_check_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, secret = tmp_path / "w" / "place", tmp_path / "secret"
    place.mkdir(parents=True)
    secret.mkdir()
    follow = reach.follow_links

    def follow_then_swap(path: str, folders: list[str]) -> tuple[Path, str | None]:
        found = follow(path, folders)
        place.rmdir()
        place.symlink_to(secret)
        return found

    monkeypatch.setattr(reach, "follow_links", follow_then_swap)
    with pytest.raises(Unavailable, match="was exchanged for a link"):
        open_folders(SandboxAccess((str(place),)), [str(tmp_path / "w")])


def test_what_was_opened_is_closed_where_a_later_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "link").symlink_to(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(Unavailable, match="leads through"):
        open_folders(
            SandboxAccess((str(tmp_path / "a"), str(tmp_path / "w" / "link"))),
            [str(tmp_path / "w")],
        )
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_image_gets_no_folder_that_a_server_could_exchange(tmp_path: Path) -> None:
    docs = tmp_path / "data" / "docs"
    docs.mkdir(parents=True)
    request = SandboxRequest(
        "oci", must_confine=True, access=SandboxAccess((str(docs),)), limits=SandboxLimits()
    )
    with pytest.raises(Unavailable, match="could be exchanged at the start of an image"):
        wiring.open_checked("image", request, [str(docs.parent)], ())
    wiring.open_checked("image", request, [str(docs)], ()).close()
