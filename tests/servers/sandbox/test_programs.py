"""The files of a program, where a package or a command line names those of others."""

import os
import sys
from pathlib import Path

import pytest

import comity
from comity.config.files import STATE_VARIABLE
from comity.errors import Unavailable
from comity.servers.sandbox.model import READ_FILES, SandboxAccess
from comity.servers.sandbox.programs import ProgramFiles, find_program_files
from comity.servers.sandbox.reach import (
    follow_links,
    is_below,
    lost_permissions,
    without_nested,
)

RELATIVE = '"$(dirname -- "$(realpath -- "$0")")"/'
"""How uv begins the path of an interpreter in a relocatable environment."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "home"
    (place / ".ssh").mkdir(parents=True)
    (place / ".ssh" / "id").write_text("a private key")
    (place / ".ssh" / "id").chmod(0o700)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv(STATE_VARIABLE, str(place / "state"))
    return place


def environment(place: Path, text: str) -> Path:
    """Make a virtual environment with one program of this text."""
    (place / "bin").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (place / "bin" / "python").symlink_to("/bin/sh")
    program = place / "bin" / "server"
    program.write_text(text)
    program.chmod(0o755)
    return program


def files_of(program: Path, *words: str, **variables: str) -> ProgramFiles:
    return find_program_files((str(program), *words), variables, str(program.parent))


def opened(files: ProgramFiles) -> list[str]:
    return [*files.readable, *files.executable]


def test_a_path_file_of_a_package_opens_nothing(home: Path) -> None:
    program = environment(home / "state" / "packages" / "x" / "venv", "#!/bin/sh\n")
    packages = program.parent.parent / "lib" / "python3.13" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "evil.pth").write_text(f"{home / '.ssh'}\n/home\n")
    assert not {str(home / ".ssh"), "/home"} & {*opened(files_of(program))}


@pytest.mark.parametrize(
    "text",
    [
        "#!{key}\n",
        "#!/bin/sh\n'''exec' {key} \"$0\" \"$@\"\n",
        '#!/bin/sh\n\'\'\'exec\' "{bin}/../../../.ssh/id" "$0" "$@"\n',
        f"#!/bin/sh\n'''exec' {RELATIVE}'../../../.ssh/id' \"$0\" \"$@\"\n",
    ],
)
def test_a_first_line_opens_no_file_of_others(home: Path, text: str) -> None:
    place = home / "tool" / "venv"
    program = environment(place, text.format(key=home / ".ssh" / "id", bin=place / "bin"))
    assert not is_below(str(home / ".ssh" / "id"), opened(files_of(program)))


@pytest.mark.parametrize(
    "interpreter",
    ['"{bin}/python"', "'{bin}/python'", f"{RELATIVE}'python'"],
    ids=["long", "long by uv", "relative"],
)
def test_a_launcher_in_shell_is_replaced_by_the_python_of_its_own_environment(
    home: Path, interpreter: str
) -> None:
    place = home / "tool" / "venv"
    line = interpreter.format(bin=place / "bin")
    program = environment(place, f"#!/bin/sh\n'''exec' {line} \"$0\" \"$@\"\n' '''\n")
    linked = home / "server"
    linked.symlink_to(program)
    files = find_program_files((str(linked), "--all"), {}, "/")
    assert files.program == str(place / "bin" / "python")
    assert files.argv == (files.program, str(program), "--all")
    assert is_below(str(program), files.readable)


def test_a_program_whose_folder_holds_the_home_or_the_state_does_not_start(home: Path) -> None:
    in_home = environment(home, "#!/bin/sh\n")
    with pytest.raises(Unavailable, match="holds the home folder"):
        files_of(in_home)
    (home / "state").mkdir()
    beside_state = environment(home / "state" / "other", "#!/bin/sh\n")
    with pytest.raises(Unavailable, match="belongs to Comity itself"):
        files_of(beside_state)


def test_a_folder_that_holds_the_home_is_not_opened(home: Path) -> None:
    script = home.parent / "script.py"
    script.write_text("")
    files = find_program_files(("/bin/sh", str(script)), {"PYTHONPATH": str(home.parent)}, "/")
    assert str(script) in opened(files)
    assert not is_below(str(home), opened(files))


def test_comity_finds_its_own_modules_and_no_others_of_path_files() -> None:
    files = find_program_files((sys.executable, "-m", "comity"), os.environ, "/")
    assert is_below(comity.__file__, opened(files))


def test_a_package_of_the_store_is_a_program(home: Path) -> None:
    place = home / "state" / "packages" / "x" / "venv"
    files = files_of(environment(place, "#!/bin/sh\n"))
    assert str(place) in files.readable


def test_a_link_in_a_writable_folder_is_no_script(home: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes.db").symlink_to(home / ".ssh" / "id")
    words = ("/bin/sh", str(own / "notes.db"))
    key = str(home / ".ssh" / "id")
    assert is_below(key, opened(find_program_files(words, {}, "/")))
    files = find_program_files(words, {}, "/", writable=(str(own),))
    assert (files.data, is_below(key, opened(files))) == (words[1], False)


def test_a_place_in_a_writable_folder_is_no_grant_of_its_own() -> None:
    assert without_nested(("/w/sub", "/w-x", "/r/a", "/r"), ("/w",)) == ("/r", "/w-x")
    before = SandboxAccess(readable=("/w/sub", "/r"))
    assert lost_permissions(before, SandboxAccess(writable=("/w", "/r"))) == []
    assert lost_permissions(before, SandboxAccess(writable=("/w",))) == [READ_FILES]


def test_a_link_counts_only_where_a_server_could_have_made_it(tmp_path: Path) -> None:
    writable, target = tmp_path / "w", tmp_path / "target"
    writable.mkdir()
    target.mkdir()
    (writable / "sub").symlink_to(target)
    (tmp_path / "named").symlink_to("w/../w/sub")
    assert follow_links(str(tmp_path / "named" / "x"), (str(writable),))[1] == str(writable / "sub")
    assert follow_links(str(tmp_path / "named" / "x"), (str(target),))[1] is None
    (tmp_path / "loop").symlink_to("loop")
    assert follow_links(str(tmp_path / "loop"), ())[1] is not None
