"""The container file, read as a builder reads it, as far as that goes without one."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, ROOT, pinned, project, understood

type Step = tuple[str, str]

HOW_TO = "docs/operate/deploy.md says how the locks of deploy/ are written anew"


def steps() -> list[Step]:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = (line.partition(" ") for line in joined.splitlines() if line.strip())
    return [(verb, rest.strip()) for verb, _, rest in found]


def stages() -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    name = ""
    for verb, rest in steps():
        if verb == "FROM":
            name = rest.split()[-1]
            found[name] = list(found.get(rest.split()[0], []))
        elif name:
            found[name].append((verb, rest))
    return found


def last(stage: str, verb: str) -> str:
    return [rest for each, rest in stages()[stage] if each == verb][-1]


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert "*" in ignored
    copied = [rest.split() for verb, rest in steps() if verb == "COPY" and "--from" not in rest]
    sources = {source for words in copied for source in words[:-1]}
    for source in sources:
        assert (ROOT / source).exists()
        assert source in sent or str(Path(source).parent) in sent
    assert sent == {source if source in sent else str(Path(source).parent) for source in sources}


def test_what_is_copied_from_another_stage_names_a_stage() -> None:
    known = stages()
    named = re.findall(r"--from=(\S+)", "\n".join(rest for verb, rest in steps() if verb == "COPY"))
    assert named
    assert set(named) <= known.keys()


@pytest.mark.parametrize("stage", ["slim", "full"])
def test_an_image_runs_a_real_command_as_nobody_special(stage: str) -> None:
    assert last(stage, "USER") == "2664:2664"
    assert json.loads(last(stage, "ENTRYPOINT")) == ["comity"]
    assert understood(json.loads(last(stage, "CMD"))) == "serve"


def test_the_health_check_is_a_program_of_the_image() -> None:
    (program,) = json.loads(last("slim", "HEALTHCHECK").partition(" CMD ")[2])
    copied = [rest.split() for verb, rest in stages()["slim"] if verb == "COPY"]
    (source,) = [words[0] for words in copied if words[-1] == f"/usr/local/bin/{program}"]
    assert os.access(ROOT / source, os.X_OK)


def test_every_package_is_checked_by_its_hash() -> None:
    installs = [rest for verb, rest in stages()["build"] if verb == "RUN" and "pip" in rest]
    for line in " && ".join(installs).split(" && "):
        words = shlex.split(line)
        if "install" in words:
            assert "--require-hashes" in words or "--no-deps" in words, line


def test_the_locks_say_the_same_as_the_projects_own() -> None:
    main = pinned(ROOT / "requirements.lock")
    for name in ("requirements.lock", "build.lock"):
        ours = pinned(DEPLOY / name)
        assert {each: main.get(each) for each in ours} == ours, HOW_TO


def test_the_lock_holds_what_comity_and_the_extra_all_need() -> None:
    about = project()["project"]
    extras = about["optional-dependencies"]
    (everything,) = extras["all"]
    named = everything.removeprefix("comity[").removesuffix("]").split(",")
    wanted = [*about["dependencies"], *(each for name in named for each in extras[name])]
    names = {re.split(r"[^A-Za-z0-9_.-]", each)[0].lower() for each in wanted}
    assert names <= pinned(DEPLOY / "requirements.lock").keys(), HOW_TO
    build = project()["build-system"]["requires"]
    assert {re.split(r"[^a-z]", each)[0] for each in build} <= pinned(DEPLOY / "build.lock").keys()
