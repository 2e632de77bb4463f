"""Which package a command line runs, and how a server differs from its lock entry."""

import pytest

from comity.errors import Misconfigured
from comity.servers.packages.installers import npm_entries, python_versions
from comity.servers.packages.model import (
    NOT_LOCKED,
    LockedServer,
    PackageRequest,
    WrittenEntry,
)
from comity.servers.packages.rules import (
    list_entry_differences,
    read_command,
    start_problem,
    tool_differences,
    written_origin,
)
from tests.support.cases import loop_over

EVERYTHING = "@modelcontextprotocol/server-everything"
REQUESTS: list[tuple[str, PackageRequest]] = [
    (
        f"npx -y {EVERYTHING} stdio --flag",
        PackageRequest("npm", EVERYTHING, (EVERYTHING,), "", ("stdio", "--flag")),
    ),
    ("npx notes@1.2.0", PackageRequest("npm", "notes", ("notes@1.2.0",))),
    ("/usr/bin/npx --yes -- notes@^1", PackageRequest("npm", "notes", ("notes@^1",))),
    (
        "npx -y --package=notes -p words@2 keep -y",
        PackageRequest("npm", "notes", ("notes", "words@2"), "keep", ("-y",)),
    ),
    ("bunx notes", PackageRequest("npm", "notes", ("notes",))),
    ("pnpm dlx notes@1 x", PackageRequest("npm", "notes", ("notes@1",), "", ("x",))),
    (
        "uvx mcp-server-time --zone x",
        PackageRequest(
            "pypi", "mcp-server-time", ("mcp-server-time",), "mcp-server-time", ("--zone", "x")
        ),
    ),
    ("uvx notes@1.2", PackageRequest("pypi", "notes", ("notes==1.2",), "notes")),
    ("uvx notes@latest", PackageRequest("pypi", "notes", ("notes",), "notes")),
    ("uvx notes==1.2", PackageRequest("pypi", "notes", ("notes==1.2",), "notes")),
    (
        "uv tool run --from Notes_App[web]>=1,<2 --with words --python 3.12 keep a",
        PackageRequest(
            "pypi", "notes-app", ("Notes_App[web]>=1,<2", "words"), "keep", ("a",), "3.12"
        ),
    ),
]


@loop_over("line, request", REQUESTS)
def test_a_runner_names_its_package_and_the_arguments_of_the_program(
    line: str, request: PackageRequest
) -> None:
    assert read_command(line.split(" ")) == request


@loop_over("line", ["node server.js", "python -m npx", "uv run notes", "docker run x", "pnpm exec"])
def test_another_program_names_no_package(line: str) -> None:
    assert read_command(line.split(" ")) is None


@loop_over(
    "line",
    [
        "npx",
        "npx -y",
        "npx -c id",
        "npx --registry=http://evil.example notes",
        "npx -y ./notes",
        "npx -y ../notes.tgz",
        "npx -y git+https://evil.example/notes",
        "npx -y http://evil.example/notes.tgz",
        "npx -y owner/notes",
        "npx -y notes@npm:evil",
        "npx -y notes@file:..",
        "npx -p notes ../../bin/sh",
        "uvx --index-url http://evil.example notes",
        "uvx --from git+https://evil.example/notes notes",
        "uvx --from ./notes notes",
        "uvx --from notes ../sh",
        "uvx --from=notes@http://evil.example/x notes",
        "uvx --with-requirements x notes",
        "uvx --python ../python notes",
        "uvx notes@1;evil",
    ],
)
def test_an_option_path_or_address_that_the_store_cannot_pin_is_refused(line: str) -> None:
    with pytest.raises(Misconfigured, match="package"):
        read_command(line.split(" "))


ENTRY = WrittenEntry("npx", ("-y", "notes", "--key", "${secret:KEY}"), "/srv", ("A", "B"))


@loop_over(
    "entry, part",
    [
        (WrittenEntry("node", ENTRY.args, "/srv", ENTRY.env), "command"),
        (WrittenEntry("npx", (*ENTRY.args, "x"), "/srv", ENTRY.env), "arguments"),
        (WrittenEntry("npx", ENTRY.args, "/tmp", ENTRY.env), "working directory"),
        (WrittenEntry("npx", ENTRY.args, "/srv", ("A", "B", "NODE_OPTIONS")), "environment names"),
        (WrittenEntry("npx", ENTRY.args, "/srv", ENTRY.env, "http://a"), "URL"),
        (WrittenEntry("npx", ENTRY.args, "/srv", ENTRY.env, headers=("X",)), "header names"),
    ],
)
def test_each_part_of_an_entry_that_differs_is_named(entry: WrittenEntry, part: str) -> None:
    assert [each.part for each in list_entry_differences(ENTRY, entry)] == [part]
    problem = start_problem(LockedServer(ENTRY), entry, "notes")
    assert part in problem
    assert "`comity servers update notes`" in problem


def test_an_entry_as_locked_may_start_and_one_that_is_missing_may_not() -> None:
    assert start_problem(LockedServer(ENTRY), ENTRY, "notes") == ""
    assert start_problem(None, ENTRY, "notes") == ""
    assert "is not in comity.lock" in start_problem(NOT_LOCKED, ENTRY, "notes")


def test_added_changed_and_removed_tools_are_listed() -> None:
    found = tool_differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9", "d": "4"})
    assert [str(each) for each in found] == [
        "tool b: 2 -> 9",
        "tool c: 3 -> (none)",
        "tool d: (none) -> 4",
    ]


@loop_over(
    "url, origin",
    [
        ("https://user:word@example.org:8/mcp/SECRET?key=SECRET", "https://example.org:8"),
        ("${BASE}/mcp", ""),
        ("http://[::1", ""),
    ],
)
def test_the_origin_of_a_url_has_no_credentials(url: str, origin: str) -> None:
    assert written_origin(url) == origin


CHECKSUM = "    --hash=sha256:" + "a" * 64


@loop_over(
    "resolution",
    [
        "notes==1.0 \\\n-e ../evil\n",
        "notes @ http://evil.example/x.whl \\\n" + CHECKSUM,
        "--index-url http://evil.example\nnotes==1.0 \\\n" + CHECKSUM,
        CHECKSUM,
        "notes==1.0",
        "notes>=1.0 \\\n" + CHECKSUM,
        "notes==1.0 \\\n    --hash=md5:" + "a" * 64,
        "-r other.txt\n",
        "notes==1.0 \\\n" + CHECKSUM + "\n--find-links http://evil.example\n",
    ],
)
def test_a_python_resolution_holds_only_exact_versions_and_checksums(resolution: str) -> None:
    with pytest.raises(Misconfigured):
        python_versions(resolution)


def test_a_python_resolution_names_its_versions() -> None:
    text = (
        f"# python 3.12\nMy_Notes[web]==1.0 ; sys_platform != 'win32' \\\n{CHECKSUM} \\\n{CHECKSUM}"
    )
    assert python_versions(text) == {"my-notes": "1.0"}


GOOD = '{"version": "1.0.0", "integrity": "sha512-aaaa=="}'


@loop_over(
    "packages",
    [
        '"": {}, "node_modules/a": {"version": "1.0.0"}',
        '"": {}, "node_modules/a": {"version": "1.0.0", "integrity": "sha1-aaaa"}',
        '"": {}, "node_modules/a": {"resolved": "http://evil", ' + GOOD[1:],
        '"": {}, "node_modules/a": {"link": true, ' + GOOD[1:],
        '"": {}, "../a": ' + GOOD,
        '"": {}, "node_modules/../../a": ' + GOOD,
        '"": {}, "node_modules/a": {"version": "file:../a", "integrity": "sha512-aaaa"}',
        '"": [], "node_modules/a": ' + GOOD,
        '"node_modules/a": ' + GOOD,
        '"": {}, "node_modules/a": 1',
    ],
)
def test_an_npm_resolution_holds_only_packages_with_checksums(packages: str) -> None:
    with pytest.raises(Misconfigured):
        npm_entries(f'{{"packages": {{{packages}}}}}')


def test_an_npm_resolution_with_checksums_is_read() -> None:
    found = npm_entries(f'{{"packages": {{"": {{}}, "node_modules/@a/b": {GOOD}}}}}')
    assert found["node_modules/@a/b"]["version"] == "1.0.0"
