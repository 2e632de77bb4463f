"""Servers that are container images, which podman or docker runs."""

import asyncio
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from comity.errors import Unavailable
from comity.servers.process.process import ServerCommand
from comity.servers.sandbox.launch import SCRATCH, proxy_variables
from comity.servers.sandbox.model import SandboxAccess, SandboxPolicy

type EngineChoice = Literal["auto", "podman", "docker"]

_ENGINES: Final = ("podman", "docker")
# The folders of the system only: a program that a server wrote is never the engine.
_ENGINE_PATH: Final = "/usr/bin:/bin:/usr/local/bin:/opt/homebrew/bin"
_IMAGE: Final = re.compile(r"[a-z0-9][a-zA-Z0-9._/:-]*@sha256:[0-9a-f]{64}")
_NOBODY: Final = "65534:65534"
_REMOVE_SECONDS: Final = 30
_MAX_USER_PROCESSES: Final = 32768
# How the engine finds its daemon, its storage and its credentials.
_ENGINE_VARIABLES: Final = (
    *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST", "DOCKER_CONTEXT"),
    *("DOCKER_CONFIG", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
    "REGISTRY_AUTH_FILE",
)
# The engine reads these itself, so a value for the server would change the engine.
_OF_THE_ENGINE: Final = re.compile(
    r"PATH|HOME|TMPDIR|(DOCKER|CONTAINERS?|PODMAN|BUILDAH|REGISTRY|XDG|DBUS|LD|GO|SSL)_.*|.*_PROXY",
    re.IGNORECASE,
)


def image_problem(image: str) -> str | None:
    """Return why an image cannot be a server, or None if its name has a digest."""
    if _IMAGE.fullmatch(image):
        return None
    return (
        f"the image {image!r:.200} has no digest; write NAME@sha256:DIGEST, as "
        "`podman images --digests` or `docker images --digests` shows it"
    )


def find_engine(wanted: EngineChoice = "auto") -> str | None:
    """Return the path of the container engine, or None if it is not installed."""
    names = _ENGINES if wanted == "auto" else (wanted,)
    found = (shutil.which(name, path=_ENGINE_PATH) for name in names)
    return next((path for path in found if path is not None), None)


@dataclass(frozen=True, slots=True)
class Container:
    """The container of one run of a server."""

    engine: str
    name: str

    def wrap(self, command: ServerCommand, policy: SandboxPolicy) -> ServerCommand:
        """Return the command that runs an image. Raise Unavailable if it cannot be confined."""
        image, *args = command.argv
        problem = image_problem(image) or _access_problem(policy.access, command.env)
        if problem is not None:
            raise Unavailable(problem)
        own = {name: os.environ[name] for name in _ENGINE_VARIABLES if name in os.environ}
        words = (self.engine, "run", *self._options(policy), *_variables(command.env))
        folder = command.cwd or ""
        if folder and any(Path(folder).is_relative_to(each) for each in _folders(policy.access)):
            words += ("--workdir", folder)
        return ServerCommand(
            (*words, image, *args), {**own, **command.env}, "/", command.containment
        )

    def _options(self, policy: SandboxPolicy) -> list[str]:
        access, limits, is_podman = policy.access, policy.limits, Path(self.engine).name == "podman"
        flags = "nosuid,nodev" if access.may_execute else "nosuid,nodev,noexec"
        words = [
            *("--rm", "--interactive", "--name", self.name, "--hostname", "sandbox"),
            *("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"),
            # The engine would write all messages to a file.
            *("--network=none", "--log-driver=none"),
            *("--tmpfs", f"{SCRATCH}:rw,{flags},mode=1777,size={limits.scratch_bytes}"),
            f"--memory={limits.memory}",
            f"--memory-swap={limits.memory}",
            f"--pids-limit={limits.processes}",
            f"--ulimit=nofile={limits.open_files}:{limits.open_files}",
            f"--ulimit=fsize={limits.file_bytes}:{limits.file_bytes}",
            "--ulimit=core=0:0",
        ]
        if limits.cpu_percent:
            words.append(f"--cpus={limits.cpu_percent / 100:g}")
        if is_podman:
            words += ["--read-only-tmpfs=false", "--http-proxy=false"]
            # Podman raises this limit of a user, which a gateway inside of a container may not.
            _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
            most = _MAX_USER_PROCESSES if hard < 0 else min(hard, _MAX_USER_PROCESSES)
            words.append(f"--ulimit=nproc={most}:{most}")
        # The owner of granted folders is usually the user of the gateway.
        has_folders = bool(_folders(access))
        words.append(f"--user={f'{os.getuid()}:{os.getgid()}' if has_folders else _NOBODY}")
        if has_folders and is_podman and os.getuid() != 0:
            words.append("--userns=keep-id")
        for place in sorted(_folders(access)):
            if Path(place).exists():
                mount = f"type=bind,source={place},destination={place}"
                is_writable = place in access.writable
                words += ["--mount", mount if is_writable else f"{mount},readonly"]
        return words

    async def remove(self) -> None:
        """End and remove the container, if the engine has not done so already."""
        with suppress(OSError, subprocess.TimeoutExpired):
            await asyncio.to_thread(
                subprocess.run,
                (self.engine, "rm", "--force", "--volumes", self.name),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_REMOVE_SECONDS,
                check=False,
            )


def _folders(access: SandboxAccess) -> set[str]:
    return {*access.readable, *access.writable}


def _variables(configured: Mapping[str, str]) -> list[str]:
    """Return the options for variables. Values that may be secrets are not on the command line."""
    own = {"HOME": SCRATCH, "TMPDIR": SCRATCH, **proxy_variables(None)}
    words = [f"--env={name}={value}" for name, value in own.items()]
    return [*words, *(f"--env={name}" for name in configured)]


def _access_problem(access: SandboxAccess, env: Mapping[str, str]) -> str | None:
    if access.hosts:
        return (
            "an image has no network, and `network.outbound` was granted to it; remove the "
            "permission, or run the server as a program with another `sandbox`"
        )
    name = next((each for each in env if _OF_THE_ENGINE.fullmatch(each)), None)
    if name is not None:
        return f"the container engine reads the variable {name}, so an image cannot get it"
    odd = next((place for place in _folders(access) if re.search(r'[,"\n]', place)), None)
    if odd is not None:
        return f"the folder {odd!r:.200} has a comma, a quote or a line break in its name"
    return None
