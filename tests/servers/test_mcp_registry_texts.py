"""An entry of a registry reads the variables that it shows, and no other text of it reads one."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from comity.app.server_entries import EntryReader
from comity.config.document import ConfigErrors, ConfigValue
from comity.errors import Misconfigured
from comity.servers.mcp_registry.model import decode_server
from comity.servers.mcp_registry.rules import plan_server

ENTRIES = 10_000
NAME = "io.github.owner/notes"
VARIABLES = ("v", "w", "x")
PIECES = (
    *("{v}", "{w}", "{x}", "{v}", "{HOME}", "{secret:DB}", "{env:HOME}", "{AWS_SECRET_ACCESS_KEY}"),
    *("$", "$", "$$", "${", "{", "}", "${HOME}", "$${HOME}", "${secret:DB}", "${HOME:-", ":-"),
    *("secret:DB}", "HOME}", "a", "/", " ", "\u00e9", ""),
)


class AskedVariables(Mapping[str, str]):
    """An environment that has every variable and keeps the names that were asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return f"<{name}>"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class EntryMaker:
    """Makes entries of a registry, and the text that a client makes of each of their values."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311  # the same entries each time
        self.expected: list[str] = []

    def _pieces(self) -> str:
        return "".join(self._random.choices(PIECES, k=self._random.randrange(1, 6)))

    def _variable(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "isRequired": self._random.random() < 0.5,
            "isSecret": self._random.random() < 0.3,
        }
        for key in ("value", "default"):
            if self._random.random() < 0.3:
                made[key] = self._pieces()
        return made

    def given(self) -> dict[str, Any]:
        """A value whose variables are given by the registry or by the user."""
        variables = {name: self._variable() for name in VARIABLES if self._random.random() < 0.7}
        pieces = self._random.choices(PIECES, k=self._random.randrange(1, 6))
        text = "".join(pieces)
        self.expected.append(_text_of_client(text, variables))
        return {"value": text, "variables": variables}

    def remote(self) -> dict[str, Any]:
        headers = [{"name": f"X-{n}", **self.given()} for n in range(self._random.randrange(1, 4))]
        url = "https://notes.example.org/mcp"
        return {"remotes": [{"type": "streamable-http", "url": url, "headers": headers}]}

    def package(self) -> dict[str, Any]:
        arguments = [
            {"type": "positional", **self.given()} for _ in range(self._random.randrange(3))
        ]
        env = [{"name": f"NOTES_{n}", **self.given()} for n in range(self._random.randrange(3))]
        made = {
            "registryType": self._random.choice(("npm", "pypi", "nuget")),
            "identifier": "notes",
            "version": "1.2.0",
            "transport": {"type": "stdio"},
            "packageArguments": arguments,
            "environmentVariables": env,
        }
        return {"packages": [made]}

    def document(self) -> dict[str, Any]:
        made = self.remote() if self._random.random() < 0.5 else self.package()
        return {"server": {"name": NAME, "version": "1.2.0", **made}}


def _text_of_client(text: str, variables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a text with each variable replaced once, as the schema of the registry says."""
    made = ""
    while text:
        for name, given in variables.items():
            if text.startswith(f"{{{name}}}"):
                value = given.get("value")
                if value is None and not given["isSecret"]:
                    value = given.get("default")
                made += f"<NOTES__{name.upper()}>" if value is None else value
                text = text[len(name) + 2 :]
                break
        else:
            made, text = made + text[0], text[1:]
    return made


def test_the_gateway_reads_exactly_the_variables_that_are_shown() -> None:
    added = referring = 0
    for seed in range(ENTRIES):
        maker = EntryMaker(seed)
        try:
            plan = plan_server(decode_server(maker.document(), NAME, "latest"))
        except Misconfigured as problem:
            assert "that the configuration cannot write" in str(problem), seed  # noqa: PT017
            continue
        added += 1
        variables, errors = AskedVariables(), ConfigErrors()
        reader = EntryReader(variables, errors)
        server = reader.read_server("notes", "notes", ConfigValue(plan.entry, "file"))
        assert (server is not None, errors.found) == (True, []), seed
        assert server is not None
        assert variables.names == {each.name for each in plan.needs}, seed
        referring += bool(variables.names)
        given = [*server.headers.values(), *server.args, *server.env.values()]
        assert given[len(given) - len(maker.expected) :] == maker.expected, seed
    assert added > ENTRIES // 2
    assert referring > ENTRIES // 10
