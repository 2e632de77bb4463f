"""The page about live servers says what is so: its server runs, and its test passes."""

import re
from typing import Any

from comity.sdk import server as kit
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "guides" / "write-a-live-server.md").read_text(encoding="utf-8")


async def test_the_server_of_the_page_passes_the_test_of_the_page() -> None:
    server, test = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert server.endswith("server.run()\n")
    names: dict[str, Any] = {}
    for text in (server.removesuffix("server.run()\n"), test):
        exec(compile(text, "write-a-live-server.md", "exec"), names)  # noqa: S102  # our own page
    await names["test_it_remembers"]()


def test_what_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(?:@)?(?:server|feature)\.(\w+)", PAGE))
    offered = {*dir(kit.Server("x")), *dir(kit.Feature), "py"}
    assert named - offered == set()
    results = re.findall(r"`(Pushed|Reply|Elevated)\(([\w, ]+)\)`", PAGE)
    assert len(results) == 3
    for name, members in results:
        assert set(members.split(", ")) <= set(getattr(kit, name).__dataclass_fields__)
