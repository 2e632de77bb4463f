"""Turns an entry of an MCP registry into a server of the configuration.

The entry comes from a stranger. It becomes a list of words, never a line of a shell. A `${` in one
of its texts is escaped, so that it names no variable of this machine.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from comity.config.document import expand_variables, references_in
from comity.errors import Misconfigured
from comity.mcp.protocol import derived_id
from comity.servers.mcp_registry.model import (
    RegistryArgument,
    RegistryInput,
    RegistryPackage,
    RegistryServer,
    RegistryTransport,
    RegistryVariable,
)
from comity.servers.registration.rules import MAX_ARGUMENT_BYTES, url_problem

REMOTE: Final = "remote"
_REMOTE_TRANSPORTS: Final = {"streamable-http": "", "sse": "sse"}
_IMAGE: Final = re.compile(
    r"[a-z0-9][a-z0-9.-]*(?::[0-9]{1,5})?(?:/[a-z0-9][a-z0-9._-]*)+"
    r"(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(sha256:[a-f0-9]{64}))?"
)
_NPM_NAME: Final = re.compile(r"(?:@[A-Za-z0-9][A-Za-z0-9._~-]*/)?[A-Za-z0-9][A-Za-z0-9._~-]*")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_!~-]{0,127}")
_VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FLAG: Final = re.compile(r"--?[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LONE_REFERENCE: Final = re.compile(r"\$\{[A-Z_][A-Z0-9_]*(?::-)?\}", re.IGNORECASE)
_BRACED: Final = re.compile(r"\{([A-Za-z0-9_.-]{1,128})\}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_YES_FLAGS: Final = frozenset({"-y", "--yes"})

_RUNNER_VARIABLES: Final = re.compile(
    r"(?:PATH|HOME|SHELL|ENV|BASH_ENV|IFS|NETRC|HOSTALIASES|LOCPATH|TE?MP(?:DIR)?"
    r"|(?:LD|DYLD|GLIBC|GCONV|DOCKER|CONTAINER|BUILDAH|PODMAN|REGISTRY|NPM|NODE|NVM|YARN|BUN|DENO"
    r"|COREPACK|ELECTRON|UV|PIP|PYTHON|VIRTUAL|DOTNET|NUGET|MSBUILD|CORECLR|COR|COMPLUS"
    r"|COMITY|XDG|SSL|OPENSSL|GIT|SSH|RES|KRB5)_.*|PYTHON[A-Z]+|MSBUILD[A-Z]+"
    r"|.*_PROXY|.*_CA_BUNDLE|.*JAVA_(?:TOOL_)?OPTIONS|(?:RUBY|PERL5)(?:OPT|LIB))",
    re.IGNORECASE,
)
"""Variables that change the program that runs a package, and not the package.

No such list is complete. An entry gives texts of its own only to the variables
that `_check_own_texts` lets pass.
"""

_BASE_URLS: Final = {
    "npm": re.compile(r"https://registry\.npmjs\.org/?"),
    "pypi": re.compile(r"https://pypi\.org/?"),
    "oci": re.compile(r"https://(?:docker\.io|ghcr\.io|quay\.io)/?"),
    "nuget": re.compile(r"https://api\.nuget\.org(?:/v3/index\.json|/)?"),
}
"""The public index of each kind, from which its program takes packages by default."""


@dataclass(frozen=True, slots=True)
class NeededVariable:
    """A variable of the gateway's environment that the server gets."""

    name: str
    description: str
    is_required: bool
    is_secret: bool


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """A server of a registry as an entry of the configuration."""

    id: str
    source: str
    """How it is run: the kind of its package, or `remote`."""
    entry: dict[str, Any]
    digest: str
    needs: tuple[NeededVariable, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _EntryBuilder:
    """Collects the variables that the texts of one entry refer to."""

    id: str
    needs: dict[str, NeededVariable] = field(default_factory=dict[str, NeededVariable])

    def text_of(self, name: str, given: RegistryVariable) -> str | None:
        """Return the text of an input in the form of the configuration, or None to leave it out.

        `name` is the variable that holds the value of a user.
        """
        if given.value is not None:
            return self.fill(given.value, given.variables)
        if given.default is not None and not given.is_secret:
            return plain_text(given.default)
        if not given.is_required and not given.is_secret:
            return None
        return self._reference(name, given)

    def fill(self, text: str, variables: Mapping[str, RegistryInput]) -> str:
        """Return a text with its `{variables}` replaced."""
        literals, references = [""], list[str]()
        end = 0
        for found in _BRACED.finditer(text):
            given = variables.get(found[1])
            if given is None:
                continue
            literals[-1] += text[end : found.start()]
            end = found.end()
            value = _value_of(given)
            if value is None:
                references.append(self._reference(self.own_name(found[1]), given))
                literals.append("")
            else:
                literals[-1] += value
        literals[-1] += text[end:]
        return _template(literals, references)

    def own_name(self, name: str) -> str:
        """Return a variable for this server alone. No other secret can have its name."""
        # An id such as `aws` would otherwise make the name of a variable that many machines have.
        words = f"{_upper_words(self.id)}__{_upper_words(name)}"
        return words if words[:1].isalpha() else f"SERVER_{words}"

    def _reference(self, name: str, given: RegistryInput) -> str:
        self.needs[name] = NeededVariable(
            name, given.description, given.is_required, given.is_secret
        )
        return f"${{{name}}}" if given.is_required else f"${{{name}:-}}"


def _upper_words(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()


def _value_of(given: RegistryInput) -> str | None:
    """Return the text that the registry gives to a variable, or None if the user gives it."""
    if given.value is not None:
        return given.value
    return None if given.is_secret else given.default


def _template(literals: list[str], references: list[str]) -> str:
    """Return a text for the configuration: literal texts with a reference between each two.

    Raises Misconfigured if the configuration would not read exactly this.
    """
    # Each literal is escaped as a whole. Parts of it, escaped alone, could join to a `${`.
    text = plain_text(literals[0])
    expected = literals[0]
    for reference, literal in zip(references, literals[1:], strict=True):
        text += reference + plain_text(literal)
        # No literal has a NUL, so it marks where the value of a variable begins.
        expected += f"\0{references_in(reference)[0]}" + literal
    names = [name for reference in references for name in references_in(reference)]
    values = {name: f"\0{name}" for name in names}
    if references_in(text) != names or expand_variables(text, values) != expected:
        raise Misconfigured("it has a value with a $ that the configuration cannot write")
    return text


def plain_text(text: str) -> str:
    """Return a text of the registry so that the configuration reads exactly it.

    Raises Misconfigured for control characters, which no value needs.
    """
    if _CONTROL.search(text):
        raise Misconfigured("it has a value with control characters")
    return text.replace("${", "$${")


def plan_server(
    server: RegistryServer,
    *,
    id: str = "",
    source: str = "",
    with_runtime_arguments: bool = False,
    variables: Collection[str] = (),
) -> ServerPlan:
    """Return the entry for a server: its first usable package, or else its first remote endpoint.

    `source` chooses one kind. `variables` are those that the entry may set to a text of its own,
    beside those with the name of the package. Raises Misconfigured with the reason of each package
    and endpoint that is not usable.
    """
    id = id or derived_id(server.name.rpartition("/")[2])
    problems: list[str] = []
    for package in server.packages:
        if source in ("", package.registry_type):
            try:
                return _checked_plan(_plan_package(id, package, with_runtime_arguments, variables))
            except Misconfigured as problem:
                problems.append(f"{package.registry_type:.20}: {problem}")
    for remote in server.remotes if source in ("", REMOTE) else ():
        try:
            return _checked_plan(_plan_remote(id, remote))
        except Misconfigured as problem:
            problems.append(f"{REMOTE}: {problem}")
    told = "; ".join(problems) or f"it has no {source or 'package and no remote endpoint'}"
    raise Misconfigured(f"{server.name} {server.version} cannot be added: {told}")


def _checked_plan(plan: ServerPlan) -> ServerPlan:
    """Return the plan. Raises Misconfigured if its entry refers to more than the user is shown."""
    found = {name for text in _texts_in(plan.entry) for name in references_in(text)}
    if found != {each.name for each in plan.needs}:
        raise Misconfigured("it refers to variables that it does not name")
    return plan


def _texts_in(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in cast("dict[str, object]", value).values():
            yield from _texts_in(each)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _texts_in(each)


def _plan_remote(id: str, remote: RegistryTransport) -> ServerPlan:
    if remote.type not in _REMOTE_TRANSPORTS:
        raise Misconfigured(f"its transport {remote.type!r:.40} is unknown")
    builder = _EntryBuilder(id)
    # A variable in the URL could move the server to another host.
    url = _BRACED.sub(lambda found: _fixed_value(found, remote.variables), remote.url)
    problem, _ = url_problem(url, frozenset())
    if problem is not None:
        raise Misconfigured(problem)
    if not url.startswith("https:"):
        raise Misconfigured("its url is not https")
    entry: dict[str, Any] = {"url": plain_text(url)}
    if _REMOTE_TRANSPORTS[remote.type]:
        entry["transport"] = _REMOTE_TRANSPORTS[remote.type]
    headers = _texts(builder, remote.headers, _HEADER_NAME, builder.own_name)
    if headers:
        entry["headers"] = headers
    return ServerPlan(id, REMOTE, entry, "", tuple(builder.needs.values()))


def _fixed_value(found: re.Match[str], variables: Mapping[str, RegistryInput]) -> str:
    given = variables.get(found[1])
    value = None if given is None else given.value or given.default
    if value is None:
        raise Misconfigured(f"its url needs a value for {found[1]}; write this server yourself")
    return value


def _plan_package(
    id: str,
    package: RegistryPackage,
    with_runtime_arguments: bool,
    variables: Collection[str],
) -> ServerPlan:
    kind = package.registry_type
    if kind == "mcpb":
        raise Misconfigured("Comity does not run MCPB bundles")
    if kind not in _BASE_URLS:
        raise Misconfigured("this kind of package is unknown")
    if package.transport.type != "stdio":
        raise Misconfigured("it starts an HTTP server; run it and add its url yourself")
    if package.registry_base_url and not _BASE_URLS[kind].fullmatch(package.registry_base_url):
        raise Misconfigured(f"it comes from {package.registry_base_url!r:.200}")
    builder = _EntryBuilder(id)
    runtime = _words(builder, _extra_arguments(package))
    if runtime and not with_runtime_arguments:
        raise Misconfigured(
            f"it gives arguments to the program that runs it ({' '.join(runtime):.300}); "
            "allow them with --allow-runtime-arguments"
        )
    env = _texts(builder, package.environment_variables, _VARIABLE_NAME, str)
    for name in env:
        if _RUNNER_VARIABLES.fullmatch(name):
            raise Misconfigured(f"it sets {name}, which changes the program that runs it")
    _check_own_texts(package, env, variables)
    line, digest, notes = _COMMANDS[kind](package, runtime, tuple(env))
    args = [*line[1:], *_words(builder, package.package_arguments)]
    if sum(map(len, args)) > MAX_ARGUMENT_BYTES:
        raise Misconfigured("its command line is too long")
    entry: dict[str, Any] = {"command": line[0], "args": args}
    if env:
        entry["env"] = env
    return ServerPlan(id, kind, entry, digest, tuple(builder.needs.values()), notes)


def _check_own_texts(
    package: RegistryPackage, env: Mapping[str, str], allowed: Collection[str]
) -> None:
    """Raise Misconfigured if the entry gives a text of its own to a variable of other programs."""
    own = _upper_words(re.split(r"[:@]", package.identifier.rpartition("/")[2])[0])
    other = {
        name: text
        for name, text in env.items()
        if not (name.upper().startswith(f"{own}_") or name in allowed)
        and not _LONE_REFERENCE.fullmatch(text)
    }
    if other:
        texts = ", ".join(f"{name} = {text!r:.200}" for name, text in other.items())
        options = " ".join(f"--allow-variable {name}" for name in other)
        raise Misconfigured(
            f"it sets variables that other programs could read ({texts}); allow them with {options}"
        )


def _extra_arguments(package: RegistryPackage) -> list[RegistryArgument]:
    """Return the arguments of the runtime without those that Comity passes anyway."""
    return [
        each
        for each in package.runtime_arguments
        if (each.name or each.value) not in _YES_FLAGS or (each.name and each.value)
    ]


def _texts(
    builder: _EntryBuilder,
    given: Iterable[RegistryVariable],
    names: re.Pattern[str],
    variable_of: Callable[[str], str],
) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given:
        if not names.fullmatch(each.name):
            raise Misconfigured(f"it has a variable or header with the name {each.name!r:.60}")
        text = builder.text_of(variable_of(each.name), each)
        if text is not None:
            found[each.name] = text
    return found


def _words(builder: _EntryBuilder, arguments: Iterable[RegistryArgument]) -> list[str]:
    words: list[str] = []
    for each in arguments:
        if each.type == "positional":
            text = builder.text_of(builder.own_name(each.value_hint or "argument"), each)
            words += [] if text is None else [text]
            continue
        if not _FLAG.fullmatch(each.name):
            raise Misconfigured(f"it has an argument with the name {each.name!r:.60}")
        text = builder.text_of(builder.own_name(each.name), each)
        if text is None:
            continue
        if text == "":
            words.append(each.name)
        elif each.name.startswith("--"):
            words.append(f"{each.name}={text}")
        else:
            words += [each.name, text]
    return words


type _CommandLine = tuple[list[str], str, tuple[str, ...]]


def _npm_command(
    package: RegistryPackage, runtime: list[str], env: tuple[str, ...]
) -> _CommandLine:
    pinned = f"{_checked(package.identifier, _NPM_NAME)}@{_pinned_version(package)}"
    return ["npx", "-y", *runtime, pinned], _digest(package), _unchecked_note(package, "npx")


def _pypi_command(
    package: RegistryPackage, runtime: list[str], env: tuple[str, ...]
) -> _CommandLine:
    pinned = f"{_checked(package.identifier, _PLAIN_NAME)}=={_pinned_version(package)}"
    return ["uvx", *runtime, pinned], _digest(package), _unchecked_note(package, "uvx")


def _nuget_command(
    package: RegistryPackage, runtime: list[str], env: tuple[str, ...]
) -> _CommandLine:
    pinned = f"{_checked(package.identifier, _PLAIN_NAME)}@{_pinned_version(package)}"
    line = ["dnx", *runtime, pinned, "--yes", "--"]
    return line, _digest(package), _unchecked_note(package, "dnx")


def _oci_command(
    package: RegistryPackage, runtime: list[str], env: tuple[str, ...]
) -> _CommandLine:
    found = _IMAGE.fullmatch(package.identifier)
    if found is None:
        raise Misconfigured(f"its image {package.identifier!r:.200} is no whole image name")
    image, tag, digest = package.identifier, found[1], found[2] or ""
    if not tag and not digest:
        image = f"{image}:{_pinned_version(package)}"
    program = "podman" if package.runtime_hint == "podman" else "docker"
    variables = [word for name in env for word in ("-e", name)]
    notes = () if digest else ("the image has no digest, so its owner can replace it",)
    return [program, "run", "-i", "--rm", *variables, *runtime, image], digest, notes


_COMMANDS: Final = {
    "npm": _npm_command,
    "pypi": _pypi_command,
    "nuget": _nuget_command,
    "oci": _oci_command,
}


def _checked(identifier: str, names: re.Pattern[str]) -> str:
    if len(identifier) > 214 or not names.fullmatch(identifier):
        raise Misconfigured(f"its package {identifier!r:.200} is no name of a package")
    return identifier


def _pinned_version(package: RegistryPackage) -> str:
    if not _VERSION.fullmatch(package.version) or package.version == "latest":
        raise Misconfigured(f"its version {package.version!r:.60} is no single version")
    return package.version


def _digest(package: RegistryPackage) -> str:
    return f"sha256:{package.file_sha256}" if package.file_sha256 else ""


def _unchecked_note(package: RegistryPackage, runner: str) -> tuple[str, ...]:
    return (
        (f"the digest is only shown: {runner} does not compare it",) if package.file_sha256 else ()
    )
