"""`comity init` proposes permissions for servers, asks once, and writes what a person granted."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from comity.servers.sandbox.reach import own_files_problem
from tests.cli.program import Desk, Terminal

pytestmark = pytest.mark.timeout(600)

NPM = "@modelcontextprotocol/server-"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, COMITY_STATE_DIR=str(tmp_path / "home" / ".local" / "state" / "comity"))


def npx(name: str, *arguments: object, **env: str) -> dict[str, Any]:
    return {"command": "npx", "args": ["-y", name, *map(str, arguments)], "env": env}


def uvx(name: str, *arguments: object) -> dict[str, Any]:
    return {"command": "uvx", "args": [name, *map(str, arguments)]}


def write_servers(desk: Desk, **servers: dict[str, Any]) -> None:
    desk.write("~/.cursor/mcp.json", {"mcpServers": servers})


def written_servers(desk: Desk) -> dict[str, Any]:
    text = (desk.folder / "comity.toml").read_text()
    return {each["id"]: each for each in tomllib.loads(text)["servers"]}


def permissions_of(desk: Desk) -> dict[str, Any]:
    servers = written_servers(desk)
    return {id: each.get("policy", {}).get("permissions", {}) for id, each in servers.items()}


def granted(desk: Desk, **servers: dict[str, Any]) -> dict[str, Any]:
    """Return the permissions that `init --yes` writes for these servers."""
    write_servers(desk, **servers)
    ran = desk.run("init", "--yes", "--force")
    assert ran.status == 0, ran.out + ran.err
    return permissions_of(desk)


def both(*folders: Path) -> dict[str, list[str]]:
    places = [str(each) for each in folders]
    return {"filesystem.read": places, "filesystem.write": places}


def folder_in(desk: Desk, *names: str) -> Path:
    path = desk.home.joinpath(*names)
    path.mkdir(parents=True)
    return path


def test_known_packages_get_what_they_need_and_no_more(desk: Desk) -> None:
    documents, repository = folder_in(desk, "Documents"), folder_in(desk, "src", "project")
    data = folder_in(desk, "data")
    found = granted(
        desk,
        files=npx(f"{NPM}filesystem", documents),
        memory=npx(f"{NPM}memory", MEMORY_FILE_PATH=str(data / "memory.jsonl")),
        everything=npx(f"{NPM}everything"),
        thinking=npx(f"{NPM}sequential-thinking@2025.12.18"),
        git=uvx("mcp-server-git", "--repository", repository),
        sqlite=uvx("mcp-server-sqlite", f"--db-path={desk.home / 'new' / 'notes.db'}"),
        fetch=uvx("mcp_server_fetch"),
        time=uvx("mcp-server-time", "--local-timezone", "Europe/Berlin"),
        module={"command": "python3", "args": ["-m", "mcp_server_time"]},
    )
    assert found == {
        "files": both(documents),
        "memory": both(data),
        "everything": {},
        "thinking": {},
        "git": {**both(repository), "shell.execute": ["/usr/bin/git"]},
        "sqlite": both(desk.home / "new"),
        "fetch": {"network.outbound": ["*"]},
        "time": {},
        "module": {},
    }
    assert (desk.home / "new").is_dir()


def test_other_servers_get_the_folders_and_hosts_that_their_words_name(desk: Desk) -> None:
    notes, project = folder_in(desk, "notes"), folder_in(desk, "project")
    (notes / "notes.db").touch()
    (project / "server.py").touch()
    found = granted(
        desk,
        notes={"command": "notes", "env": {"DB": str(notes / "absent.db"), "N": "/sse"}},
        api={"command": "api", "args": ["--url=https://u:canary@api.example.com/v1?key=canary"]},
        many={"command": "many", "args": [f"{notes}:{project}"], "cwd": str(project)},
        script={"command": "python3", "args": [str(project / "server.py")]},
        base={"command": "base", "args": ["postgres://u:canary@127.0.0.1:5432/base"]},
    )
    anywhere = {"network.outbound": ["*"]}
    assert found == {
        "notes": {**both(notes), **anywhere},
        "api": {"network.outbound": ["api.example.com:443"]},
        "many": {**both(notes, project), **anywhere},
        "script": anywhere,
        "base": anywhere,
    }


def test_the_home_is_proposed_without_its_keys_and_files_of_comity(desk: Desk) -> None:
    documents = folder_in(desk, "Documents")
    folder_in(desk, ".ssh")
    (desk.home / "keys").symlink_to(desk.home / ".ssh")
    found = granted(desk, home=npx(f"{NPM}filesystem", desk.home))
    assert found == {"home": both(documents)}
    assert own_files_problem(str(documents)) is None
    ran = desk.run("init", "--yes", "--force")
    assert "only its visible folders are proposed" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    "place",
    [
        "{home}/.local",
        "{home}/..",
        "{home}/da\u202eta",
        "{home}/da\u200bta",
        "{home}/da\u3164ta",
        "{home}/da\x1b[8mta",
        "{home}/${{UNSET_CANARY}}",
        "{home}/${{UNSET_CANARY:-}}",
        "{home}/$${{UNSET_CANARY}}",
        "{folder}",
        "/",
        "/tmp",
        "https://*.com/",
        "https://ex\u0430mple.com:99999/",
    ],
)
def test_a_place_that_nobody_could_judge_is_not_proposed(desk: Desk, place: str) -> None:
    for name in ("data", "da\u202eta", "da\u200bta", "da\u3164ta", "da\x1b[8mta"):
        folder_in(desk, name)
    word = place.format(home=desk.home, folder=desk.folder)
    found = granted(
        desk, files=npx(f"{NPM}filesystem", word), other={"command": "x", "args": [word]}
    )
    assert found == {"files": {}, "other": {"network.outbound": ["*"]}}


def test_a_granted_place_is_written_without_variables(desk: Desk) -> None:
    folder, other = folder_in(desk, "data"), folder_in(desk, "other")
    write_servers(desk, files=npx(f"{NPM}filesystem", "${PLACE}"))
    assert desk.run("init", "--yes", PLACE=str(folder)).status == 0
    assert permissions_of(desk) == {"files": both(folder)}
    write_servers(desk, files=npx(f"{NPM}filesystem", "${env:HOME}/other/../other"))
    assert desk.run("init", "--yes", "--force").status == 0
    assert permissions_of(desk) == {"files": both(other)}


def test_without_a_terminal_nothing_is_granted_and_the_commands_are_told(desk: Desk) -> None:
    documents = folder_in(desk, "Documents")
    write_servers(
        desk,
        files=npx(f"{NPM}filesystem", documents),
        git=uvx("mcp-server-git", "--repository", documents),
        image={"command": "docker", "args": ["run", "-i", "image"]},
    )
    ran = desk.run("init", said="y\n")
    assert ran.status == 0, ran.err
    assert permissions_of(desk) == {"files": {}, "git": {}, "image": {}}
    assert "sandbox" not in written_servers(desk)["image"]
    approve = "comity servers permissions approve"
    assert f"{approve} files filesystem.write --reach {documents}" in ran.out
    assert f"{approve} git shell.execute --reach /usr/bin/git" in ran.out
    assert 'write sandbox = "none" into its entry' in ran.out
    view = desk.run("init", "--force", "-o", "json").json["permissions"]
    assert view["granted"] is False
    assert view["proposed"]["image"]["needs"] == [
        "run without a sandbox, with all rights of your user"
    ]
    assert permissions_of(desk) == {"files": {}, "git": {}, "image": {}}


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_a_person_is_asked_once_about_all_of_it(desk: Desk, answer: str) -> None:
    documents = folder_in(desk, "Documents")
    link = desk.home / "link"
    link.symlink_to(documents)
    write_servers(
        desk,
        files=npx(f"{NPM}filesystem", link),
        fetch=uvx("mcp-server-fetch"),
        image={"command": "docker", "args": ["run", "-i", "image"]},
    )
    with Terminal(desk, "init") as terminal:
        terminal.until("Grant all of this? [y/N]")
        seen = " ".join(terminal.seen.split())
        # The terminal breaks long paths.
        shown = f"files: read and write {link} (a link to {documents})"
        assert "".join(shown.split()) in "".join(seen.split())
        assert "fetch: reach every public host" in seen
        assert "image: run without a sandbox, with all rights of your user" in seen
        assert not (desk.folder / "comity.toml").exists()
        terminal.type(f"{answer}\n")
        assert terminal.end() == 0
        assert terminal.seen.count("[y/N]") == 0
    found = permissions_of(desk)
    if answer == "y":
        assert found["files"] == both(link)
        assert written_servers(desk)["image"]["sandbox"] == "none"
    else:
        assert found == {"files": {}, "fetch": {}, "image": {}}
        assert "Not granted" in terminal.seen


def test_servers_of_one_client_are_asked_about_too(desk: Desk) -> None:
    documents = folder_in(desk, "Documents")
    desk.write("comity.toml", "[[servers]]\nid = 'files'\ncommand = 'other'\n")
    write_servers(desk, files=npx(f"{NPM}filesystem", documents))
    ran = desk.run("clients", "connect", "cursor", "--replace")
    assert ran.status == 0, ran.err
    assert permissions_of(desk) == {"files": {}, "files-2": {}}
    approve = "comity servers permissions approve"
    assert f"{approve} files-2 filesystem.write --reach {documents}" in ran.out


def test_what_needs_no_permission_asks_nothing(desk: Desk) -> None:
    write_servers(desk, time=uvx("mcp-server-time"))
    with Terminal(desk, "init") as terminal:
        terminal.until("Wrote comity.toml")
        assert terminal.end() == 0
        assert "[y/N]" not in terminal.seen
    assert permissions_of(desk) == {"time": {}}
