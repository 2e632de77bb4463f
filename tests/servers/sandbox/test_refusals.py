"""The hints that name a missing permission, from the words of servers."""

import json
import time

import pytest

from comity.servers.sandbox.model import SandboxAccess
from comity.servers.sandbox.refusals import RefusalHints
from tests.support.cases import loop_over

HINTS = RefusalHints(
    "files",
    SandboxAccess(readable=("/srv/read",), writable=("/srv/write",)),
    ("server", "--all", "/project", "relative", "/own/new/notes.db"),
    "/usr/bin:/bin",
)


@loop_over(
    ("said", "permission", "place"),
    [
        ("ENOENT: no such file or directory, open '/data/x.txt'", "filesystem.read", "/data"),
        ("[Errno 13] Permission denied: '/data/x.txt'", "filesystem.read", "/data"),
        ("Permission denied: '/x.txt'", "filesystem.read", "/x.txt"),
        ("ENOENT: no such file, open '/project/a/b.txt'", "filesystem.read", "/project"),
        ("[Errno 30] Read-only file system: '/data/new'", "filesystem.write", "/data/new"),
        ("EACCES: permission denied, open '/srv/read/x'", "filesystem.write", "/srv/read/x"),
        ("[Errno 30] Read-only file system: '/own'", "filesystem.write", "/own/new"),
        ("unable to open database file", "filesystem.read", "/project"),
        ('File "/app/own.py", line 1\nEPERM: /data/y', "filesystem.read", "/data/y"),
    ],
)
def test_hint_names_the_permission_and_the_place(said: str, permission: str, place: str) -> None:
    hint = HINTS.explain(said)
    assert hint.endswith(f"comity servers permissions approve files {permission} --reach {place}")


@loop_over(
    "said",
    [
        "FileNotFoundError: [Errno 2] No such file or directory: 'env'",
        "Error: spawn env ENOENT",
        "/bin/sh: 1: env: not found",
        "bash: env: command not found",
        'exec: "env": executable file not found in $PATH',
        "ImportError: Bad env executable.\nThe env executable must be specified",
        "[Errno 2] No such file or directory: '/usr/bin/env'",
    ],
)
def test_hint_names_a_program_of_this_machine(said: str) -> None:
    hint = HINTS.explain(said)
    assert hint.endswith("approve files shell.execute --reach /usr/bin/env"), hint


@loop_over(
    "said",
    [
        "sh: 1: no-such-program-canary: not found",
        "No such file or directory: '../../tmp/x'",
        "$(reboot): command not found",
    ],
)
def test_a_program_that_is_not_there_is_no_hint(said: str) -> None:
    assert "shell.execute" not in HINTS.explain(said)


def test_hint_has_the_command_for_reading_and_the_one_for_changing() -> None:
    hint = HINTS.explain("ENOENT: no such file or directory, open '/data/x.json'")
    for permission in ("filesystem.read", "filesystem.write"):
        assert f"comity servers permissions approve files {permission} --reach /data" in hint


def test_an_end_without_a_known_reason_names_the_sandbox() -> None:
    assert "in a sandbox" in HINTS.explain_end("AttributeError: no attribute 'x'")
    assert "comity servers learn files" in HINTS.explain_end("")


@loop_over("said", ["", "the number is too large", "/data/x.txt is empty", "File not found: x"])
def test_other_errors_have_no_hint(said: str) -> None:
    assert HINTS.explain(said) == ""


def test_hint_without_a_place_names_the_command_that_finds_it() -> None:
    hints = RefusalHints("files", SandboxAccess(), (), "/usr/bin")
    assert "comity servers learn files" in hints.explain("Permission denied")


def test_words_of_the_network_proxy_come_once() -> None:
    hints = RefusalHints("files", SandboxAccess(), (), "/usr/bin")
    hints.note_connection_refusal("network.outbound: a.example:443 is not granted")
    assert "a.example:443" in hints.explain("fetch failed")
    assert hints.explain("fetch failed") == ""


@loop_over(
    "place",
    ["/data/$(reboot)", "/data/`id`", "/data/x;rm -rf ~", "/data/\x1b[31m", "/" + "x" * 999],
)
def test_a_hostile_place_gives_no_hostile_command(place: str) -> None:
    command = RefusalHints("files", SandboxAccess(), (), "/usr/bin").explain(
        f"Permission denied: {place}"
    )
    assert not set("$;\x1b()") & set(command.rpartition("--reach")[2])
    assert len(command) < 500


def test_hint_is_one_more_text_of_the_result() -> None:
    text = {"type": "text", "text": "Permission denied: '/data/x'"}
    message = {"jsonrpc": "2.0", "id": 7, "result": {"content": [text], "isError": True}}
    answer = json.loads(HINTS.explain_response(json.dumps(message).encode()))
    first, second = answer["result"]["content"]
    assert (answer["id"], first, answer["result"]["isError"]) == (7, text, True)
    assert "filesystem.read" in second["text"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"result":{"isError":true,"content":"Permission denied: /x/y"}}',
        b'{"result":{"isError":true,"content":[null,{"type":"text","text":7}]}}',
        b'{"result":[],"isError":true}',
        b'{"result":{"isError":true,"content":[]},"result":{}}',
        b'{"isError":true',
        b'{"result":{"isError":true,"content":[{"type":"text","text":"' + b"x" * 70_000 + b'"}]}}',
    ],
)
def test_a_message_of_another_form_stays_as_it_is(line: bytes) -> None:
    assert HINTS.explain_response(line) == line


@pytest.mark.parametrize("path", ["/a" * 30_000, "/a " * 20_000, "/data" + "/.." * 20_000])
def test_long_words_of_a_server_cost_the_gateway_little(path: str) -> None:
    """They once cost more than half a minute, in which the gateway did nothing else."""
    folders = tuple(f"/srv/{number}" for number in range(50))
    hints = RefusalHints("files", SandboxAccess(folders, folders), folders, "/usr/bin")
    text = {"type": "text", "text": f"Permission denied: {path}"}
    line = json.dumps({"result": {"content": [text], "isError": True}}).encode()
    started = time.process_time()
    answer = hints.explain_response(line)
    assert time.process_time() - started < 5.0
    assert len(answer) < len(line) + 1000
