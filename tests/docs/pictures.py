"""Takes a picture of every page of the docs, every help text and every table, to be looked at.

    scripts/docs && .venv/bin/python -m tests.docs.pictures FOLDER [pages|help|tables]

The script names each page that is wider than its window and each line that is wider than its
terminal, and then ends with status 1.
"""

import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from shutil import which
from typing import Final, override

import click
from playwright.sync_api import Browser, sync_playwright
from rich.cells import cell_len

from comity.cli.main import comity
from tests.docs.recording import Shell
from tests.interop.peers import ROOT
from tests.interop.processes import free_port

WINDOWS: Final = {"desktop": 1280, "phone": 390}
HELP_COLUMNS: Final = 80
TABLE_COLUMNS: Final = (80, 120)
_MAX_HEIGHT: Final = 12_000
_STYLE: Final = "font: 14px/19px 'DejaVu Sans Mono', monospace; padding: 12px; margin: 0"

SETTINGS: Final = """\
[policy]
require_approval = "destructive"

[[servers]]
id = "example"
command = "comity"
args = ["dev", "example-server"]

[[servers]]
id = "memory"
command = "{python}"
args = ["{root}/examples/memory_server/server.py", "memories.json"]
[servers.live]
enabled = ["memory.*"]

[[servers]]
id = "warehouse-inventory-production"
url = "http://127.0.0.1:9/mcp"

[[models]]
id = "fast"
api = "openai"
model = "gpt-4o-mini"
url = "http://127.0.0.1:9/v1"

[[models]]
id = "own"
api = "openai"
model = "some-model"
url = "http://127.0.0.1:9/v1"
price_input = 0
price_output = 0

[inference]
default = "fast"

[[budgets]]
principal = "server:memory"
tokens_per_day = 200000
money_per_day = 0.50
"""

SCENE: Final = (
    "principals create agent:ci --label 'Continuous integration'",
    "principals create person:ana@example.org --label Ana",
    "grants create agent:ci 'example/*' --reason 'builds read the notes'",
    "grants create agent:ci warehouse-inventory-production/stock_levels --ask --expires 8h",
    "grants create person:ana@example.org '*' --verb approval/answer",
    "keys create agent:ci --label builds --expires 30d",
    "call example__echo message=hello",
    "call example__echo",
    "call example__now",
)
"""Commands that give the tables their rows; one of them fails, so that a refusal is shown."""

TABLES: Final = (
    "status",
    "doctor",
    "config show",
    "config path",
    "context list",
    "clients list",
    "servers list",
    "servers show example",
    "servers show warehouse-inventory-production",
    "servers permissions list",
    "servers features list",
    "servers state list",
    "tools list",
    "tools list -o wide",
    "tools show example__delete_note",
    "tools diff",
    "tools search 'delete a note'",
    "principals list",
    "principals show agent:ci",
    "keys list",
    "grants list",
    "grants explain agent:ci example__delete_note",
    "grants suggestions list",
    "approvals list",
    "approvals show {request}",
    "audit list",
    "audit tail",
    "audit verify",
    "webhooks list",
    "db status",
    "nodes",
    "topics list",
    "chat list",
    "models list",
    "models usage",
    "channels list",
    "pushes list",
)


def page_pictures(browser: Browser, folder: Path) -> Iterator[str]:
    """Take each page of `site` in both widths. Yield the pages that do not fit."""
    site = ROOT / "site"
    handler = partial(_QuietHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield from _pictures_of(browser, folder, site, f"http://127.0.0.1:{server.server_port}")
        server.shutdown()


class _QuietHandler(SimpleHTTPRequestHandler):
    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


def _pictures_of(browser: Browser, folder: Path, site: Path, address: str) -> Iterator[str]:
    for kind, width in WINDOWS.items():
        page = browser.new_page(viewport={"width": width, "height": 900})
        for file in sorted(site.rglob("*.html")):
            path = str(file.relative_to(site))
            name = path.removesuffix(".html").replace("/", ".")
            page.goto(f"{address}/{path}")
            height: int = page.evaluate("document.documentElement.scrollHeight")
            wide: int = page.evaluate("document.documentElement.scrollWidth")
            page.set_viewport_size({"width": width, "height": min(height, _MAX_HEIGHT)})
            page.screenshot(path=folder / f"{kind}.{name}.png")
            page.set_viewport_size({"width": width, "height": 900})
            if wide > width:
                yield f"{name}: {wide} pixels in a window of {width}"
        page.close()


def help_texts() -> Iterator[tuple[str, str]]:
    """Yield each command with its help at 80 columns."""
    yield from _help_of(comity, None, "comity")


def _help_of(
    command: click.Command, parent: click.Context | None, name: str
) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, info_name=name, terminal_width=HELP_COLUMNS)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from _help_of(inner, context, each)


def tables() -> Iterator[tuple[str, int, str]]:
    """Yield each command with a width and what it prints against a gateway that has rows."""
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder), free_port())
        settings = SETTINGS.format(python=sys.executable, root=ROOT)
        (shell.place / "comity.toml").write_text(settings, encoding="utf-8")
        shell.run("comity context add work --url https://comity.example.org")
        with shell.serving():
            yield from _tables_of(shell)


def _tables_of(shell: Shell) -> Iterator[tuple[str, int, str]]:
    for words in SCENE:
        yield words, 80, shell.run(f"comity {words}", check=False)
    # It waits for an approval that does not come.
    shell.run("comity call example__delete_note name=draft --timeout 2", check=False)
    (request,) = shell.run("comity approvals list -o name").split()
    for words, columns in product((each.format(request=request) for each in TABLES), TABLE_COLUMNS):
        yield words, columns, shell.run(f"comity {words}", columns, check=False)


def terminal_pictures(
    browser: Browser, folder: Path, kind: str, texts: Iterable[tuple[str, int, str]]
) -> Iterator[str]:
    """Take what each command prints. Yield the lines that do not fit."""
    for words, columns, text in texts:
        page = browser.new_page(viewport={"width": columns * 9 + 24, "height": 100})
        page.set_content(f'<pre style="{_STYLE}">$ comity {escape(words)}\n{escape(text)}</pre>')
        name = "".join(char if char.isalnum() else "-" for char in words)[:60]
        page.screenshot(path=folder / f"{kind}.{columns}.{name}.png", full_page=True)
        page.close()
        for line in text.splitlines():
            if cell_len(line) > columns:
                yield f"comity {words}: {cell_len(line)} columns in {columns}: {line}"


def main() -> int:
    folder = Path(sys.argv[1])
    kinds = sys.argv[2:] or ["pages", "help", "tables"]
    folder.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        if "pages" in kinds:
            problems += page_pictures(browser, folder)
        if "help" in kinds:
            texts = ((f"{words} --help", HELP_COLUMNS, text) for words, text in help_texts())
            problems += terminal_pictures(browser, folder, "help", texts)
        if "tables" in kinds:
            problems += terminal_pictures(browser, folder, "table", tables())
        browser.close()
    print(*problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
