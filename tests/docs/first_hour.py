"""The README and the quickstart, typed at terminals from the first command to the last."""

import sys

from tests.docs.pages import ROOT
from tests.docs.typist import PageReader, TypedShell, see_result

README = ROOT / "README.md"
QUICKSTART = ROOT / "docs" / "tutorials" / "quickstart.md"
INSTALL = "pip install comity"


def read_the_readme(reader: PageReader, *, installs: bool) -> None:
    """Type each command of the README's quickstart, in the terminals that it names."""
    install, init, serve, echo, *rest = reader.consoles()
    delete, listing, approve, verify = rest[:4]
    assert (install.command, serve.command) == (INSTALL, "comity serve")
    with reader.terminal() as first, reader.terminal() as second, reader.terminal() as third:
        if installs:
            first.run(install.command)
        first.follow(init, reader.names)
        reader.serve(first, serve)
        second.follow(echo, reader.names)
        reader.call_and_approve(second, third, [delete, listing, approve])
        # The first entries are signed some seconds after they were written.
        third.follow_until(verify, reader.names, "intact")
        assert first.interrupt() == 0


def read_the_quickstart(reader: PageReader, *, installs: bool) -> None:
    """Type each command of the quickstart, with its client and its change of the configuration."""
    install, init, serve, tools, echo, delete, listing, approve, *audit = reader.consoles()
    assert (install.command, serve.command) == (INSTALL, "comity serve")
    with reader.terminal() as first, reader.terminal() as second, reader.terminal() as third:
        if installs:
            first.run(install.command)
        first.follow(init, reader.names)
        reader.serve(first, serve)
        for step in (tools, echo):
            second.follow(step, reader.names)
        (client,) = reader.snippets("python")
        script = client.text.replace("2664", reader.port)
        (reader.folder / "client.py").write_text(script, encoding="utf-8")
        assert "hello" in second.run(f"{sys.executable} client.py")
        reader.call_and_approve(second, third, [delete, listing, approve])
        _require_one_more_approval(reader, first, second, third)
        for step in audit[:-1]:
            third.follow(step, reader.names)
        third.follow_until(audit[-1], reader.names, "intact")
        assert first.interrupt() == 0


def _require_one_more_approval(
    reader: PageReader, first: TypedShell, second: TypedShell, third: TypedShell
) -> None:
    """Do what section 6 says: append lines, approve the file, and see the tool wait."""
    _, addition = reader.snippets("toml")
    second.run(f"cat >> comity.toml <<'END'\n{addition.text}END")
    second.type("comity config trust\n")
    second.expect(r"\[y/N\]")
    second.type("y\n")
    second.expect("Approved")
    second.run("true")
    first.expect("the configuration has changed")
    # The server of a changed entry starts again, and has no tools until then.
    reader.wait_until_listed(second, "example__echo")
    second.type("comity call example__echo message=hello\n")
    second.expect("approval")
    request = reader.open_request(third)
    third.run(f"comity approve {request} --yes")
    see_result(second, r"(?m)^hello$")
