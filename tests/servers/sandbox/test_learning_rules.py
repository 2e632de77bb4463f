"""Traces of strace, the folders that a proposal names, and the edit of a configuration."""

from pathlib import Path

import pytest

from comity.errors import Misconfigured
from comity.servers.sandbox.learning import trace
from comity.servers.sandbox.learning.commands import put_permissions
from comity.servers.sandbox.learning.proposal import (
    LearningBounds,
    PermissionProposal,
    propose_files,
    propose_hosts,
)
from comity.servers.sandbox.learning.trace import TracedAccess, read_trace
from comity.servers.sandbox.programs import ProgramFiles


def encoded(text: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in text.encode())


def traced(folder: Path, *lines: str, skipped: int = 0) -> TracedAccess:
    file = folder / "trace"
    file.write_text("".join(f"{line}\n" for line in lines))
    return read_trace(file, skipped)


def bounds_in(folder: Path) -> LearningBounds:
    home, state = folder / "home", folder / "home" / "state"
    return LearningBounds(
        ProgramFiles("/bin/program", ("/bin/program",)), "/", (), str(state), str(home)
    )


def test_a_call_that_was_divided_is_read_as_one(tmp_path: Path) -> None:
    access = traced(
        tmp_path,
        f'7 openat(AT_FDCWD<{encoded("/")}>, "{encoded("/a/b")}", O_RDONLY <unfinished ...>',
        f'8 openat(AT_FDCWD<{encoded("/")}>, "{encoded("/c/d")}", O_RDWR|O_CREAT, 0666) = 4',
        f"7 <... openat resumed>)             = 3<{encoded('/real/b')}>",
    )
    assert access.read == {"/a/b", "/real/b"}
    assert access.written == {"/c/d"}


def test_relative_names_belong_to_the_folder_of_their_process(tmp_path: Path) -> None:
    access = traced(
        tmp_path,
        f'7 chdir("{encoded("/srv/mine")}") = 0',
        "7 vfork() = 8",
        f'8 mkdir("{encoded("new")}", 0777) = 0',
        f"8 fchdir(5<{encoded('/srv')}>) = 0",
        f'8 rename("{encoded("a")}", "{encoded("../b")}") = 0',
        f'7 unlink("{encoded("old")}") = 0',
        f'7 symlink("{encoded("/target")}", "{encoded("link")}") = 0',
        f'7 unlinkat(6<{encoded("/data")}>, "{encoded("file")}", 0) = 0',
    )
    mine = {"/srv/mine/new", "/srv/mine/old", "/srv/mine/link"}
    assert access.written == {*mine, "/srv/a", "/b", "/data/file"}
    assert access.read == set()


def test_failed_calls_and_earlier_programs_do_not_count(tmp_path: Path) -> None:
    opening = f'7 openat(AT_FDCWD, "{encoded("/early")}", O_RDONLY) = 3'
    access = traced(
        tmp_path,
        f'7 execve("{encoded("/stage")}", ["x"], 0x7 /* 2 vars */) = 0',
        opening,
        f'7 execve("{encoded("/none")}", ["x"], 0x7 /* 2 vars */) = -1 ENOENT (No such file)',
        f'7 execve("{encoded("/server")}", ["x"], 0x7 /* 2 vars */) = 0',
        f'7 openat(AT_FDCWD, "{encoded("/late")}", O_RDONLY) = -1 EACCES (Permission denied)',
        f'7 execve("{encoded("/other")}", ["x"], 0x7 /* 2 vars */) = 0',
        skipped=2,
    )
    assert access == TracedAccess(executed={"/other"})


def test_direct_connections_are_read_with_their_addresses(tmp_path: Path) -> None:
    four, six = encoded("192.0.2.1"), encoded("2001:db8::1")
    access = traced(
        tmp_path,
        "7 connect(5, {sa_family=AF_INET, sin_port=htons(443), "
        f'sin_addr=inet_addr("{four}")}}, 16) = -1 EINPROGRESS (Operation now in progress)',
        "7 connect(5, {sa_family=AF_INET6, sin6_port=htons(80), sin6_flowinfo=htonl(0), "
        f'inet_pton(AF_INET6, "{six}", &sin6_addr), sin6_scope_id=0}}, 28) = 0',
        f'7 connect(5, {{sa_family=AF_UNIX, sun_path="{encoded("/run/docker.sock")}"}}, 19) = 0',
    )
    assert access.connected == {"192.0.2.1:443", "[2001:db8::1]:80", "/run/docker.sock"}


def test_a_trace_with_too_many_names_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_PLACES", 2)
    lines = [f'7 openat(AT_FDCWD, "{encoded(f"/{n}")}", O_RDONLY) = 3' for n in range(3)]
    access = traced(tmp_path, *lines)
    assert not access.is_complete
    assert len(access.read) == 2
    proposal = PermissionProposal()
    propose_files(proposal, access, bounds_in(tmp_path))
    assert proposal.notes == ["The recording is not complete, so permissions may be missing."]


def test_many_folders_side_by_side_become_their_parent(tmp_path: Path) -> None:
    few = {f"{tmp_path}/few/{n}/file" for n in range(4)}
    many = {f"{tmp_path}/many/{n}/file" for n in range(5)}
    proposal = PermissionProposal()
    access = TracedAccess(read={*few, *many, f"{tmp_path}/many/1/deep/file"})
    propose_files(proposal, access, bounds_in(tmp_path))
    folders = [f"{tmp_path}/few/{n}" for n in range(4)]
    assert proposal.permissions == {"filesystem.read": [*folders, f"{tmp_path}/many"]}


def test_a_folder_that_holds_comity_or_a_home_is_never_proposed(tmp_path: Path) -> None:
    bounds = bounds_in(tmp_path)
    Path(bounds.state).mkdir(parents=True)
    (tmp_path / "file").touch()
    proposal = PermissionProposal()
    access = TracedAccess(
        read={str(tmp_path), bounds.home, "/", f"{bounds.state}/keys/token"},
        written={str(tmp_path / "file"), "/etc/passwd", "/tmp/gone"},
        seen_folders={str(tmp_path), "/home"},
    )
    propose_files(proposal, access, bounds)
    assert proposal.permissions == {"filesystem.write": ["/etc/passwd", str(tmp_path / "file")]}
    wide = ", ".join(sorted(["/", str(tmp_path), bounds.home]))
    assert proposal.notes == [
        f"It used files of Comity itself, which it never gets: {bounds.state}/keys/token.",
        f"It listed folders that are too wide to grant: {wide}.",
    ]


def test_a_host_that_no_grant_can_name_becomes_a_note() -> None:
    proposal = PermissionProposal()
    propose_hosts(proposal, ["b.example:443", "localhost:80", "a.example:80", "10.0.0.1:5"])
    assert proposal.permissions == {
        "network.outbound": ["10.0.0.1:5", "a.example:80", "b.example:443"]
    }
    (note,) = proposal.notes
    assert "localhost" in note


@pytest.mark.parametrize(
    "text",
    [
        'servers = [{ id = "a", command = "x" }]\n',
        '[[servers]]\nid = "a"\n[servers.policy]\npermissions = [\n"x",\n]\n',
        'note = """\n[[servers]]\n"""\n[[servers]]\nid = "a"\n',
        '[[servers]]\nid = "b"\n',
    ],
)
def test_a_configuration_of_another_form_is_not_edited(text: str) -> None:
    with pytest.raises(Misconfigured, match="by hand"):
        put_permissions(text, "a", {"filesystem.read": ["/srv"]})


def test_permissions_are_put_below_the_entry_that_they_belong_to() -> None:
    text = '[[servers]]\nid = "a"\n\n[servers.policy]\ntrust = "sandboxed"\n\n'
    text += '# b\n[[servers]]\nid = "b"'
    once = put_permissions(text, "a", {"filesystem.read": ['/srv/"']})
    both = put_permissions(once, "b", {"shell.execute": []})
    assert both == (
        '[[servers]]\nid = "a"\n\n[servers.policy]\ntrust = "sandboxed"\n\n'
        '[servers.policy.permissions]\n"filesystem.read" = ["/srv/\\""]\n\n# b\n'
        '[[servers]]\nid = "b"\n\n[servers.policy.permissions]\n"shell.execute" = []\n'
    )
    assert put_permissions(both, "b", {"shell.execute": []}) == both
