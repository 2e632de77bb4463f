"""The container file, read as a builder reads it, as far as that goes without one."""

import json
import re
import shlex

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
    copied = [rest.split()[:-1] for verb, rest in stages()["build"] if verb == "COPY"]
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists()
        assert source in sent
    assert sent == {source for sources in copied for source in sources}


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


def test_the_health_check_asks_what_knows_nothing_of_servers() -> None:
    command = json.loads(last("slim", "HEALTHCHECK").partition(" CMD ")[2])
    assert "http://127.0.0.1:2664/health" in command[2]
    compile(command[2], "HEALTHCHECK", "exec")


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


def test_the_lock_holds_what_comity_and_its_extra_need() -> None:
    about = project()["project"]
    wanted = [*about["dependencies"], *about["optional-dependencies"]["otel"]]
    names = {re.split(r"[^A-Za-z0-9_.-]", each)[0].lower() for each in wanted}
    assert names <= pinned(DEPLOY / "requirements.lock").keys(), HOW_TO
    build = project()["build-system"]["requires"]
    assert {re.split(r"[^a-z]", each)[0] for each in build} <= pinned(DEPLOY / "build.lock").keys()
