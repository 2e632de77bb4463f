"""A server is begun with what it needs and no more, and a failure says what to look at."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from comity.adapters.upstream.command import Command, Containment, begin, environment_for
from comity.wire.errors import Unavailable


async def output_of(command: Command) -> str:
    """What it says before it ends."""
    child = await begin(command)
    ended = asyncio.Event()
    child.call_at_death(ended.set)
    async with asyncio.timeout(30):
        await ended.wait()
    with child.stdin, child.stdout, child.stderr:
        return child.stdout.read().decode()


def test_a_command_shows_its_program_and_no_secret() -> None:
    command = Command(("npx", "--token=hunter2"), {"API_KEY": "s3cret"}, "/srv")
    assert repr(command) == "Command('npx', 2 words, env ['API_KEY'])"
    assert "hunter2" not in str(command)
    assert "s3cret" not in f"{command}"


def test_only_harmless_variables_are_inherited() -> None:
    harmless = {"PATH": "/bin", "HOME": "/root", "LC_ALL": "C", "LANG": "C"}
    assert environment_for({}, harmless | {"AWS_SECRET": "x", "LC": "x", "path": "x"}) == harmless


def test_an_exported_shell_function_is_not_inherited() -> None:
    assert environment_for({}, {"TERM": "() { :; }; echo harm", "USER": "me"}) == {"USER": "me"}


def test_what_is_configured_comes_on_top() -> None:
    configured = {"PATH": "/opt", "AWS_SECRET": "y"}
    assert environment_for(configured, {"PATH": "/bin", "AWS_SECRET": "x"}) == configured


async def test_a_child_sees_the_listed_variables_and_the_configured_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMITY_TEST_SECRET", "leaked")
    monkeypatch.setenv("LC_TIME", "C")
    show = "import os; print(sorted(os.environ.items()))"
    shown = await output_of(Command((sys.executable, "-S", "-c", show), {"GIVEN": "yes"}))
    assert "('GIVEN', 'yes')" in shown
    assert "('LC_TIME', 'C')" in shown
    assert "leaked" not in shown


@pytest.mark.parametrize("containment", ["auto", "group"])
async def test_a_child_inherits_no_descriptor(containment: Containment) -> None:
    ours, _ = pipe = os.pipe()
    os.set_inheritable(ours, True)
    show = "import os; print([n for n in range(3, 512) if os.path.exists(f'/dev/fd/{n}')])"
    command = Command((sys.executable, "-S", "-c", show), {}, containment=containment)
    assert await output_of(command) == "[]\n"
    for descriptor in pipe:
        os.close(descriptor)


async def test_a_child_leads_its_own_session_and_runs_in_its_folder(tmp_path: Path) -> None:
    show = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid(), os.getcwd())"
    shown = await output_of(Command((sys.executable, "-S", "-c", show), {}, str(tmp_path)))
    assert shown == f"True {tmp_path}\n"


async def test_a_relative_folder_is_one_below_the_gateways_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    assert await output_of(Command(("pwd",), {}, "below")) == f"{tmp_path}/below\n"
    assert await output_of(Command(("pwd",), {})) == f"{tmp_path}\n"


async def test_a_program_is_sought_on_the_path_that_is_configured(tmp_path: Path) -> None:
    script(tmp_path / "pwd", "#!/bin/sh\necho mine")
    assert await output_of(Command(("pwd",), {"PATH": f"/nowhere:{tmp_path}"})) == "mine\n"


def script(path: Path, text: str, *, mode: int = 0o755) -> str:
    path.write_text(text + "\n")
    path.chmod(mode)
    return str(path)


async def refusal(*argv: str, env: dict[str, str] | None = None, cwd: str | None = None) -> str:
    with pytest.raises(Unavailable) as refused:
        await begin(Command(argv, env or {}, cwd))
    assert refused.value.__context__ is None, "the cause may quote an argument"
    return str(refused.value)


async def test_a_missing_program_is_named_with_what_to_check() -> None:
    said = await refusal("no-such-program", "--token=hunter2")
    assert said.startswith("cannot start 'no-such-program': there is no such program; check that")
    assert "hunter2" not in said


async def test_a_missing_folder_is_not_mistaken_for_a_missing_program(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert f"working directory {missing!r} cannot be entered" in await refusal("true", cwd=missing)


async def test_a_script_that_may_not_run_is_told(tmp_path: Path) -> None:
    said = await refusal(script(tmp_path / "server", "#!/bin/sh", mode=0o644))
    assert said.endswith("it may not be executed; check its permissions")


async def test_a_missing_interpreter_is_told(tmp_path: Path) -> None:
    said = await refusal(script(tmp_path / "server", "#!/no/such/interpreter"))
    assert said.endswith("the interpreter that its first line names does not exist")


async def test_a_script_without_first_line_is_told(tmp_path: Path) -> None:
    assert "lack its first line (#!)?" in await refusal(script(tmp_path / "server", "\necho never"))


@pytest.mark.parametrize("argv", [(), ("true", "a\0b")])
async def test_a_command_that_cannot_be_is_told(argv: tuple[str, ...]) -> None:
    assert "is empty or holds a NUL character" in await refusal(*argv)


async def test_a_variable_with_a_nul_is_told_without_its_value() -> None:
    said = await refusal("true", env={"KEY": "s3cret\0"})
    assert "holds a NUL character" in said
    assert "s3cret" not in said


async def test_any_other_refusal_is_told_in_the_words_of_the_system() -> None:
    """Here of a command line that is longer than the system takes."""
    said = await refusal("true", *["x" * 100_000] * 100)
    assert said == "cannot start 'true': Argument list too long"
