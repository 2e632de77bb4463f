"""The lock file: what it holds, what it never holds, and damaged ones."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comity.app.settings_reader import ConfigSource, compare_settings
from comity.errors import Misconfigured
from comity.servers.packages.lock_file import lock_path, parse_lock, render_lock
from comity.servers.packages.model import (
    NOT_LOCKED,
    LockedPackage,
    LockedServer,
    WrittenEntry,
)
from comity.servers.packages.rules import resolution_digest
from tests.support.cases import loop_over

RESOLUTION = "notes==1.0 \\\n    --hash=sha256:" + "a" * 64 + "\n"
PACKAGE = LockedPackage("pypi", "notes", "1.0", resolution_digest(RESOLUTION), RESOLUTION)
ENTRY = WrittenEntry("uvx", ("notes", "${secret:KEY}"), "", ("TOKEN",))
LOCKED = {"notes": LockedServer(ENTRY, PACKAGE, {"keep": "ab" * 32}), "far": NOT_LOCKED}
FILE = Path("comity.lock")
TEXT = render_lock(LOCKED)
_words = st.text(max_size=20)


def test_a_lock_file_is_read_as_it_was_written() -> None:
    assert parse_lock(FILE, TEXT.encode()) == LOCKED
    assert render_lock(parse_lock(FILE, TEXT.encode())) == TEXT


@given(_words, st.tuples(_words, _words), st.dictionaries(_words, _words), _words)
@settings(max_examples=150, deadline=None)
def test_any_text_survives_a_lock_file(
    id: str, words: tuple[str, str], tools: dict[str, str], resolution: str
) -> None:
    package = LockedPackage("npm", words[0], "1", resolution_digest(resolution), resolution)
    locked = {id: LockedServer(WrittenEntry(words[1], words, env=words), package, tools)}
    assert parse_lock(FILE, render_lock(locked).encode()) == locked


@loop_over(
    "before, after",
    [
        (PACKAGE.digest, "sha256:" + "0" * 64),
        ("--hash=sha256:aa", "--hash=sha256:ab"),
        ("format = 1", "format = 2"),
        ("format = 1", ""),
        ("format = 1", "format = 1\nextra = 2"),
        ('id = "notes"', 'id = "far"'),
        ('id = "notes"', 'id = "notes"\nid = "notes"'),
        ("args = [", "args = [1, "),
        ("[resolutions]", "[other]"),
        ("[resolutions]", "[resolutions"),
    ],
)
def test_an_edited_lock_file_is_refused(before: str, after: str) -> None:
    assert before in TEXT
    with pytest.raises(Misconfigured, match=r"comity\.lock"):
        parse_lock(FILE, TEXT.replace(before, after, 1).encode())


@loop_over("data", [b"\xff\xfe", b"a = " + b"[" * 5000, b"", b"servers = 1\nformat = 1"])
def test_a_file_that_is_no_lock_is_refused(data: bytes) -> None:
    with pytest.raises(Misconfigured, match=r"comity\.lock"):
        parse_lock(FILE, data)


CONFIG = """\
[[servers]]
id = "notes"
command = "uvx"
args = ["notes", "--key", "${secret:KEY}", "${ZONE}"]
env = { TOKEN = "${TOKEN}", LEVEL = "S3CRET-literal" }
[[servers]]
id = "far"
url = "https://user:S3CRET@example.org/mcp/S3CRET"
headers = { Authorization = "Bearer S3CRET" }
"""


def loaded(folder: Path, text: str = CONFIG, **environ: str) -> ConfigSource:
    (folder / "comity.toml").write_text(text)
    (folder / "secrets").mkdir(exist_ok=True)
    known = {"ZONE": "S3CRET", "TOKEN": "S3CRET", "KEY": "S3CRET", **environ}
    return ConfigSource(folder, folder, known, folder / "comity.toml", needs_trust=False)


def test_the_values_of_variables_and_secrets_are_in_no_lock_file(tmp_path: Path) -> None:
    servers = loaded(tmp_path).load().settings.servers
    text = render_lock({each.id: LockedServer(each.written) for each in servers})
    assert "S3CRET" not in text
    notes, far = sorted(tomllib.loads(text)["servers"], key=lambda each: each["id"], reverse=True)
    assert notes["args"] == ["notes", "--key", "${secret:KEY}", "${ZONE}"]
    assert notes["env"] == ["LEVEL", "TOKEN"]
    assert far == {"id": "far", "url": "https://example.org", "headers": ["Authorization"]}


def test_without_a_lock_file_no_server_has_an_entry(tmp_path: Path) -> None:
    assert [each.lock for each in loaded(tmp_path).load().settings.servers] == [None, None]


def test_the_lock_file_beside_the_configuration_gives_each_server_its_entry(
    tmp_path: Path,
) -> None:
    source = loaded(tmp_path)
    lock_path(tmp_path / "comity.toml").write_text(TEXT.replace('id = "far"', 'id = "gone"'))
    notes, far = source.load().settings.servers
    assert (notes.lock, far.lock) == (LOCKED["notes"], NOT_LOCKED)


def test_a_damaged_lock_file_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    source = loaded(tmp_path)
    lock_path(tmp_path / "comity.toml").write_text("format = 'x'")
    with pytest.raises(Misconfigured, match="comity servers update"):
        source.load()


def test_other_approved_tools_restart_no_server_but_another_package_does(tmp_path: Path) -> None:
    source = loaded(tmp_path)
    file = lock_path(tmp_path / "comity.toml")
    file.write_text(TEXT)
    before = source.load().settings
    file.write_text(TEXT.replace("ab" * 32, "cd" * 32))
    tools = compare_settings(before, source.load().settings)
    assert [each.id for each in tools.policy_changed] == ["notes"]
    assert tools.changed == ()
    file.write_text(TEXT.replace('version = "1.0"', 'version = "1.1"'))
    package = compare_settings(before, source.load().settings)
    assert [each.id for each in package.changed] == ["notes"]
    file.unlink()
    gone = compare_settings(before, source.load().settings)
    assert [each.id for each in gone.changed] == ["notes", "far"]
