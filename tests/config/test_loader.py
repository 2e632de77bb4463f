"""What is said of a file that cannot be read at all, and which forms of it are taken."""

from pathlib import Path

import pytest

from comity.app.settings import Settings
from comity.app.settings_reader import load_settings
from comity.config.loader import FILE_BYTES
from comity.errors import Misconfigured
from tests.support.cases import loop_over
from tests.support.writing import from_text


@loop_over(
    ("text", "told"),
    [
        ("{", r"mcp\.json:1: is not JSON: .*, at column 2"),
        ('{\n"mcpServers":: 1}', r"mcp\.json:2: is not JSON: Expecting value, at column 14"),
        ("", "is not JSON"),
        ("[]", "needs your servers once"),
        ("null", "needs your servers once"),
        ("{}", 'once, in {"mcpServers": {...}}'),
        ('{"mcpServers": {}, "servers": {}}', "needs your servers once"),
        ('{"mcpServers": []}', "mcpServers: must be a table"),
        ('{"mcpservers": {}}', r"mcp\.json:1: mcpservers: .*did you mean 'mcpServers'"),
        ('{"mcpServers": {\n"a": {},\n"a": {}}}', r"mcp\.json:3: the key 'a' appears twice"),
        ('{"x": NaN}', "NaN is not JSON"),
        ('{"x": ' + "1" * 5000 + "}", "too many digits"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_a_mistake_in_json_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told.replace("{", r"\{").replace("...", r"\.\.\.")):
        from_text(tmp_path, text, "mcp.json")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere\.json: there is no such file"):
        load_settings(tmp_path / "nowhere.json", {})
    with pytest.raises(Misconfigured, match="cannot be read"):
        load_settings(tmp_path, {})
    (tmp_path / "latin.toml").write_bytes(b'port = 1\nhost = "\xff"')
    with pytest.raises(Misconfigured, match=r"latin\.toml:2: .*save it as UTF-8"):
        load_settings(tmp_path / "latin.toml", {})


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    assert from_text(tmp_path, "#" * FILE_BYTES) == Settings()
    with pytest.raises(Misconfigured, match="is it really a configuration"):
        from_text(tmp_path, "#" * (FILE_BYTES + 1))


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    assert from_text(tmp_path, '\ufeff{"mcpServers": {}}', "mcp.json") == Settings()


LOOSE = r"""
// an editor's file
{
  "servers": {
    "a": {"command": "x", "args": ["//", "/*,]", "\\",],}, /* and a last comma: */
  },
}
"""


def test_comments_and_last_commas_of_an_editor_are_no_mistake(tmp_path: Path) -> None:
    (server,) = from_text(tmp_path, LOOSE, "mcp.json").servers
    assert server.args == ("//", "/*,]", "\\")


def test_a_toml_file_that_ends_too_soon_is_named_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"comity\.toml:2: is not TOML: .*[^)]$"):
        from_text(tmp_path, "port = 1\nhost = ")


@pytest.mark.parametrize("text", ["port = " + "9" * 5000, "x = " + "[" * 5000])
def test_a_toml_file_of_monsters_is_refused_in_words(tmp_path: Path, text: str) -> None:
    with pytest.raises(Misconfigured, match=r"comity\.toml: .*(digits|nested too deeply)"):
        from_text(tmp_path, text)
