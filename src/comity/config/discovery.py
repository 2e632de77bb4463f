"""Which files are read when none is named, and what was found in them. (MGP §15.2, D-29)"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comity.config.reading import Reading, Shape, read, settled, shape_of
from comity.config.settings import Settings
from comity.rules.config_files import MGP_USER, MGP_VARIABLE, OWN, choices
from comity.wire.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Taken:
    """One file that was read, and the ids of the servers that are from it."""

    path: Path
    servers: tuple[str, ...]
    # Servers of the same id stood in a file that comes first.
    overshadowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = len(self.servers)
        told = f"{count} server{'' if count == 1 else 's'} from {self.path}"
        if self.overshadowed:
            told += f" (not {', '.join(self.overshadowed)}: in an earlier file too)"
        return told


@dataclass(frozen=True, slots=True)
class Found:
    """The configuration, the files that it is from, and those that were passed over for them."""

    settings: Settings
    taken: tuple[Taken, ...]
    passed_over: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(each.path for each in self.taken)

    def told(self) -> list[str]:
        """The same in sentences, one for each line."""
        lines = [str(each) for each in self.taken]
        first = self.files[0] if self.files else ""
        return lines + [f"passed over {path}, as {first} comes first" for path in self.passed_over]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the configuration is from, so that it can be read again when it has changed."""

    cwd: Path
    home: Path
    environ: Mapping[str, str] = field(repr=False)
    named: Path | None = None
    # What was said on the command line stands over every file.
    over: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def watched(self) -> tuple[Path, ...]:
        """Every file that would change the answer if it came, went or became another."""
        return tuple(path for choice in self._choices for path in choice)

    def find(self) -> Found:
        """Read the file that was named; or else the first that is there, and MGP's files last."""
        there = self._there()
        if not there:
            names = ", ".join(str(path) for path in self.watched)
            raise Misconfigured(
                f"there is no configuration; looked for {names}; "
                "write one of them with `comity init`, or name another file"
            )
        readings = [read(path, self.environ, self._shape(path)) for path in there[0]]
        settings = replace(settled(readings, self.environ), **self.over)
        passed_over = tuple(path for choice in there[1:] for path in choice)
        return Found(settings, _taken(there[0], readings), passed_over)

    @property
    def _choices(self) -> tuple[tuple[Path, ...], ...]:
        """What is looked for, in this order; the files of one choice are read together."""
        if self.named is not None:
            return ((self.named,),)
        named = choices(self.environ.get(MGP_VARIABLE))
        return tuple(tuple(self._place(name) for name in choice) for choice in named)

    def _place(self, name: str) -> Path:
        return (self.home if name == MGP_USER else self.cwd) / name

    def _there(self) -> list[tuple[Path, ...]]:
        there = [tuple(filter(_is_there, choice)) for choice in self._choices]
        found = [choice for choice in there if choice]
        must_be = self.named is not None or bool(self.environ.get(MGP_VARIABLE))
        # A file that somebody asked for by name is read even if it is not there: that says so.
        return found or ([self._choices[-1]] if must_be else [])

    def _shape(self, path: Path) -> Shape:
        shape = shape_of(path)
        is_mgp = self.named is None and path.name != OWN
        return "mgp" if shape == "comity" and is_mgp else shape


def find(cwd: Path, home: Path, environ: Mapping[str, str], named: Path | None = None) -> Found:
    return Source(cwd, home, environ, named).find()


def _is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _taken(paths: tuple[Path, ...], readings: list[Reading]) -> tuple[Taken, ...]:
    taken: list[Taken] = []
    seen: set[str] = set()
    for path, reading in zip(paths, readings, strict=True):
        ids = [server.id for server in reading.servers]
        fresh = tuple(each for each in ids if each.casefold() not in seen)
        seen |= {each.casefold() for each in ids}
        taken.append(Taken(path, fresh, tuple(each for each in ids if each not in fresh)))
    return tuple(taken)
