"""Finds and reads the configuration files, and compares two versions of the settings."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal

from comity.app.server_entries import ID_RULE, SERVER_KEYS, EntryReader
from comity.app.settings import TABLES, ServerSettings, Settings, replace_settings
from comity.cluster.settings import CLUSTER_URL
from comity.config.document import ConfigError, ConfigErrors, ConfigValue, nearest_name
from comity.config.environment import (
    read_setting,
    read_variable,
    unknown_variables,
    variable_of,
)
from comity.config.fields import fields_of
from comity.config.files import (
    MGP_VARIABLE,
    OWN,
    STATE_VARIABLE,
    config_file_choices,
    config_id,
    existing_choices,
    state_folder,
)
from comity.config.loader import parse_config_file
from comity.config.secret_files import FILE_SUFFIX, FileVariables
from comity.config.trust import content_digest, is_whole, require_trust
from comity.errors import Misconfigured
from comity.inference.settings import InferenceSettings, missing_models, with_variables
from comity.mcp.protocol import derived_id, is_id
from comity.secrets.settings import SOURCES, SecretSettings
from comity.servers.packages.lock_file import lock_path, parse_lock, read_lock_bytes
from comity.servers.packages.model import NOT_LOCKED, LockedServer
from comity.storage.settings import MEMORY, STORE_URL
from comity.storage.stores import SQLITE

type Shape = Literal["clients", "comity", "mgp"]
"""The format of a file: an MCP client's, Comity's, or the one that MGP programs share."""

type DigestCheck = Callable[[Path, str], None]
"""Raises Misconfigured for a file whose content no person approved."""

NEEDS_SERVERS: Final = 'needs your servers once, in {"mcpServers": {...}}'


@dataclass(frozen=True, slots=True)
class ConfigFileContents:
    """The settings of one file as far as they could be parsed, and the errors in it."""

    servers: tuple[ServerSettings, ...] = ()
    # By table; "" is above the first one.
    settings_by_table: Mapping[str, dict[str, Any]] = field(
        default_factory=dict[str, dict[str, Any]]
    )
    errors: tuple[ConfigError, ...] = ()
    secrets: "ConfigSecrets | None" = field(default=None, repr=False)
    content: bytes = field(default=b"", repr=False)


class ConfigSecrets:
    """Reads each `${secret:NAME}` once, from the sources that the configuration names."""

    def __init__(self, sources: Sequence[str], environ: Mapping[str, str]) -> None:
        self._sources = sources
        self._environ = environ
        self._found: dict[str, str | None] = {}

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(filter(None, self._found.values()))

    def read(self, name: str) -> str | None:
        """Return a secret, or None if no source has it. Raises Misconfigured."""
        if name not in self._found:
            # Imported here because most configurations name no secret, and every command is faster
            # without the HTTP client.
            from comity.secrets.backends import read_secret_blocking

            self._found[name] = read_secret_blocking(name, self._sources, self._environ)
        return self._found[name]


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Read `comity.toml`, `mgp.toml`, or JSON with `mcpServers`, then apply the environment.

    Where no store is named, the settings have a temporary one.
    """
    settings = resolve_settings([read_config_file(path, environ)], environ)
    url = settings.store.url
    return replace_settings(settings, {"store.url": "" if url == MEMORY else url})


def file_format_of(path: Path) -> Shape:
    if path.suffix.lower() != ".toml":
        return "clients"
    is_mgp = path.name == "mgp.toml" or path.parts[-2:] == ("mgp", "servers.toml")
    return "mgp" if is_mgp else "comity"


def read_config_file(
    path: Path,
    environ: Mapping[str, str],
    file_format: Shape | None = None,
    check_digest: DigestCheck | None = None,
) -> ConfigFileContents:
    """Read one file to its end and collect all errors in it."""
    mistakes = ConfigErrors()
    file = mistakes.read(lambda: parse_config_file(path, check_digest), None)
    if file is None:
        return ConfigFileContents(errors=tuple(mistakes.found))
    file_format = file_format or file_format_of(path)
    secrets = _config_secrets(file.document, environ, is_comity=file_format == "comity")
    variables = FileVariables(environ, secrets.read)
    reader = EntryReader(variables, mistakes, is_mgp_file=file_format == "mgp")
    decided: dict[str, dict[str, Any]] = {}
    if not file.is_toml:
        servers = _from_json(file.document, reader)
    else:
        servers = _from_toml(file.document, reader, is_strict=file_format == "comity")
        if file_format == "comity":
            decided = _read_tables(file.document, mistakes)
    if mistakes.found:
        positions = file.positions()
        lined = [
            each if each.line else replace(each, line=positions.line_of(each.place))
            for each in dict.fromkeys(mistakes.found)
        ]
        return ConfigFileContents(errors=tuple(sorted(lined, key=lambda each: each.line or 0)))
    return ConfigFileContents(tuple(servers), decided, secrets=secrets, content=file.content)


def _config_secrets(
    document: ConfigValue, environ: Mapping[str, str], *, is_comity: bool
) -> ConfigSecrets:
    """Return the reader of secrets. `sources` in [secrets] is read before all other settings.

    A mistake in it is found again, and told, when the whole table is read.
    """
    mistakes, found = ConfigErrors(), dict[str, Any]()

    def read_sources() -> Any:
        table = document.table().get("secrets") if is_comity else None
        written = None if table is None else table.table().get("sources")
        return None if written is None else SOURCES.read(written)

    found["sources"] = mistakes.read(read_sources, None)
    _apply_variable(_SOURCES_VARIABLE, {"secrets": found}, environ, mistakes)
    sources = found["sources"]
    return ConfigSecrets(SecretSettings().sources if sources is None else sources, environ)


def resolve_settings(
    readings: Sequence[ConfigFileContents], environ: Mapping[str, str]
) -> Settings:
    """Merge files into one set of settings. The first server of an id and COMITY_* win."""
    mistakes = ConfigErrors([mistake for each in readings for mistake in each.errors])
    servers: dict[str, ServerSettings] = {}
    for server in (server for reading in readings for server in reading.servers):
        servers.setdefault(server.id.casefold(), server)
    # Only comity.toml has tables, and it is never merged with another file.
    decided = {name: dict(readings[0].settings_by_table.get(name, {})) for name in TABLES}
    secrets = [each.secrets for each in readings if each.secrets is not None]
    variables = FileVariables(environ, secrets[0].read) if secrets else FileVariables(environ)
    _apply_environment(decided, environ, variables, mistakes)
    if mistakes.found:
        # The exception carries the list of errors, for callers that want no text.
        raise Misconfigured(mistakes)
    top = decided.pop("")
    tables = {name: TABLES[name](**said) for name, said in decided.items()}
    values = tuple(value for each in secrets for value in each.values)
    return Settings(servers=tuple(servers.values()), **top, **tables, secret_values=values)


VARIABLES: Final[Mapping[str, tuple[str, str]]] = {
    variable_of(table, key): (table, key)
    for table, table_class in TABLES.items()
    for key in fields_of(table_class)
}
"""The variable of each setting. It wins over the files."""

_SOURCES_VARIABLE: Final = variable_of("secrets", "sources")

COMMON_VARIABLES: Final[Mapping[str, tuple[str, str]]] = {
    "HOST": ("", "host"),
    "PORT": ("", "port"),
    "DATABASE_URL": ("store", "url"),
    "NATS_URL": ("cluster", "url"),
}
"""Variables that many programs share. They count only for settings that no file has.

A file says what holds for Comity, and these variables may be meant for another program.
"""


def _apply_environment(
    settings_by_table: Mapping[str, dict[str, Any]],
    environ: Mapping[str, str],
    variables: FileVariables,
    errors: ConfigErrors,
) -> None:
    """Apply the environment over the values of the files, and substitute variables."""
    named = [name for name in VARIABLES if name in environ or name + FILE_SUFFIX in environ]
    common = [
        name
        for name, (table, key) in COMMON_VARIABLES.items()
        if settings_by_table[table].get(key) in (None, "")
    ]
    # The variables of Comity come last, so that they win.
    applied = {
        VARIABLES.get(name) or COMMON_VARIABLES[name]
        for name in (*common, *named)
        if _apply_variable(name, settings_by_table, environ, errors)
    }
    errors.add(*unknown_variables(environ, (*VARIABLES, STATE_VARIABLE), TABLES))
    for table, url in (("store", STORE_URL), ("cluster", CLUSTER_URL)):
        if (table, "url") not in applied:
            settings_by_table[table]["url"] = url.resolve(
                settings_by_table[table].get("url") or "", variables, errors
            )
    top = settings_by_table[""]
    top["models"] = with_variables(top.get("models") or (), variables, errors)
    for key, name in missing_models(
        top["models"], InferenceSettings(**settings_by_table["inference"])
    ):
        there = ConfigValue(None, "[inference]", (key,))
        errors.add(there.wrong(f"there is no model {name!r} in [[models]]"))


def _apply_variable(
    name: str,
    settings_by_table: Mapping[str, dict[str, Any]],
    environ: Mapping[str, str],
    errors: ConfigErrors,
) -> bool:
    """Apply one variable, and return whether it is set."""
    table, key = VARIABLES.get(name) or COMMON_VARIABLES[name]
    written = errors.read(lambda: read_variable(name, environ), None)
    # Shells export HOST as the name of the machine, and compilers as the name of a platform.
    if written is None or (name == "HOST" and not _is_address(written.text())):
        return False
    kind = fields_of(TABLES[table])[key].kind
    settings_by_table[table][key] = errors.read(lambda: read_setting(written, kind), None)
    return True


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return text == "localhost"
    return True


def _from_json(document: ConfigValue, reader: EntryReader) -> list[ServerSettings]:
    if not isinstance(document.value, dict):
        reader.errors.add(document.wrong(NEEDS_SERVERS))
        return []
    top = document.table()
    present = [key for key in ("mcpServers", "servers") if key in top]
    if len(present) != 1:
        meant = next(
            (each for key, each in top.items() if nearest_name(key, ("mcpServers",))), None
        )
        if meant and not present:
            reader.errors.add(meant.unknown_among(("mcpServers",)))
        else:
            reader.errors.add(document.wrong(NEEDS_SERVERS))
        return []
    entries = reader.errors.read(top[present[0]].table, {})
    found = [
        (reader.read_server(derived_id(name), name, entry), entry)
        for name, entry in entries.items()
    ]
    return _without_collisions(found, reader.errors)


def _read_tables(document: ConfigValue, errors: ConfigErrors) -> dict[str, dict[str, Any]]:
    """Return the settings of the gateway itself, by table."""
    decided: dict[str, dict[str, Any]] = {}
    top = document.table()
    for name, table_class in TABLES.items():
        table = top.get(name) if name else document
        if table is None or errors.read(table.table, None) is None:
            continue
        here = fields_of(table_class)
        errors.add(*table.unknown_keys({*here, *(() if name else (*TABLES, "servers", "$schema"))}))
        decided[name] = {
            key: errors.read(lambda kind=here[key].kind, it=written: kind.read(it), None)
            for key, written in table.table().items()
            if key in here
        }
    return decided


def _from_toml(
    document: ConfigValue, reader: EntryReader, *, is_strict: bool
) -> list[ServerSettings]:
    top = document.table()
    if "servers" in top:
        entries = reader.errors.read(top["servers"].items, [])
        found = [_entry(entry, reader, is_strict=is_strict) for entry in entries]
        return _without_collisions(found, reader.errors)
    if not is_strict:
        meant = next(
            (each for key, each in top.items() if nearest_name(key, ("servers",))), document
        )
        reader.errors.add(meant.wrong("there are no servers here; write each in [[servers]]"))
    return []


def _entry(
    entry: ConfigValue, reader: EntryReader, *, is_strict: bool
) -> tuple[ServerSettings | None, ConfigValue]:
    if reader.errors.read(entry.table, None) is None:
        return None, entry
    server_id = reader.errors.read(lambda: _id(entry), "")
    known = entry.with_name(f"servers[{server_id}]") if server_id else entry
    if is_strict:
        reader.errors.add(*known.unknown_keys(SERVER_KEYS))
    return reader.read_server(server_id, server_id, known), known


def _id(entry: ConfigValue) -> str:
    named = entry.table().get("id")
    if named is None:
        raise entry.wrong('needs an id, as id = "search"')
    if not is_id(named.text()):
        raise named.wrong(ID_RULE)
    return named.text()


def _without_collisions(
    found: Sequence[tuple[ServerSettings | None, ConfigValue]], errors: ConfigErrors
) -> list[ServerSettings]:
    seen: dict[str, ServerSettings] = {}
    for server, entry in found:
        if server is None or not server.id:
            continue
        # Compared without case: `Files` beside `files` would confuse readers of a tool's name.
        other = seen.setdefault(server.id.casefold(), server)
        if other is not server:
            both = f"servers {other.label!r} and {server.label!r}"
            errors.add(entry.wrong(f"{both} would share the id {server.id!r}; rename one"))
    return list(seen.values())


@dataclass(frozen=True, slots=True)
class LoadedConfigFile:
    """One file that was read, and the ids of its servers."""

    path: Path
    servers: tuple[str, ...]
    # Ids that a file of higher priority already defines.
    shadowed_servers: tuple[str, ...] = ()
    content: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        count = len(self.servers)
        told = f"{count} server{'' if count == 1 else 's'} from {self.path}"
        if self.shadowed_servers:
            told += f" (not {', '.join(self.shadowed_servers)}: in an earlier file too)"
        return told


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The settings, the files they come from, and the files that were skipped."""

    settings: Settings
    loaded_files: tuple[LoadedConfigFile, ...]
    skipped_files: tuple[Path, ...] = ()
    # The servers of the lock file whose content was checked; None without a lock file.
    locked: Mapping[str, LockedServer] | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(each.path for each in self.loaded_files)

    @property
    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of the content of each file, by its absolute path."""
        return {
            str(each.path.absolute()): content_digest(each.content) for each in self.loaded_files
        }

    def describe(self) -> list[str]:
        """Return the same as sentences, one per line."""
        lines = [str(each) for each in self.loaded_files]
        first = self.files[0] if self.files else ""
        return lines + [
            f"skipped {path}, because {first} has priority" for path in self.skipped_files
        ]


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The origin of the configuration, so that Comity can read it again after a change."""

    cwd: Path
    home: Path
    environ: Mapping[str, str] = field(repr=False)
    config_path: Path | None = None
    # Options of the command line, by the full names of settings. They override every file.
    overrides: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # Whether a file of the current folder counts only after a person approved its content.
    needs_trust: bool = field(kw_only=True)

    @property
    def watched_paths(self) -> tuple[Path, ...]:
        """Return every file whose creation, deletion or change would change the result."""
        return tuple(dict.fromkeys(path for choice in self._candidates for path in choice))

    @property
    def existing_paths(self) -> tuple[Path, ...]:
        """Return the files that `load` reads. There are none without a configuration."""
        there = self._existing_choices
        return there[0] if there else ()

    @property
    def _existing_choices(self) -> list[tuple[Path, ...]]:
        return existing_choices(self._candidates, self.config_path or self._override)

    def required_paths(self) -> tuple[Path, ...]:
        """Return the files that `load` reads. Raises Misconfigured if there are none."""
        return self._required_choices()[0]

    def _required_choices(self) -> list[tuple[Path, ...]]:
        there = self._existing_choices
        if not there:
            names = ", ".join(str(path) for path in self.watched_paths)
            raise Misconfigured(
                f"there is no configuration; looked for {names}; "
                "write one of them with `comity init`, or name another file"
            )
        return there

    def load(self) -> LoadedConfig:
        """Read the named file, or else the files of the first candidate that exists."""
        there = self._required_choices()
        readings = [
            read_config_file(path, self.environ, self._file_format(path), self._check_of(path))
            for path in there[0]
        ]
        settings = resolve_settings(readings, self.environ)
        # The bus that a supervisor gives to its workers does not make them nodes of many machines.
        is_cluster = bool(settings.cluster.url)
        settings = replace_settings(settings, self.overrides)
        store = self._store_url(settings.store.url, there[0][0], is_cluster=is_cluster)
        settings = replace_settings(settings, {"store.url": store})
        locked = _read_lock(there[0][0], self._check_of(there[0][0]))
        if locked is not None:
            servers = [replace(s, lock=locked.get(s.id, NOT_LOCKED)) for s in settings.servers]
            settings = replace(settings, servers=tuple(servers))
        settings = replace(settings, config_files=self._deciding_files(there[0]))
        later = dict.fromkeys(path for choice in there[1:] for path in choice)
        skipped_files = tuple(path for path in later if path not in there[0])
        return LoadedConfig(settings, _loaded_files(there[0], readings), skipped_files, locked)

    @property
    def project_files(self) -> tuple[Path, ...]:
        """Return the files that `load` reads because they are in the current folder."""
        there = [path for path in self.existing_paths if self._is_of_project(path)]
        locks = [lock_path(path) for path in there[:1]]
        return (*there, *(path for path in locks if path.exists()))

    def _is_of_project(self, path: Path) -> bool:
        return self.config_path is None and path != self._override and path.parent == self.cwd

    def _check_of(self, path: Path) -> DigestCheck | None:
        return require_trust if self.needs_trust and self._is_of_project(path) else None

    def _deciding_files(self, loaded: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the loaded files with their lock, and others that count as soon as they exist.

        A new file in the current folder does not count before a person approved it.
        """
        others = [path for path in self.watched_paths if not self._is_of_project(path)]
        return tuple(dict.fromkeys((*loaded, lock_path(loaded[0]), *others)))

    def _store_url(self, url: str, config: Path, *, is_cluster: bool) -> str:
        """Return the store that the settings name, or the default one of this configuration.

        Each configuration has its own default store, because records name servers by their ids.
        Nodes of a cluster have none: a file of one machine is not the store that they share.
        """
        if url == MEMORY:
            return ""
        if url or is_cluster:
            return url
        return f"{SQLITE}{state_folder(self.environ) / 'stores' / config_id(config)}.db"

    @property
    def _candidates(self) -> tuple[tuple[Path, ...], ...]:
        """Return the candidates in order. Comity reads the files of one candidate together."""
        if self.config_path is not None:
            return ((self.config_path,),)
        return config_file_choices(self.cwd, self.home, self.environ)

    @property
    def _override(self) -> Path | None:
        name = self.environ.get(MGP_VARIABLE)
        return self.cwd / name if name else None

    def _file_format(self, path: Path) -> Shape:
        shape = file_format_of(path)
        is_mgp = self.config_path is None and path.name != OWN
        return "mgp" if shape == "comity" and is_mgp else shape


def _read_lock(config: Path, check_digest: DigestCheck | None) -> dict[str, LockedServer] | None:
    data = read_lock_bytes(config)
    if data is None:
        return None
    if check_digest is not None:
        check_digest(lock_path(config), content_digest(data))
    return parse_lock(lock_path(config), data)


def find_config(
    cwd: Path, home: Path, environ: Mapping[str, str], config_path: Path | None = None
) -> LoadedConfig:
    return ConfigSource(cwd, home, environ, config_path, needs_trust=False).load()


def _loaded_files(
    paths: tuple[Path, ...], readings: list[ConfigFileContents]
) -> tuple[LoadedConfigFile, ...]:
    taken: list[LoadedConfigFile] = []
    seen: set[str] = set()
    for path, reading in zip(paths, readings, strict=True):
        ids = [server.id for server in reading.servers]
        fresh = tuple(each for each in ids if each.casefold() not in seen)
        seen |= {each.casefold() for each in ids}
        shadowed = tuple(each for each in ids if each not in fresh)
        taken.append(LoadedConfigFile(path, fresh, shadowed, reading.content))
    return tuple(taken)


def refuse_lost_end(old: LoadedConfig, new: LoadedConfig) -> None:
    """Raise Misconfigured if a file may have lost its end.

    A content that a person approved, or that a command of Comity wrote, is whole.
    The first half of a file is often a valid configuration, with fewer servers and fewer rules.
    """
    before = {file.path: file.content for file in old.loaded_files}
    changed = [file for file in new.loaded_files if before.get(file.path) != file.content]
    waiting = [file for file in changed if not is_whole(file.path, content_digest(file.content))]
    if not waiting:
        return
    for file in waiting:
        if _is_beginning(file.content.rstrip(), before.get(file.path)):
            raise _lost_end(file.path, "is only the beginning of the configuration in force")
    removed = compare_settings(old.settings, new.settings).removed
    if removed and _size(new) < _size(old):
        raise _lost_end(waiting[0].path, f"is shorter and lacks {', '.join(removed)}")


def _is_beginning(new: bytes, old: bytes | None) -> bool:
    if old is None:
        return not new
    return new != old.rstrip() and old.startswith(new)


def _lost_end(path: Path, problem: str) -> Misconfigured:
    return ConfigValue(None, str(path)).wrong(
        f"{problem}; if that is meant, run `comity config trust {shlex.quote(str(path))}`"
    )


def _size(loaded: LoadedConfig) -> int:
    return sum(len(file.content) for file in loaded.loaded_files)


@dataclass(frozen=True, slots=True)
class SettingsChanges:
    """Added, changed and removed servers, and the settings that only a restart can change.

    The servers in `decided` keep running; only settings that apply to a live server changed.
    """

    added: tuple[ServerSettings, ...] = ()
    changed: tuple[ServerSettings, ...] = ()
    removed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    policy_changed: tuple[ServerSettings, ...] = ()

    def __str__(self) -> str:
        told = {
            "added": [server.id for server in self.added],
            "changed": [server.id for server in self.changed],
            "removed": self.removed,
            "new policy for": [server.id for server in self.policy_changed],
        }
        parts = [f"{what} {', '.join(ids)}" for what, ids in told.items() if ids]
        return "; ".join(parts) or "no server changed"


def compare_settings(old: Settings, new: Settings) -> SettingsChanges:
    """Return the changes from `old` to `new`. A disabled server counts as absent."""
    before, after = _enabled(old), _enabled(new)
    other = [server for name, server in after.items() if before.get(name, server) != server]
    decided = [server for server in other if _keeps_running(before[server.id], server)]
    return SettingsChanges(
        added=tuple(server for name, server in after.items() if name not in before),
        changed=tuple(server for server in other if server not in decided),
        removed=tuple(name for name in before if name not in after),
        needs_restart=tuple(
            f"{name}.{each.name}" if name else each.name
            for name, table in TABLES.items()
            for each in fields_of(table).values()
            if not each.is_live and _value(old, name, each.name) != _value(new, name, each.name)
        ),
        policy_changed=tuple(decided),
    )


def _keeps_running(old: ServerSettings, new: ServerSettings) -> bool:
    """Return whether only its policy changed, or which of its tools are approved."""
    lock = new.lock
    if old.lock is not None and lock is not None and replace(old.lock, tools=lock.tools) != lock:
        return False
    is_locked_as_before = (old.lock is None) == (lock is None)
    return is_locked_as_before and replace(old, live=new.live, lock=lock) == new


def _value(settings: Settings, table: str, name: str) -> object:
    return getattr(getattr(settings, table) if table else settings, name)


def _enabled(settings: Settings) -> dict[str, ServerSettings]:
    return {server.id: server for server in settings.servers if not server.disabled}
