"""The approval of a project file shows each variable that the gateway would read for it."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from comity.app.server_entries import CONNECTION_FIELDS, URL_KEYS, EntryReader
from comity.app.settings import SERVER_FIELDS, TABLES
from comity.config.commands import approval_lines
from comity.config.document import ConfigErrors, ConfigValue, expand_variables, references_in
from comity.errors import Misconfigured

FILES = 10_000
LITERAL = "canary"
PIECES = (
    *("${%s}", "${env:%s}", "${%s:-}", "${%s:-canary}", "${secret:%s}"),
    *("$${%s}", "$$${%s}", "${input:%s}", "${%s", "{%s}", "%s}", "${env:%s:-"),
    *("$", "$$", "{", "}", "${", ":-", "secret:", "canary", ""),
)
ENTRY_KEYS = sorted({*CONNECTION_FIELDS, *URL_KEYS, *SERVER_FIELDS, "mgp", "other"} - {"id"})
EXPANDED_KEYS = ("headers", "auth", "env", "args", "cwd", "url", "command", "openapi", "oauth")
TOP_KEYS = sorted({*filter(None, TABLES), "models", "webhooks"} - {"servers"})


class AskedVariables(Mapping[str, str]):
    """An environment that has every variable and keeps the names that were asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.names.append(name)
        return "set"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class FileMaker:
    """Makes configuration files with references anywhere, and keeps the texts in them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # the same files each time
        self.texts: list[str] = []

    def text(self) -> str:
        pieces = self._random.choices(PIECES, k=self._random.randrange(1, 5))
        made = "".join(
            each.replace("%s", self._random.choice(("A_KEY", "B", "_c", "d.e"))) for each in pieces
        )
        self.texts.append(made)
        return made

    def value(self, depth: int = 0) -> object:
        kind = self._random.randrange(4 if depth < 3 else 2)
        if kind == 0:
            return self._random.choice((None, 7, True, 1.5))
        if kind == 1:
            return self.text()
        inner = [self.value(depth + 1) for _ in range(self._random.randrange(3))]
        return inner if kind == 2 else {f"k{n}": each for n, each in enumerate(inner)}

    def entry(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        keys = self._random.sample(ENTRY_KEYS, 2) + self._random.sample(EXPANDED_KEYS, 3)
        for key in dict.fromkeys(keys):
            if key in ("headers", "auth", "env") and self._random.random() < 0.8:
                made[key] = {f"X-{n}": self.text() for n in range(self._random.randrange(4))}
            elif key == "oauth" and self._random.random() < 0.8:
                made[key] = {"issuer": self.text(), "client_secret": self.text()}
            elif key in ("url", "command", "cwd", "openapi"):
                made[key] = self.text()
            elif key == "args":
                made[key] = [self.text() for _ in range(self._random.randrange(4))]
            else:
                made[key] = self.value()
        return made

    def file(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        entries = [self.entry() for _ in range(self._random.randrange(1, 3))]
        top = {key: self.value() for key in self._random.sample(TOP_KEYS, 2)}
        if self._random.random() < 0.5:
            return {
                **top,
                "servers": [{"id": f"s{n}", **e} for n, e in enumerate(entries)],
            }, entries
        return {**top, "mcpServers": {f"s{n}": each for n, each in enumerate(entries)}}, entries


def asked_for(text: str) -> list[str] | None:
    """The variables that the gateway reads for a text, or None if it refuses the text."""
    variables = AskedVariables()
    try:
        expand_variables(text, variables)
    except Misconfigured:
        return None
    return variables.names


def test_each_variable_that_a_file_sends_is_shown_and_no_other() -> None:
    sent = 0
    for seed in range(FILES):
        maker = FileMaker(seed)
        document, entries = maker.file()
        lines = approval_lines(document)
        written = {name for text in maker.texts for name in references_in(text)}
        shown: set[str] = set()
        if lines[-1].startswith("sends these variables: "):
            shown = {*lines.pop().removeprefix("sends these variables: ").split(", ")}
        assert shown == written, seed
        # Each is also shown beside the setting that sends it.
        assert all(any(name in line for line in lines) for name in shown), seed
        for text in maker.texts:
            if (names := asked_for(text)) is not None:
                assert references_in(text) == names, text
        variables = AskedVariables()
        for entry in entries:
            reader = EntryReader(variables, ConfigErrors())
            reader.read_server("s", "s", ConfigValue(entry, "file"))
        assert shown >= {*variables.names}, seed
        sent += len(variables.names)
    assert sent > FILES // 2


def test_literal_text_of_a_credential_is_not_shown() -> None:
    for seed in range(1000):
        maker = FileMaker(seed)
        texts = {f"X-{n}": f"{LITERAL}{maker.text()}{LITERAL}" for n in range(3)}
        lines = approval_lines(
            {"mcpServers": {"a": {"url": "x", "headers": texts, "auth": texts}}, "port": 1}
        )
        assert LITERAL not in "\n".join(lines[:-1]), seed
        for (name, text), line in zip(texts.items(), lines[1:4], strict=True):
            references = "".join(f"${{{each}}}" for each in references_in(text))
            assert line.replace("…", "") == f"a.headers.{name} = {references}", seed


def test_every_key_of_an_entry_shows_its_variables() -> None:
    for key in ENTRY_KEYS:
        for value in (
            "${V}",
            ["${V}"],
            {"a": "${V}"},
            {"client_secret": "${V}"},
            [{"a": ["${V}"]}],
        ):
            lines = approval_lines({"servers": [{"id": "a", key: value}]})
            assert lines[-1] == "sends these variables: V", (key, value)
            assert any("${V}" in line for line in lines[:-1]), (key, value)
    for table in ({"models": [{"key_env": "V"}]}, {"identity": {"a": {"client_secret_env": "V"}}}):
        assert approval_lines(table)[-1] == "sends these variables: V"
