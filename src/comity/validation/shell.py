"""The validator `sandbox`: allowed shell commands and their options."""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from comity.toolkit.text import word_set
from comity.validation.arguments import (
    ArgumentKind,
    ArgumentText,
    ToolDefinition,
    argument_kind_of,
    collect_texts,
)
from comity.validation.rules import SANDBOX, ValidationRules, Verdict, validator_refusal

_MANY: Final = 100_000


def option_name(option: str) -> str:
    """Return an option without its value, which may be a secret."""
    return option.partition("=")[0][:40] if option.startswith("--") else option[:2]


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options of a command. `plain` letters have no value, `valued` ones have one.

    Long options are spelt out. `numbers` is whether `-5` is an option, and `most` limits the
    operands.
    """

    plain: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    numbers: bool = False
    most: int = _MANY

    def operands(self, line: Sequence[str]) -> list[str] | str:
        """Return the operands, or as a string the word that is not allowed."""
        operands: list[str] = []
        waiting = iter(line)
        for word in waiting:
            if word == "--":
                operands += waiting
            elif word == "-" or not word.startswith("-"):
                operands.append(word)
            else:
                takes_next = self._takes_next(word)
                if takes_next is None:
                    return f"the option {option_name(word)!r} is not among those that are allowed"
                if takes_next:
                    next(waiting, None)
        if len(operands) > self.most:
            return f"more than {self.most} operands are not allowed"
        return operands

    def _takes_next(self, word: str) -> bool | None:
        """Return whether the next word is the value of this one, or None if it is not allowed."""
        if word.startswith("--"):
            return False if word[2:].partition("=")[0] in self.long else None
        letters = word[1:]
        if self.numbers and letters.isascii() and letters.isdigit():
            return False
        for place, letter in enumerate(letters):
            if letter in self.valued:
                return place == len(letters) - 1
            if letter not in self.plain:
                return None
        return False


_LIMITS: Final = (
    "all author before after branches committer date decorate first-parent follow format graph "
    "grep max-count merges no-decorate no-merges oneline abbrev abbrev-commit no-color color "
    "pretty reverse since until skip tags topo-order date-order left-right cherry-pick remotes"
)
_DIFFS: Final = (
    "cached staged stat shortstat numstat name-only name-status patch no-patch unified word-diff "
    "summary dirstat ignore-all-space ignore-space-change ignore-blank-lines diff-filter "
    "find-renames no-renames exit-code quiet check raw minimal patience histogram no-ext-diff "
    "no-textconv relative merge-base text full-index"
)


_SUBCOMMANDS: Final[dict[str, CommandOptions]] = {
    "status": CommandOptions(
        "sbvu", "", word_set("short branch porcelain long untracked-files ignored show-stash")
    ),
    "log": CommandOptions("pisEFgq", "nSGUL", word_set(_LIMITS, _DIFFS), numbers=True),
    "show": CommandOptions("psq", "U", word_set(_LIMITS, _DIFFS), numbers=True),
    "diff": CommandOptions("pswbRaqM", "USG", word_set(_DIFFS, "color no-color no-index")),
    "blame": CommandOptions(
        "lsetfnpwbMC", "L", word_set("line-porcelain porcelain show-email date root")
    ),
    "shortlog": CommandOptions(
        "nsec", "", word_set("numbered summary email since until no-merges")
    ),
    "rev-parse": CommandOptions(
        "q",
        "",
        word_set("abbrev-ref short show-toplevel is-inside-work-tree verify git-dir symbolic"),
    ),
    "rev-list": CommandOptions("", "n", word_set(_LIMITS, "count objects"), numbers=True),
    "ls-files": CommandOptions(
        "cdmosutvz", "x", word_set("cached deleted modified others stage exclude-standard")
    ),
    "ls-tree": CommandOptions(
        "drtlz", "", word_set("name-only name-status long full-name full-tree")
    ),
    "cat-file": CommandOptions("tspe"),
    "describe": CommandOptions(
        "", "", word_set("all tags always dirty long abbrev match exact-match contains")
    ),
    "merge-base": CommandOptions("a", "", word_set("all is-ancestor fork-point octopus")),
    "name-rev": CommandOptions("", "", word_set("tags name-only all")),
    "count-objects": CommandOptions("vH", "", word_set("verbose human-readable"), most=0),
    # With an operand these would create something. Without one they list.
    "branch": CommandOptions(
        "arv", "", word_set("all list show-current remotes verbose no-color"), most=0
    ),
    "tag": CommandOptions("ln", "", word_set("list sort"), most=0),
    "remote": CommandOptions("v", "", word_set("verbose"), most=0),
    "version": CommandOptions(most=0),
}
_BEFORE: Final = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"})


def git_problem(line: Sequence[str]) -> str | None:
    """Return why these words after `git` do more than read, or None."""
    rest = list(line)
    while rest and rest[0] in _BEFORE:
        del rest[0]
    if rest == ["--version"]:
        return None
    options = _SUBCOMMANDS.get(rest[0]) if rest else None
    if options is None:
        return f"git: {_shown(rest)!r} is not among what only looks"
    operands = options.operands(rest[1:])
    if isinstance(operands, str):
        return f"git {rest[0]}: {operands}"
    # Remotes such as `ext::` run a program.
    if any("::" in each for each in operands):
        return "git: an operand names a remote helper"
    return None


def _shown(rest: Sequence[str]) -> str:
    first = rest[0] if rest else ""
    return option_name(first) if first.startswith("-") else first[:20]


NEVER: Final = word_set(
    "sh bash dash zsh ksh mksh fish csh tcsh ash busybox toybox rbash env xargs sudo su doas "
    "pkexec eval exec source . command builtin nohup setsid timeout nice ionice time watch "
    "parallel ssh chroot unshare nsenter script expect strace ltrace gdb stdbuf flock trap "
    "coproc enable alias find2perl start-stop-daemon systemd-run at batch crontab screen tmux "
    "runuser setarch"
)
"""Commands that run other commands. An operator cannot allow them, as they would void the list."""


_SUMS: Final = CommandOptions(
    "bctwz", "", word_set("binary check text quiet status strict tag warn ignore-missing")
)

READERS: Final[dict[str, CommandOptions]] = {
    "ls": CommandOptions(
        "aAbBcCdfFgGhHiklLmnNopqQrRsStuvUxXZ1",
        "ITw",
        word_set(
            "all almost-all author color classify directory full-time group-directories-first "
            "human-readable inode long no-group numeric-uid-gid recursive reverse size sort time "
            "time-style width ignore hide block-size"
        ),
    ),
    "cat": CommandOptions(
        "AbeEnstTuv", "", word_set("number number-nonblank show-all show-ends squeeze-blank")
    ),
    "head": CommandOptions("qvz", "nc", word_set("lines bytes quiet verbose silent"), numbers=True),
    "tail": CommandOptions("qvz", "nc", word_set("lines bytes quiet verbose silent"), numbers=True),
    "wc": CommandOptions("clmLw", "", word_set("bytes chars lines words max-line-length")),
    "grep": CommandOptions(
        "abcEFGhHiIlLnoPqrRsTUvwxyzZ",
        "ABCdDefm",
        word_set(
            "color colour count context after-context before-context extended-regexp exclude "
            "exclude-dir files-with-matches files-without-match fixed-strings ignore-case include "
            "invert-match line-number line-regexp max-count no-filename null only-matching "
            "perl-regexp quiet recursive regexp text with-filename word-regexp no-messages"
        ),
        numbers=True,
    ),
    "sort": CommandOptions(
        "bdfghiMnRrVcCmsuz",
        "kt",
        word_set(
            "check dictionary-order field-separator general-numeric-sort human-numeric-sort "
            "ignore-case ignore-leading-blanks key month-sort numeric-sort random-sort reverse "
            "sort stable unique version-sort zero-terminated"
        ),
    ),
    # A second operand would be the output file.
    "uniq": CommandOptions(
        "cdDiuz", "fsw", word_set("count repeated unique ignore-case skip-fields"), most=1
    ),
    "cut": CommandOptions(
        "nsz", "bcdf", word_set("bytes characters complement delimiter fields only-delimited")
    ),
    "tr": CommandOptions("cCdst", "", word_set("complement delete squeeze-repeats truncate-set1")),
    "echo": CommandOptions("neE"),
    "printf": CommandOptions(),
    "pwd": CommandOptions("LP", most=0),
    "stat": CommandOptions("Lft", "c", word_set("dereference file-system format terse printf")),
    "file": CommandOptions(
        "bhiLNprk0", "F", word_set("brief mime mime-type mime-encoding dereference")
    ),
    "du": CommandOptions(
        "abchHklLmsSxD0",
        "dtB",
        word_set("all apparent-size bytes human-readable max-depth summarize total exclude time"),
    ),
    "df": CommandOptions(
        "ahHiklPT", "tx", word_set("all human-readable inodes local output print-type total")
    ),
    "date": CommandOptions(
        "uRI", "dr", word_set("date iso-8601 reference rfc-3339 rfc-email utc universal")
    ),
    "whoami": CommandOptions(most=0),
    "id": CommandOptions("gGnruz", "", word_set("group groups name real user")),
    "uname": CommandOptions(
        "asnrvmpio", "", word_set("all kernel-name kernel-release machine"), most=0
    ),
    "uptime": CommandOptions("ps", "", word_set("pretty since"), most=0),
    "diff": CommandOptions(
        "abBcdeiNpqrstTuwyZ",
        "CIUFxWL",
        word_set(
            "brief unified context recursive ignore-case ignore-all-space ignore-blank-lines "
            "ignore-space-change side-by-side suppress-common-lines new-file color exclude label"
        ),
        numbers=True,
    ),
    "cmp": CommandOptions("bls", "n", word_set("print-bytes verbose silent quiet bytes")),
    "comm": CommandOptions("123z", "", word_set("check-order nocheck-order total")),
    "nl": CommandOptions("p", "bdfhilnsvw", word_set("body-numbering number-format number-width")),
    "tac": CommandOptions("br", "s", word_set("before regex separator")),
    "rev": CommandOptions(),
    "fold": CommandOptions("bs", "w", word_set("bytes spaces width")),
    "paste": CommandOptions("sz", "d", word_set("delimiters serial")),
    "join": CommandOptions("iz", "aeotv12j", word_set("ignore-case header check-order")),
    "basename": CommandOptions("az", "s", word_set("multiple suffix zero")),
    "dirname": CommandOptions("z", "", word_set("zero")),
    "realpath": CommandOptions(
        "emLPqsz", "", word_set("canonicalize-existing relative-to relative-base strip")
    ),
    "readlink": CommandOptions(
        "femnqsvz", "", word_set("canonicalize canonicalize-existing no-newline zero")
    ),
    "seq": CommandOptions("w", "fs", word_set("equal-width format separator"), numbers=True),
    "sha256sum": _SUMS,
    "sha512sum": _SUMS,
    "sha1sum": _SUMS,
    "md5sum": _SUMS,
    "cksum": CommandOptions(),
    "true": CommandOptions(),
    "false": CommandOptions(),
    "which": CommandOptions("a"),
    "tree": CommandOptions(
        "adfilpsugDFqNrtSnCA", "LPI", word_set("dirsfirst filelimit noreport prune")
    ),
    "column": CommandOptions("tx", "sc", word_set("table separator")),
    "od": CommandOptions(
        "bcdfiloxv", "AjNtw", word_set("address-radix format skip-bytes read-bytes")
    ),
    "strings": CommandOptions("a", "nt", word_set("all bytes radix")),
    "nproc": CommandOptions(long=word_set("all ignore"), most=0),
    "arch": CommandOptions(most=0),
    "groups": CommandOptions(),
}

WRITERS: Final[dict[str, CommandOptions]] = {
    # Commands that an operator may add, with the options that keep their purpose.
    "rm": CommandOptions("fiIv", "", word_set("force interactive verbose")),
    "rmdir": CommandOptions("v", "", word_set("verbose ignore-fail-on-non-empty")),
    "mkdir": CommandOptions("pv", "m", word_set("parents verbose mode")),
    "touch": CommandOptions("acm", "drt", word_set("date reference no-create time")),
    "cp": CommandOptions(
        "aRrfinpuvLPHdT",
        "t",
        word_set("archive recursive force no-clobber preserve update verbose"),
    ),
    "mv": CommandOptions("finuvT", "t", word_set("force no-clobber update verbose")),
    "ln": CommandOptions("sfnrvT", "", word_set("symbolic force relative verbose")),
    "chmod": CommandOptions("cfv", "", word_set("changes quiet verbose")),
    "tar": CommandOptions(
        "cxtzjJvkmpO", "fC", word_set("create extract list gzip bzip2 xz verbose file directory")
    ),
    "tee": CommandOptions("a", "", word_set("append")),
}

_FIND_ALONE: Final = word_set(
    "-L -H -P -O1 -O2 -O3 ! -not -a -and -o -or ( ) -empty -print -print0 -ls -prune -true -false "
    "-depth -d -xdev -mount -daystart -nouser -nogroup -readable -writable -follow "
    "-executable"
)
_FIND_VALUED: Final = word_set(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype "
    "-size -mtime -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer -maxdepth -mindepth "
    "-perm -user -group -uid -gid -links -inum -samefile -lname -ilname -printf -newermt -fstype"
)
_ROOTS: Final = frozenset({"/", ".", "..", "~", "./", "../", "/*", "*", "./*"})
_SECRET_NAMES: Final = word_set(
    ".ssh .aws .gnupg .netrc .git-credentials .pgpass .docker .kube .env id_rsa id_ed25519 "
    "id_ecdsa authorized_keys .bash_history .npmrc .pypirc .my.cnf .vault-token .config/gcloud"
)
_SECRET_ENDS: Final = ("etc/shadow", "etc/gshadow", "etc/sudoers", "etc/shadow-", "master.passwd")
_KERNEL: Final = ("dev", "proc", "sys")


@dataclass(frozen=True, slots=True)
class AllowedCommands:
    """The allowed commands."""

    more: frozenset[str] = frozenset()
    fewer: frozenset[str] = frozenset()

    def problem(self, line: Sequence[str]) -> str | None:
        """Return why this command line is refused, or None."""
        if not line:
            return "there is no command in it"
        name, *rest = line
        return self._name_problem(name) or _words_problem(name, rest)

    def names(self) -> list[str]:
        return sorted((({*READERS, "find", "git"} | self.more) - self.fewer) - NEVER)

    def _name_problem(self, name: str) -> str | None:
        if name in NEVER:
            return f"{name} runs other commands"
        known = name in READERS or name in ("find", "git") or name in self.more
        if not known or name in self.fewer:
            return f"{name[:64]!r} is not among the commands that are allowed"
        return None


def only_reads(line: Sequence[str]) -> str | None:
    """Return why a command line may write, or None if it is known only to read."""
    if line[0] not in READERS and line[0] not in ("find", "git"):
        return f"{line[0][:64]!r} is not a known read-only command"
    return None


def _words_problem(name: str, rest: Sequence[str]) -> str | None:
    for word in rest:
        if secret := _secret(word):
            return secret
    if name == "find":
        return _find_problem(rest)
    if name == "git":
        return git_problem(rest)
    options = READERS.get(name) or WRITERS.get(name)
    if options is None:  # an operator's own command, whose harmful options are unknown
        return None
    operands = options.operands(rest)
    if isinstance(operands, str):
        return f"{name}: {operands}"
    return _operand_problem(name, operands)


def _operand_problem(name: str, operands: Sequence[str]) -> str | None:
    if name == "rm" and any(each in _ROOTS or each.endswith("/") for each in operands):
        return "rm: it would delete a whole directory"
    if name == "date" and any(not each.startswith("+") for each in operands):
        return "date: it would set the clock"
    return None


def _find_problem(line: Sequence[str]) -> str | None:
    expected_value = False
    for word in line:
        if expected_value:
            expected_value = False
        elif word in _FIND_VALUED:
            expected_value = True
        elif word not in _FIND_ALONE and word[:1] in ("-", "!", "(", ")", ","):
            return f"find: {word[:20]!r} is not among the tests that only look"
    return None


def _secret(word: str) -> str | None:
    """Return why a word names a file with secrets or a kernel interface, or None."""
    path = word.partition("=")[2] if word.startswith("-") and "=" in word else word
    parts = [part for part in path.casefold().split("/") if part not in ("", ".")]
    if any(part in _SECRET_NAMES or part.startswith(".env.") for part in parts):
        return "it names a file that holds secrets"
    if "/".join(parts[-2:]).endswith(_SECRET_ENDS):
        return "it names a file that holds secrets"
    below = [part for part in parts if part != ".."]
    rooted = path.startswith("/") or ".." in parts
    if rooted and below and below[0] in _KERNEL and path != "/dev/null":
        return f"it reaches into /{below[0]}"
    return None


MOST_CHARACTERS: Final = 8 * 1024
MAX_WORDS: Final = 1024
MAX_TOGETHER: Final = 32 * 1024
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNSEEN: Final = frozenset({"Zl", "Zp", "Cs", "Co"})
_ACTED_ON: Final = re.compile(r"[;&|`$<>\\\"'(){}\x00-\x1f\x7f]")
_SHELL_CHARACTERS: Final = re.compile(r"[;&|`<>\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\$[({A-Za-z_'\"]")
_DELETES: Final = re.compile(
    r"(?:^|[\s/])(?:rm|rmdir|unlink|shred|mkfs\S*|dd|del|rd|format)\s+(?:-|/|~|\*|if=|of=)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class UnparsableCommand:
    """Why a text is not one simple command of literal words."""

    reason: str


type ReadWords = Callable[[str], tuple[str, ...] | UnparsableCommand]
"""Parses a command into the words that a shell would pass to a program."""


def form_problem(command: str) -> str | None:
    """Return what is refused before parsing, because parsers disagree about it."""
    if len(command) > MOST_CHARACTERS:
        return f"it has over {MOST_CHARACTERS} characters"
    if _CONTROL.search(command):
        return "it holds a control character"
    is_plain = command.isascii()
    if not is_plain and any(unicodedata.category(sign) in _UNSEEN for sign in command):
        return "it holds a sign that cannot be seen"
    return None


def shell_refusal_reason(
    tool: ToolDefinition, arguments: Mapping[str, object], rules: ValidationRules, read: ReadWords
) -> Verdict:
    """Return why these arguments may not go to this tool, or None."""
    found = collect_texts(arguments)
    if found is None:
        return validator_refusal(SANDBOX, "its arguments hold more than can be looked at")
    known = [(each, argument_kind_of(each.where, each.name, rules.arguments)) for each in found]
    named = {meaning for _, meaning in known}
    unnamed_runs = ArgumentKind.COMMAND not in named
    parsed = (
        {ArgumentKind.COMMAND, ArgumentKind.UNKNOWN} if unnamed_runs else {ArgumentKind.COMMAND}
    )
    if sum(len(each.text) for each, meaning in known if meaning in parsed) > MAX_TOGETHER:
        return validator_refusal(SANDBOX, f"its commands have over {MAX_TOGETHER} characters")
    lines = _CommandLineChecker(AllowedCommands(rules.more_commands, rules.fewer_commands), read)
    for each, meaning in known:
        problem = lines.problem(each, meaning, unnamed_runs)
        if problem is not None:
            return validator_refusal(SANDBOX, problem, each.where, *_suggestions(lines.commands))
    problem = lines.whole_problem(arguments, rules)
    return (
        None
        if problem is None
        else validator_refusal(SANDBOX, problem, "", *_suggestions(lines.commands))
    )


def _suggestions(commands: AllowedCommands) -> tuple[str, ...]:
    names = ", ".join(commands.names()[:60])
    return (
        "Use one command of plain words, with quotes around what holds spaces or signs.",
        f"These commands are allowed: {names}.",
    )


@dataclass(frozen=True, slots=True)
class _CommandLineChecker:
    commands: AllowedCommands
    read: ReadWords

    def problem(self, argument: ArgumentText, kind: ArgumentKind, unnamed_runs: bool) -> str | None:
        if kind is ArgumentKind.TEXT:
            return None
        if kind is ArgumentKind.COMMAND and argument.listed == 0:
            return self._line_problem(argument.text)
        if kind is ArgumentKind.UNKNOWN and unnamed_runs and argument.name:
            return self._unnamed_problem(argument.text)
        if kind in (ArgumentKind.COMMAND, ArgumentKind.WORDS):
            return _word_problem(argument.text)
        return _text_problem(argument.text)

    def _line_problem(self, text: str) -> str | None:
        problem = form_problem(text)
        if problem is not None:
            return problem
        line = self.read(text)
        return line.reason if isinstance(line, UnparsableCommand) else self.commands.problem(line)

    def _unnamed_problem(self, text: str) -> str | None:
        """Check a string of unknown kind. The reason quotes nothing of it, as it may be secret."""
        if " " in text.strip():
            problem = self._line_problem(text)
        else:
            problem = _word_problem(text) or self._alone_problem(text)
        return None if problem is None else "it may be a command that is not allowed"

    def _alone_problem(self, word: str) -> str | None:
        """Check a single word, which can be a command. A path or a number is none."""
        is_name = word.isascii() and word.replace("-", "").replace("_", "").isalpha()
        return self.commands.problem((word,)) if is_name else None

    def whole_problem(self, arguments: Mapping[str, object], rules: ValidationRules) -> str | None:
        """Check a command that is split into a program and its words, or into a list."""
        for table in _tables(arguments):
            line = self._assemble_command(table, rules)
            if line is not None:
                problem = self.commands.problem(line)
                if problem is not None:
                    return problem
        return None

    def _assemble_command(
        self, table: Mapping[str, object], rules: ValidationRules
    ) -> Sequence[str] | None:
        line: list[str] = []
        words: list[str] = []
        for name, value in table.items():
            meaning = argument_kind_of(name, name, rules.arguments)
            if meaning is ArgumentKind.COMMAND and isinstance(value, list):
                line += [each for each in cast("list[object]", value) if isinstance(each, str)]
            elif meaning is ArgumentKind.COMMAND and isinstance(value, str):
                read = self.read(value)
                line += () if isinstance(read, UnparsableCommand) else read
            elif meaning is ArgumentKind.WORDS and isinstance(value, list):
                words += [each for each in cast("list[object]", value) if isinstance(each, str)]
            elif meaning is ArgumentKind.WORDS and isinstance(value, str):
                words += value.split()
        if len(line) + len(words) > MAX_WORDS:
            return ("too many words",)
        return (*line, *words) if line else None


def _tables(arguments: Mapping[str, object]) -> list[Mapping[str, object]]:
    found: list[Mapping[str, object]] = []
    waiting: list[object] = [arguments]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            table = cast("dict[str, object]", value)
            found.append(table)
            waiting += table.values()
        elif isinstance(value, list):
            waiting += cast("list[object]", value)
    return found


def _word_problem(word: str) -> str | None:
    if len(word) > MOST_CHARACTERS:
        return f"it has over {MOST_CHARACTERS} characters"
    found = _ACTED_ON.search(unicodedata.normalize("NFKC", word))
    return f"it holds {found.group()!r}, on which a shell would act" if found else None


def _text_problem(text: str) -> str | None:
    plain = unicodedata.normalize("NFKC", text)
    found = _SHELL_CHARACTERS.search(plain)
    if found is not None:
        return f"it holds {found.group()!r}, on which a shell would act"
    return "it looks like a deletion" if _DELETES.search(plain) else None
