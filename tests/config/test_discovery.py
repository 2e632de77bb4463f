"""Which files are read when none is named, what each gives, and what is said about them."""

from pathlib import Path

import pytest

from comity.config import Found, Source, find
from comity.wire.errors import Misconfigured

MGP = '[[servers]]\nid = "{0}"\ncommand = "{0}-from-{1}"\n'


class Places:
    """A project's folder and a person's home, both empty at first."""

    def __init__(self, tmp_path: Path) -> None:
        self.cwd = tmp_path / "project"
        self.home = tmp_path / "home"
        self.user = self.home / ".config" / "mgp" / "servers.toml"
        self.cwd.mkdir()
        self.user.parent.mkdir(parents=True)

    def find(self, **environ: str) -> Found:
        return find(self.cwd, self.home, environ)

    def write_own(self) -> Path:
        return self.write(
            self.cwd / "comity.toml", MGP.format("own", "own") + "[limits]\ndepth = 9"
        )

    def write_client(self, name: str) -> Path:
        return self.write(self.cwd / name, '{"mcpServers": {"a": {"command": "x"}}}')

    def write_mgp(self, path: Path, *ids: str) -> Path:
        return self.write(path, "".join(MGP.format(each, path.name) for each in ids))

    def write(self, path: Path, text: str) -> Path:
        path.write_text(text, "utf-8")
        return path


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def commands(found: Found) -> dict[str, str]:
    return {server.id: server.command for server in found.settings.servers}


def test_the_first_file_that_is_there_is_taken_and_the_others_are_named(places: Places) -> None:
    files = [places.write_own(), places.write_client("mcp.json"), places.write_client(".mcp.json")]
    files += [places.write_mgp(places.cwd / "mgp.toml", "m"), places.write_mgp(places.user, "u")]
    for number, file in enumerate(files[:-1]):
        found = places.find()
        assert found.files[0] == file
        taken = len(found.files)
        assert taken == (2 if file.name == "mgp.toml" else 1)
        assert found.passed_over == tuple(files[number + taken :])
        assert Source(places.cwd, places.home, {}).watched == tuple(files)
        file.unlink()
    assert places.find().files == (places.user,)


def test_a_project_stands_over_its_user_server_by_server(places: Places) -> None:
    places.write_mgp(places.cwd / "mgp.toml", "both", "local")
    places.write_mgp(places.user, "Both", "user")
    found = places.find()
    assert commands(found) == {
        "both": "both-from-mgp.toml",
        "local": "local-from-mgp.toml",
        "user": "user-from-servers.toml",
    }
    project, user = found.taken
    assert (project.servers, project.overshadowed) == (("both", "local"), ())
    assert (user.servers, user.overshadowed) == (("user",), ("Both",))
    assert found.told() == [
        f"2 servers from {project.path}",
        f"1 server from {user.path} (not Both: in an earlier file too)",
    ]


def test_the_variable_of_mgp_makes_its_file_the_only_one_of_them(
    places: Places, tmp_path: Path
) -> None:
    places.write_mgp(places.cwd / "mgp.toml", "local")
    places.write_mgp(places.user, "user")
    override = places.write_mgp(tmp_path / "else.toml", "override")
    found = places.find(MGP_CONFIG_PATH=str(override))
    assert (found.files, list(commands(found))) == ((override,), ["override"])
    assert list(commands(places.find(MGP_CONFIG_PATH=""))) == ["local", "user"]


def test_the_variable_of_mgp_must_name_a_file_that_is_there(places: Places) -> None:
    places.write_mgp(places.user, "user")
    with pytest.raises(Misconfigured, match=r"gone\.toml: there is no such file"):
        places.find(MGP_CONFIG_PATH=str(places.cwd / "gone.toml"))


def test_our_own_file_comes_before_the_variable_of_mgp(places: Places, tmp_path: Path) -> None:
    own = places.write_own()
    override = places.write_mgp(tmp_path / "else.toml", "override")
    found = places.find(MGP_CONFIG_PATH=str(override))
    assert (found.files, found.passed_over) == ((own,), (override,))
    assert found.told()[-1] == f"passed over {override}, as {own} comes first"


def test_a_file_that_is_named_is_the_only_one(places: Places) -> None:
    places.write_own()
    named = places.write_client("other.json")
    found = find(places.cwd, places.home, {}, named)
    assert (found.files, found.passed_over) == ((named,), ())
    assert Source(places.cwd, places.home, {}, named).watched == (named,)
    with pytest.raises(Misconfigured, match="there is no such file"):
        find(places.cwd, places.home, {}, places.cwd / "gone.json")


def test_where_there_is_nothing_it_is_said_what_was_looked_for(places: Places) -> None:
    (places.cwd / "mcp.json").mkdir()
    with pytest.raises(Misconfigured) as problem:
        places.find()
    for name in ("comity.toml", "mcp.json", ".mcp.json", "mgp.toml", "servers.toml", "comity init"):
        assert name in str(problem.value)


def test_files_that_mgp_shares_may_hold_what_we_do_not_know(places: Places, tmp_path: Path) -> None:
    strange = 'theme = "dark"\n' + MGP.format("a", "b") + "icon = 1\n[servers.mgp]\nsome_day = 1\n"
    places.write(places.cwd / "mgp.toml", strange)
    assert places.find().settings.servers[0].mgp == {"some_day": 1}
    override = places.write(tmp_path / "x.toml", strange)
    assert list(commands(places.find(MGP_CONFIG_PATH=str(override)))) == ["a"]
    places.write(places.cwd / "comity.toml", strange)
    with pytest.raises(Misconfigured, match="there are 2 mistakes"):
        places.find()


@pytest.mark.parametrize("text", ["", "[[server]]\nid = 1", "x = 1"])
def test_a_file_of_mgp_without_servers_is_a_mistake(places: Places, text: str) -> None:
    places.write(places.cwd / "mgp.toml", text)
    with pytest.raises(Misconfigured, match=r"there are no servers here; write each in \[\[serv"):
        places.find()


def test_the_mistakes_of_all_files_are_told(places: Places) -> None:
    places.write(places.cwd / "mgp.toml", '[[servers]]\nid = "a"\n')
    places.write(places.user, '[[servers]]\nid = "b"\ncommand = "${NO}"\n')
    with pytest.raises(Misconfigured) as problem:
        places.find()
    assert "mgp.toml:1: servers[a]: needs a command" in str(problem.value)
    assert "servers.toml:3: servers[b].command: the variable NO is not set" in str(problem.value)


def test_a_home_that_may_not_be_looked_into_is_as_good_as_empty(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(Misconfigured, match="there is no configuration"):
        places.find()
