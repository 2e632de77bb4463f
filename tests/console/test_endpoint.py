"""The files of the console: types, policies, caching, compression, and none from outside."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from comity.console.endpoint import CONSOLE_PATH, NO_CONSOLE, ConsoleFiles, redirect_to_console
from comity.errors import MalformedMessage

INDEX = b"<!doctype html><title>Comity</title>"
SCRIPT = b"console.log(1);" * 100


@pytest.fixture
def files(tmp_path: Path) -> ConsoleFiles:
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(INDEX)
    (folder / "assets" / "index-abc.js").write_bytes(SCRIPT)
    (folder / "assets" / "notes.secret").write_bytes(b"no known type")
    (tmp_path / "outside.js").write_bytes(b"outside")
    return ConsoleFiles(folder)


async def never() -> dict[str, Any]:
    raise AssertionError("no body is read")


async def fetch(
    files: ConsoleFiles, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    await files.serve_file({"method": method, "path": path}, given, never, send)
    body = b"".join(each.get("body", b"") for each in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body


@pytest.mark.parametrize("path", ["", "approvals", "approvals/some-id", "servers/%2e%2e"])
async def test_every_address_of_the_console_gets_its_page(files: ConsoleFiles, path: str) -> None:
    status, headers, body = await fetch(files, CONSOLE_PATH + path)
    assert (status, body) == (200, INDEX)
    assert headers[b"content-type"] == b"text/html; charset=utf-8"
    assert headers[b"cache-control"] == b"no-cache"


async def test_the_policy_allows_no_inline_script_no_frame_and_no_other_host(
    files: ConsoleFiles,
) -> None:
    _, headers, _ = await fetch(files, CONSOLE_PATH)
    policy = headers[b"content-security-policy"].decode()
    rules: dict[str, str] = {}
    for rule in policy.split(";"):
        name, _, value = rule.strip().partition(" ")
        rules[name] = value
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    # One policy and no second one of its name: 'allow-duplicates' is missing.
    assert rules["trusted-types"] == "comity-worker"
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers[b"x-frame-options"] == b"DENY"
    assert headers[b"x-content-type-options"] == b"nosniff"


async def test_a_file_with_a_digest_in_its_name_is_kept_and_compressed(
    files: ConsoleFiles,
) -> None:
    path = f"{CONSOLE_PATH}assets/index-abc.js"
    status, headers, body = await fetch(files, path, accept_encoding="br, gzip")
    assert status == 200
    assert gzip.decompress(body) == SCRIPT
    assert headers[b"content-encoding"] == b"gzip"
    assert b"immutable" in headers[b"cache-control"]
    assert (await fetch(files, path))[2] == SCRIPT


async def test_a_known_file_is_not_sent_again(files: ConsoleFiles) -> None:
    _, headers, _ = await fetch(files, CONSOLE_PATH)
    status, _, body = await fetch(files, CONSOLE_PATH, if_none_match=headers[b"etag"].decode())
    assert (status, body) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "assets/../../outside.js",
        "assets/..%2f..%2foutside.js",
        "assets//etc/passwd",
        "assets/missing.js",
        "assets/notes.secret",
        "assets/\x00.js",
    ],
)
async def test_no_path_reaches_a_file_that_was_not_built(files: ConsoleFiles, path: str) -> None:
    with pytest.raises(MalformedMessage):
        await fetch(files, CONSOLE_PATH + path)


async def test_a_path_with_dots_gets_the_page_and_no_file(files: ConsoleFiles) -> None:
    assert (await fetch(files, f"{CONSOLE_PATH}../outside.js"))[2] == INDEX


async def test_a_post_is_refused_and_a_head_has_no_body(files: ConsoleFiles) -> None:
    assert (await fetch(files, CONSOLE_PATH, "POST"))[0] == 405
    status, headers, body = await fetch(files, CONSOLE_PATH, "HEAD")
    assert (status, body) == (200, b"")
    assert headers[b"content-length"] == b"%d" % len(INDEX)


async def test_a_package_without_a_build_says_so_at_the_address_of_the_console(
    tmp_path: Path,
) -> None:
    files = ConsoleFiles(tmp_path / "absent")
    assert not files.is_built
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"method": "GET", "path": CONSOLE_PATH, "headers": []}
    await files.endpoints[CONSOLE_PATH](scope, {}, never, send)
    assert sent[0]["status"] == 404
    page = sent[1]["body"].decode()
    assert NO_CONSOLE in page
    assert "pip install comity" in page


async def test_a_browser_is_led_to_the_console_and_a_program_is_not() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    browser = {"method": "GET", "path": "/", "headers": [(b"accept", b"text/html,*/*")]}
    await redirect_to_console(browser, {}, never, send)
    assert sent[0]["status"] == 303
    assert dict(sent[0]["headers"])[b"location"] == b"/console/"
    with pytest.raises(MalformedMessage):
        await redirect_to_console({**browser, "headers": []}, {}, never, send)
