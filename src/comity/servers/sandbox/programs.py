"""The files that a program needs to run: itself, its interpreter and its libraries."""

import itertools
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import comity
from comity.errors import Unavailable
from comity.servers.sandbox.reach import follow_links, is_below, program_files_problem

SYSTEM_LIBRARIES: Final = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/share", "/usr/local/lib"),
    *("/usr/local/share", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ssl", "/etc/pki"),
    *("/etc/ca-certificates", "/etc/localtime", "/etc/timezone", "/etc/hosts"),
    *("/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
)
"""The places that every program may read. They hold no program that can be executed."""

SYSTEM_PROGRAMS: Final = ("/usr", "/bin", "/sbin", "/opt", "/etc/alternatives")
"""The programs that a server may execute with the permission `shell.execute`."""

SCRIPT_SUFFIXES: Final = (".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".jar")
# What an interpreter loads beside a script. Configuration, logs and keys have other names.
_CODE_SUFFIXES: Final = (
    *SCRIPT_SUFFIXES,
    *(".pyc", ".pyi", ".so", ".mts", ".cts", ".jsx", ".tsx", ".node", ".wasm", ".class", ".pm"),
)
_CODE_NAMES: Final = ("package.json", "py.typed")
_MAX_MODULES: Final = 1024
_MAX_SEARCHED: Final = 256
_LIBRARY_VARIABLES: Final = ("PYTHONPATH", "NODE_PATH", "RUBYLIB", "PERL5LIB")
_VERSION_MANAGERS: Final = ("pyenv", "rbenv", "nodenv", "asdf", "mise")
_SHIM_SECONDS: Final = 10.0
_MAX_HOPS: Final = 8
_HEAD_BYTES: Final = 4096
# The second line of a Python program whose path is too long for the first one, or relative to the
# program, as uv writes it. The latter calls two programs of the system, which a sandbox lacks.
_SHELL_LAUNCHER: Final = re.compile(
    r"""'{3}exec' (?:"\$\(dirname -- "\$\(realpath -- "\$0"\)"\)"/'([\w.+-]+)'"""
    r"""|["']?(/[^"']+?)["']?) "\$0" "\$@"$"""
)
_ELF, _PT_INTERP = b"\x7fELF", 3


@dataclass(slots=True)
class ProgramFiles:
    """The path to execute, and what this program reads and executes itself.

    `argv` is the command line, with its interpreter in the place of a launcher in shell. `links`
    maps symbolic links on the way to their targets, as they are written. `listed` are folders of
    modules: an interpreter looks for names there. `data` is a file that the command line names in
    a folder which the program may write to.
    """

    program: str
    argv: tuple[str, ...]
    readable: dict[str, None] = field(default_factory=dict[str, None])
    executable: dict[str, None] = field(default_factory=dict[str, None])
    links: dict[str, str] = field(default_factory=dict[str, str])
    listed: dict[str, None] = field(default_factory=dict[str, None])
    data: str = ""


def find_program_files(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    *,
    with_script: bool = True,
    writable: Collection[str] = (),
) -> ProgramFiles:
    """Return the files of a command line. Words below `writable` places are data.

    Raises Unavailable if there is no such program, or if its files are beside those of others.
    """
    path = environment.get("PATH", os.defpath)
    found = shutil.which(argv[0], path=path)
    if found is None:
        raise Unavailable(
            f"cannot start {argv[0]!r:.200}: there is no such program; check that it is installed "
            "and how it is spelt, or give its full path"
        )
    found = _behind_shim(Path(folder, found), environment, folder)
    files = _start_files(_with_real_folder(found), argv, path)
    words = (Path(folder, word) for word in argv[1:]) if with_script else ()
    script = next((word for word in words if _is_file(word)), None)
    # The server could put a link to a file of others in its place.
    if script is not None and _is_writable(str(script), writable):
        files.data = str(script)
    elif script is not None:
        _add_script(files, script)
    if with_script:
        _add_library_folders(files, argv, environment, Path(folder))
    _check_places(files, argv[0])
    return files


def add_programs(
    files: ProgramFiles, programs: Iterable[str], environment: Mapping[str, str]
) -> None:
    """Add other programs that a server may execute. Raise Unavailable as for its own."""
    for program in programs:
        _add_executable(files, program, environment.get("PATH", os.defpath), _MAX_HOPS)
        _check_places(files, program)


def _check_places(files: ProgramFiles, program: str) -> None:
    for place in (*files.readable, *files.executable, *files.listed):
        problem = program_files_problem(place)
        if problem is not None:
            raise Unavailable(f"cannot confine {program!r:.200}: {problem}")


def _start_files(program: Path, argv: Sequence[str], search_path: str) -> ProgramFiles:
    """Return the files of a program without those that its other words name."""
    launcher = program.resolve()
    python = _launched_by(launcher)
    if python is None:
        files = ProgramFiles(str(program), tuple(argv))
        _add_executable(files, files.program, search_path, _MAX_HOPS)
        return files
    files = ProgramFiles(str(python), (str(python), str(launcher), *argv[1:]))
    _add_executable(files, files.program, search_path, _MAX_HOPS)
    for place in (launcher, *_libraries_beside(launcher)):
        files.readable[str(place)] = None
    return files


def _launched_by(program: Path) -> Path | None:
    """Return the interpreter that a launcher in shell executes with itself; None for others."""
    try:
        with program.open("rb") as opened:
            first, second, *_ = (*os.fsdecode(opened.read(_HEAD_BYTES)).split("\n", 2), "")
    except OSError:
        return None
    launched = _SHELL_LAUNCHER.match(second) if first == "#!/bin/sh" else None
    if launched is None:
        return None
    interpreter = _with_real_folder(program.parent / (launched[1] or launched[2]))
    # A package may name any file there, such as a private key of the operator.
    return interpreter if interpreter.parent == program.parent and _is_file(interpreter) else None


def _is_writable(path: str, writable: Collection[str]) -> bool:
    return is_below(path, writable) or follow_links(path, writable)[1] is not None


def _behind_shim(program: Path, environment: Mapping[str, str], folder: str) -> Path:
    """Return the program that a shim of a version manager would run here."""
    if program.parent.name != "shims":
        return program
    path = os.pathsep.join((str(program.parent.parent / "bin"), environment.get("PATH", "")))
    manager = next((name for name in _VERSION_MANAGERS if name in str(program)), None)
    tool = manager and shutil.which(manager, path=path)
    if not tool:
        return program
    try:
        said = subprocess.run(
            (tool, "which", program.name),
            capture_output=True,
            timeout=_SHIM_SECONDS,
            check=True,
            cwd=folder,
            env=environment,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return program
    named = Path(said.stdout.strip())
    return named if named.is_absolute() and _is_file(named) else program


def _add_library_folders(
    files: ProgramFiles, argv: Sequence[str], environment: Mapping[str, str], folder: Path
) -> None:
    """Add the folders where an interpreter looks for modules."""
    named = [environment.get(name, "").split(os.pathsep) for name in _LIBRARY_VARIABLES]
    found = [folder / place for places in named for place in places if place]
    for module in argv[argv.index("-m") + 1 :][:1] if "-m" in argv else ():
        package = folder / module.partition(".")[0]
        own = [each for each in (package, package.with_suffix(".py")) if each.exists()]
        found += own
        if own and not _is_shared(folder):
            _add_modules(files, folder.resolve())
    for place in found:
        if not _is_shared(place.resolve()):
            files.readable[str(place.resolve())] = None


def _is_shared(folder: Path) -> bool:
    """Whether a folder holds more than one program, so that a script in it does not open it."""
    # A process may have no home folder at all.
    with suppress(RuntimeError):
        if Path.home().resolve().is_relative_to(folder):
            return True
    return folder in (Path("/"), Path("/tmp"))  # noqa: S108  # only compared


def data_words(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the words of a command that do not name parts of the program itself."""
    words = [word for word in argv[1:] if not word.endswith(SCRIPT_SUFFIXES)]
    return words + [each for name, each in environment.items() if name not in _LIBRARY_VARIABLES]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _add_executable(files: ProgramFiles, program: str, search_path: str, hops: int) -> None:
    """Add a program with its libraries, its loader, and the interpreter of its first line."""
    real = _follow_links(files, program)
    files.executable[str(real)] = None
    # A virtual environment is found by the name of its program, not by the file behind it.
    for each in {Path(program): None, real: None}:
        for place in _libraries_beside(each):
            files.readable[str(place)] = None
    for needed in _interpreters_of(real, search_path):
        if hops:
            _add_executable(files, needed, search_path, hops - 1)


def _follow_links(files: ProgramFiles, path: str) -> Path:
    here = _with_real_folder(Path(path))
    for _ in range(_MAX_HOPS):
        if not here.is_symlink():
            break
        target = str(here.readlink())
        files.links[str(here)] = target
        here = _with_real_folder(here.parent / target)
    return here.resolve()


def _with_real_folder(path: Path) -> Path:
    """Return a path whose folders are no symbolic links. The last part may be one."""
    return path.parent.resolve() / path.name


def _libraries_beside(program: Path) -> Iterable[Path]:
    """Yield the libraries of a program's installation: never a whole home directory."""
    modules = [parent for parent in program.parents if parent.name == "node_modules"]
    yield from modules[-1:]
    prefix = program.parent.parent
    if program.parent.name != "bin" or str(prefix) in ("/", "/usr", "/usr/local"):
        return
    marker = prefix / "pyvenv.cfg"
    if _is_file(marker):
        yield prefix
        yield from _base_of_environment(marker)
        # Comity itself may be installed from its source folder. The path files of an environment
        # are not read: a package can put any folder into them.
        if prefix == Path(sys.prefix).resolve():
            yield Path(comity.__file__).resolve().parents[1]
    for name in ("lib", "lib64", "libexec"):
        if (prefix / name).is_dir():
            yield prefix / name


def _base_of_environment(marker: Path) -> Iterable[Path]:
    """Yield the libraries of the Python that a virtual environment is based on."""
    for line in marker.read_text("utf-8", errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            yield from (place for place in (Path(value.strip()).parent / "lib",) if place.is_dir())


def _interpreters_of(program: Path, search_path: str) -> Iterable[str]:
    try:
        with program.open("rb") as opened:
            beginning = opened.read(_HEAD_BYTES)
            if beginning[:4] == _ELF:
                yield from _loader_of(beginning)
                return
    except OSError:
        return
    if beginning[:2] != b"#!":
        return
    words = os.fsdecode(beginning[2:]).split("\n", 1)[0].split()
    yield from (word for word in words[:1] if _may_interpret(word, program))
    if words and Path(words[0]).name == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        found = shutil.which(named[0], path=search_path) if named else None
        if found is not None:
            yield found


def _may_interpret(named: str, program: Path) -> bool:
    """Whether a first line opens a file: one of the system or of this program, or an ELF file."""
    real = Path(named).resolve()
    own = (str(program.parent),) if program.parent.name == "bin" else ()
    if is_below(str(real), (*SYSTEM_PROGRAMS, *SYSTEM_LIBRARIES, *own)):
        return True
    try:
        with real.open("rb") as opened:
            return opened.read(4) == _ELF
    except OSError:
        return False


def _loader_of(beginning: bytes) -> Iterable[str]:
    """Yield the dynamic loader that an ELF file of 64 bits names, if it is near the beginning."""
    if beginning[4] != 2:
        return
    (table,) = struct.unpack_from("<Q", beginning, 32)
    size, count = struct.unpack_from("<HH", beginning, 54)
    for number in range(count):
        at = table + number * size
        if at + 56 > len(beginning):
            return
        kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", beginning, at)
        if kind == _PT_INTERP and start + length <= len(beginning):
            yield os.fsdecode(beginning[start : start + length].rstrip(b"\0"))
            return


def _add_script(files: ProgramFiles, script: Path) -> None:
    """Add the script that an interpreter runs, and the modules beside it."""
    for each in {script: None, _follow_links(files, str(script)): None}:
        files.readable[str(each)] = None
        for place in _libraries_beside(each):
            files.readable[str(place)] = None
        folder = each.parent
        if each.suffix in SCRIPT_SUFFIXES and not _is_shared(folder):
            _add_modules(files, folder)


def _add_modules(files: ProgramFiles, folder: Path) -> None:
    """Add the modules in the folder of a script: files of code, and folders that hold some.

    A project keeps its configuration, its logs and its secrets in the same folder. Raises
    Unavailable for a folder with too many modules.
    """
    files.listed[str(folder)] = None
    with suppress(PermissionError), os.scandir(folder) as entries:
        modules = [each for each in entries if _is_module(each)]
        if len(modules) > _MAX_MODULES:
            raise Unavailable(
                f"{folder} holds {len(modules)} modules; move the program to a folder of its own"
            )
        for each in modules:
            if each.is_symlink():
                files.links[each.path] = str(Path(each.path).readlink())
            else:
                files.readable[each.path] = None


def _is_module(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    if not entry.is_dir():
        return _is_code(entry.name)
    return entry.name in ("node_modules", "__pycache__") or _holds_code(entry.path, depth=1)


def _is_code(name: str) -> bool:
    return name.endswith(_CODE_SUFFIXES) or name in _CODE_NAMES


def _holds_code(folder: str, depth: int) -> bool:
    """Whether code is in a folder, or in a folder inside of it."""
    with suppress(OSError), os.scandir(folder) as entries:
        first = list(itertools.islice(entries, _MAX_SEARCHED))
        if any(each.is_file() and _is_code(each.name) for each in first):
            return True
        inner = (each.path for each in first if depth and each.is_dir() and each.name[0] != ".")
        return any(_holds_code(each, depth - 1) for each in inner)
    return False
