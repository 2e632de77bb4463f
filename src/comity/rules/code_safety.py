"""How code that a tool is given is judged: four levels, and whose lists count. (MGP §7, S7)

The kernel's own lists always count. What a server declares may only add to what is refused: it can
raise the level, lower the size, forbid more and allow less. An operator may also allow more.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from comity.rules import python_code
from comity.rules.options import words
from comity.rules.python_lists import ALLOWED_MODULES, BLOCKED_MODULES

MOST_BYTES: Final = 64 * 1024
MOST_BYTES_EVER: Final = 1024 * 1024
MOST_VIOLATIONS: Final = 20
_MOST_ENTRIES: Final = 256
_MOST_ENTRY: Final = 200
PYTHON: Final = words("python python3 py py3 cpython ipython")
_SPACE: Final = re.compile(r"\s+")
_COOKIE: Final = re.compile(r"coding[:=]\s*([-\w.]+)")
_HARMLESS_COOKIES: Final = words("utf-8 utf8 utf_8 ascii us-ascii")
# They show a reader another program than the one that runs.
_BIDI: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")

# What other languages run commands, load libraries or evaluate text with. No parser stands behind
# it, which is why only the level `standard` is content with it.
_PATTERNS: Final = (
    *("eval(", "exec(", 'function("', "newfunction(", "constructor(", "constructor.constructor"),
    *("child_process", "execsync(", "spawnsync(", "spawn(", "execfile(", "process.binding"),
    *(
        "process.mainmodule",
        "process.dlopen",
        "require(",
        "import(",
        "importscripts(",
        "worker_threads",
    ),
    *("runtime.getruntime", "processbuilder", "system(", "popen(", "shell_exec(", "passthru("),
    *(
        "proc_open(",
        "pcntl_exec",
        "os.execute",
        "io.popen",
        "loadstring(",
        "dofile(",
        "loadlibrary",
    ),
    *("os/exec", "syscall.", "unsafe.pointer", "std::process", "ffi.", "dlopen(", "mprotect("),
    *("kernel.exec", "open3", "instance_eval", "class_eval", "invoke-expression", "start-process"),
    *("downloadstring", "fs.write", "fs.unlink", "fs.rm", "deno.run", "deno.command", "bun.spawn"),
    *(
        "rm-rf",
        "mkfs",
        "/dev/tcp",
        "|sh",
        "|bash",
        "base64-d",
        "curl",
        "wget",
        "`",
        "$(",
        "<%",
        "<?php",
    ),
)


class Level(StrEnum):
    """How much code may do. (MGP §7.2)"""

    UNRESTRICTED = "unrestricted"
    STANDARD = "standard"
    STRICT = "strict"
    READONLY = "readonly"


_ORDER: Final = tuple(Level)


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """What is refused of code; `allowed_imports` is empty where nobody said so.

    `more_imports` are modules that an operator lets through at every level.
    """

    level: Level | None = None
    language: str = ""
    most_bytes: int = 0
    blocked_imports: frozenset[str] = frozenset()
    blocked_patterns: tuple[str, ...] = ()
    allowed_imports: frozenset[str] | None = None
    more_imports: frozenset[str] = frozenset()


UNDECIDED: Final = CodePolicy()


def combined(decided: CodePolicy, declared: Mapping[str, object]) -> CodePolicy:
    """What the operator decided, made stricter by what the server declares; never the reverse."""
    said = declared.get("level")
    # A level that nobody knows is the strictest there is.
    asked = None if said is None else Level(said) if said in _ORDER else Level.READONLY
    levels = [each for each in (decided.level, asked) if each is not None]
    size = declared.get("max_code_size_bytes")
    sizes = [decided.most_bytes or MOST_BYTES]
    if isinstance(size, int | float) and not isinstance(size, bool):
        sizes.append(max(0, int(min(size, MOST_BYTES_EVER))))
    elif size is not None:
        sizes.append(0)
    allowed = declared.get("allowed_imports")
    language = decided.language or _text(declared.get("language")) or "python"
    return CodePolicy(
        max(levels, key=_ORDER.index, default=Level.STANDARD),
        language.casefold(),
        min(*sizes, MOST_BYTES_EVER),
        decided.blocked_imports | frozenset(_texts(declared.get("blocked_imports"))),
        (*decided.blocked_patterns, *_texts(declared.get("blocked_patterns"))),
        decided.allowed_imports if allowed is None else frozenset(_texts(allowed)),
        decided.more_imports,
    )


def _text(value: object) -> str:
    return value[:_MOST_ENTRY] if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return [text for each in entries[:_MOST_ENTRIES] if (text := _text(each))]


def examine(code: str, policy: CodePolicy) -> tuple[str, ...]:
    """Every violation that was found, the first ones first; none where the code may go on."""
    level = policy.level or Level.STANDARD
    if level is Level.UNRESTRICTED:
        return ()
    flaw = _form_flaw(code, policy.most_bytes)
    if flaw is not None:
        return (flaw,)
    found = [*_pattern_violations(code, policy.blocked_patterns)]
    if policy.language not in PYTHON:
        found += _unread_violations(code, policy, level)
    else:
        found += python_code.violations(code, _permits(policy, level))
    return tuple(dict.fromkeys(found))[:MOST_VIOLATIONS]


def hints(policy: CodePolicy) -> dict[str, object]:
    """What would pass. (MGP §7.4)"""
    level = policy.level or Level.STANDARD
    told: dict[str, object] = {
        "level": level,
        "blocked_imports": sorted(policy.blocked_imports | BLOCKED_MODULES - policy.more_imports),
        "max_code_size_bytes": policy.most_bytes,
    }
    if level in (Level.STRICT, Level.READONLY) or policy.allowed_imports is not None:
        told["allowed_imports"] = sorted(_allowed(policy, level) or ())
    return told


def _allowed(policy: CodePolicy, level: Level) -> frozenset[str] | None:
    """The modules that alone may be imported; None where all may that are not blocked."""
    kernel = frozenset(ALLOWED_MODULES) if level in (Level.STRICT, Level.READONLY) else None
    told = policy.allowed_imports
    if told is not None:
        kernel = told if kernel is None else kernel & told
    return None if kernel is None else (kernel | policy.more_imports) - policy.blocked_imports


def _permits(policy: CodePolicy, level: Level) -> python_code.Permits:
    return python_code.Permits(
        is_strict=level in (Level.STRICT, Level.READONLY),
        only_reads=level is Level.READONLY,
        allowed=_allowed(policy, level),
        blocked=(BLOCKED_MODULES - policy.more_imports) | policy.blocked_imports,
        trusted=policy.more_imports - policy.blocked_imports,
    )


def _form_flaw(code: str, most_bytes: int) -> str | None:
    """What two readers of the same text could take for two programs."""
    try:
        size = len(code.encode())
    except UnicodeEncodeError:
        return "Blocked text: it holds half of a character"
    if size > most_bytes:
        return f"Code too large: {size} bytes, at most {most_bytes}"
    if code.startswith("\ufeff") or "\ufeff" in code:
        return "Blocked text: a byte order mark"
    for sign in set(code.replace("\r\n", "\n")):
        if (ord(sign) < 32 and sign not in "\t\n") or sign in _BIDI or 127 <= ord(sign) < 160:
            return f"Blocked text: the character U+{ord(sign):04X}"
    for line in [*code.splitlines()[:3], *code.split("\n")[:2]]:
        cookie = _COOKIE.search(line) if "#" in line else None
        if cookie is not None and cookie[1].casefold() not in _HARMLESS_COOKIES:
            return "Blocked text: a declaration of another encoding"
    return None


def _pattern_violations(code: str, patterns: tuple[str, ...]) -> list[str]:
    """Patterns are texts, not expressions: they are found whatever the spaces and forms."""
    plain = _plain(code)
    return [f"Blocked pattern: {each!r}" for each in patterns if _plain(each) in plain]


def _plain(text: str) -> str:
    return _SPACE.sub("", unicodedata.normalize("NFKC", text)).casefold()


def _unread_violations(code: str, policy: CodePolicy, level: Level) -> list[str]:
    if level is not Level.STANDARD:
        shown = policy.language[:40].encode("ascii", "backslashreplace").decode()
        return [f"Language not supported at this level: {shown!r}; only Python can be judged"]
    plain = _plain(code)
    blocked = [f"Blocked pattern: {each!r}" for each in _PATTERNS if each in plain]
    imports = [
        f"Blocked import: {each!r}"
        for each in sorted(policy.blocked_imports)
        if re.search(rf"\b{re.escape(each)}\b", code)
    ]
    return blocked + imports
