"""`comity dev`: a new server project, functions as a server, and an example server."""

import importlib.resources
import keyword
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import click

from comity.cli.options import CliGroup, output_options
from comity.cli.output import line_text, shorten_path, show_document, show_hint, show_output
from comity.config.trust import content_digest, trust_file
from comity.errors import Misconfigured

KINDS: Final[Mapping[str, str]] = {
    "tool": "A tool server whose state can be rolled back.",
    "memory": "A server that remembers what people say, and tells the model.",
    "push": "A server that reminds people: what is due starts a turn.",
    "channel": "A connector that brings words in and carries answers out.",
}
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", re.ASCII)
LONGEST: Final = 40
_OURS: Final = frozenset({"comity", "mcp", "tests", "test", "server", "src"})
_FILES: Final[Mapping[str, str]] = {
    "pyproject.toml": "common/pyproject.toml",
    "README.md": "common/README.md",
    ".gitignore": "common/gitignore",
    "comity.toml": "{kind}/comity.toml",
    "src/{module}/__init__.py": "common/init.py",
    "src/{module}/__main__.py": "common/main.py",
    "src/{module}/server.py": "{kind}/server.py",
    "tests/conftest.py": "common/conftest.py",
    "tests/test_server.py": "{kind}/test_server.py",
}


@click.group("dev", cls=CliGroup)
def dev_command() -> None:
    """Build and try servers of your own.

    \b
    Examples:
      comity dev new server weather
      comity dev serve-functions tools.py
      comity dev example-server
    """


@dev_command.group("new")
def new_command() -> None:
    """Create a project of your own.

    \b
    Examples:
      comity dev new server weather
    """


@dev_command.command("serve-functions")
@click.argument("module")
def serve_functions(module: str) -> None:
    """Serve the functions of a Python module as tools.

    The server speaks MCP on stdin and stdout. MODULE is `package.module`,
    `package.module:function,other` or a file. Each function is a tool. Its annotations are the
    schema, and its docstring is the description.

    \b
    Examples:
      comity dev serve-functions tools.py
      comity dev serve-functions package.module:function,other
    """
    # Imported here because only this process is that server.
    from comity.sdk import module_server

    module_server.serve_functions(module)


@dev_command.command("example-server")
def example_server() -> None:
    """Run a small example server on stdin and stdout.

    \b
    Examples:
      comity dev example-server
    """
    # Imported here because only this process is that server.
    from comity.sdk.example import ExampleServer

    ExampleServer(sys.stdin, sys.stdout).serve()


@new_command.command("server")
@click.argument("name")
@click.option(
    "--with",
    "kind",
    type=click.Choice(list(KINDS)),
    default="tool",
    show_default=True,
    help="Template: a tool, a memory, a push or a channel.",
)
@click.option(
    "--to",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder of the project. Default: the name.",
)
@output_options
def new_server(name: str, kind: str, to: Path | None) -> None:
    """Create a server project with its tests.

    The folder must be new or empty. The project has a server, its tests, a README and a
    configuration for Comity.

    \b
    Examples:
      comity dev new server weather
      comity dev new server my-notes --with memory --to notes
    """
    module = _module_of(name)
    folder = to or Path(name)
    _refuse_to_replace(folder)
    written = _write(folder, kind, {"name": name, "module": module, "about": KINDS[kind]})
    # Comity wrote the file for this person, so it needs no approval.
    config = folder / "comity.toml"
    trust_file(config, content_digest(config.read_bytes()))

    def print_table() -> None:
        place = shorten_path(folder.absolute())
        show_output(line_text(f"Wrote {len(written)} files to {place}.", "bold green"))
        show_hint(f"Next: cd {folder}, then `pip install -e '.[test]'` and `pytest`.")
        show_hint("README.md explains how to add it to Comity.")

    document = {"name": name, "folder": str(folder.absolute()), "files": written}
    show_document(document, print_table, written)


def _module_of(name: str) -> str:
    """The Python module name of a server. Raises Misconfigured for an unusable name."""
    module = name.replace("-", "_")
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise Misconfigured(
            f"{name!r:.80} is no name for a server: use small letters and digits, joined by single "
            f"hyphens, {LONGEST} characters at most, such as weather or my-notes"
        )
    if keyword.iskeyword(module) or module in _OURS or module in sys.stdlib_module_names:
        raise Misconfigured(f"Python or Comity uses the name {name!r}; choose another one")
    return module


def _refuse_to_replace(folder: Path) -> None:
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as problem:
        raise Misconfigured(f"{folder} cannot be read: {problem.strerror}") from None
    if taken or folder.is_symlink():
        raise Misconfigured(f"{folder} exists; name another folder with --to")


def _write(folder: Path, kind: str, values: Mapping[str, str]) -> list[str]:
    """All files or none: what was begun and fails is taken away again."""
    values = {**values, "run": _filled(_template(f"{kind}/run.md"), values).strip()}
    was_there = folder.exists()
    written: list[str] = []
    try:
        for place, template in _FILES.items():
            target = folder / place.format(module=values["module"])
            text = _filled(_template(template.format(kind=kind)), values)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Whoever came in between keeps what is theirs.
            with target.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
            written.append(target.relative_to(folder).as_posix())
    except OSError as problem:
        _take_away(folder, written, keep=was_there)
        raise Misconfigured(f"{folder} cannot be written: {problem.strerror}") from None
    return written


def _take_away(folder: Path, written: list[str], *, keep: bool) -> None:
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for name in written:
        (folder / name).unlink(missing_ok=True)


def _template(name: str) -> str:
    topic: Traversable = importlib.resources.files("comity.sdk") / "templates"
    return (topic / f"{name}.txt").read_text(encoding="utf-8")


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text
