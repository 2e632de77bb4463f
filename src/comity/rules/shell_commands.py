"""Which commands may be run, and with which options: what is not named here is refused.

Options are allowed one by one, spelt out: GNU programs take any unique beginning of a long option,
so a list of forbidden ones would have to know every shortening of each. (security.md §3.1)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from comity.rules.git_commands import git_problem
from comity.rules.options import Options, words

NEVER: Final = words(
    "sh bash dash zsh ksh mksh fish csh tcsh ash busybox toybox rbash env xargs sudo su doas "
    "pkexec eval exec source . command builtin nohup setsid timeout nice ionice time watch "
    "parallel ssh chroot unshare nsenter script expect strace ltrace gdb stdbuf flock trap "
    "coproc enable alias find2perl start-stop-daemon systemd-run at batch crontab screen tmux "
    "runuser setarch"
)
"""What runs other commands: no list of an operator's lets these through, as they void it."""


_SUMS: Final = Options(
    "bctwz", "", words("binary check text quiet status strict tag warn ignore-missing")
)

READERS: Final[dict[str, Options]] = {
    "ls": Options(
        "aAbBcCdfFgGhHiklLmnNopqQrRsStuvUxXZ1",
        "ITw",
        words(
            "all almost-all author color classify directory full-time group-directories-first "
            "human-readable inode long no-group numeric-uid-gid recursive reverse size sort time "
            "time-style width ignore hide block-size"
        ),
    ),
    "cat": Options(
        "AbeEnstTuv", "", words("number number-nonblank show-all show-ends squeeze-blank")
    ),
    "head": Options("qvz", "nc", words("lines bytes quiet verbose silent"), numbers=True),
    "tail": Options("qvz", "nc", words("lines bytes quiet verbose silent"), numbers=True),
    "wc": Options("clmLw", "", words("bytes chars lines words max-line-length")),
    "grep": Options(
        "abcEFGhHiIlLnoPqrRsTUvwxyzZ",
        "ABCdDefm",
        words(
            "color colour count context after-context before-context extended-regexp exclude "
            "exclude-dir files-with-matches files-without-match fixed-strings ignore-case include "
            "invert-match line-number line-regexp max-count no-filename null only-matching "
            "perl-regexp quiet recursive regexp text with-filename word-regexp no-messages"
        ),
        numbers=True,
    ),
    "sort": Options(
        "bdfghiMnRrVcCmsuz",
        "kt",
        words(
            "check dictionary-order field-separator general-numeric-sort human-numeric-sort "
            "ignore-case ignore-leading-blanks key month-sort numeric-sort random-sort reverse "
            "sort stable unique version-sort zero-terminated"
        ),
    ),
    # A second operand would be the file that it writes.
    "uniq": Options(
        "cdDiuz", "fsw", words("count repeated unique ignore-case skip-fields"), most=1
    ),
    "cut": Options(
        "nsz", "bcdf", words("bytes characters complement delimiter fields only-delimited")
    ),
    "tr": Options("cCdst", "", words("complement delete squeeze-repeats truncate-set1")),
    "echo": Options("neE"),
    "printf": Options(),
    "pwd": Options("LP", most=0),
    "stat": Options("Lft", "c", words("dereference file-system format terse printf")),
    "file": Options("bhiLNprk0", "F", words("brief mime mime-type mime-encoding dereference")),
    "du": Options(
        "abchHklLmsSxD0",
        "dtB",
        words("all apparent-size bytes human-readable max-depth summarize total exclude time"),
    ),
    "df": Options(
        "ahHiklPT", "tx", words("all human-readable inodes local output print-type total")
    ),
    "date": Options("uRI", "dr", words("date iso-8601 reference rfc-3339 rfc-email utc universal")),
    "whoami": Options(most=0),
    "id": Options("gGnruz", "", words("group groups name real user")),
    "uname": Options("asnrvmpio", "", words("all kernel-name kernel-release machine"), most=0),
    "uptime": Options("ps", "", words("pretty since"), most=0),
    "diff": Options(
        "abBcdeiNpqrstTuwyZ",
        "CIUFxWL",
        words(
            "brief unified context recursive ignore-case ignore-all-space ignore-blank-lines "
            "ignore-space-change side-by-side suppress-common-lines new-file color exclude label"
        ),
        numbers=True,
    ),
    "cmp": Options("bls", "n", words("print-bytes verbose silent quiet bytes")),
    "comm": Options("123z", "", words("check-order nocheck-order total")),
    "nl": Options("p", "bdfhilnsvw", words("body-numbering number-format number-width")),
    "tac": Options("br", "s", words("before regex separator")),
    "rev": Options(),
    "fold": Options("bs", "w", words("bytes spaces width")),
    "paste": Options("sz", "d", words("delimiters serial")),
    "join": Options("iz", "aeotv12j", words("ignore-case header check-order")),
    "basename": Options("az", "s", words("multiple suffix zero")),
    "dirname": Options("z", "", words("zero")),
    "realpath": Options(
        "emLPqsz", "", words("canonicalize-existing relative-to relative-base strip")
    ),
    "readlink": Options(
        "femnqsvz", "", words("canonicalize canonicalize-existing no-newline zero")
    ),
    "seq": Options("w", "fs", words("equal-width format separator"), numbers=True),
    "sha256sum": _SUMS,
    "sha512sum": _SUMS,
    "sha1sum": _SUMS,
    "md5sum": _SUMS,
    "cksum": Options(),
    "true": Options(),
    "false": Options(),
    "which": Options("a"),
    "tree": Options("adfilpsugDFqNrtSnCA", "LPI", words("dirsfirst filelimit noreport prune")),
    "column": Options("tx", "sc", words("table separator")),
    "od": Options("bcdfiloxv", "AjNtw", words("address-radix format skip-bytes read-bytes")),
    "strings": Options("a", "nt", words("all bytes radix")),
    "nproc": Options(long=words("all ignore"), most=0),
    "arch": Options(most=0),
    "groups": Options(),
}

WRITERS: Final[dict[str, Options]] = {
    # What an operator may add, with the options that do not turn it into something else.
    "rm": Options("fiIv", "", words("force interactive verbose")),
    "rmdir": Options("v", "", words("verbose ignore-fail-on-non-empty")),
    "mkdir": Options("pv", "m", words("parents verbose mode")),
    "touch": Options("acm", "drt", words("date reference no-create time")),
    "cp": Options(
        "aRrfinpuvLPHdT", "t", words("archive recursive force no-clobber preserve update verbose")
    ),
    "mv": Options("finuvT", "t", words("force no-clobber update verbose")),
    "ln": Options("sfnrvT", "", words("symbolic force relative verbose")),
    "chmod": Options("cfv", "", words("changes quiet verbose")),
    "tar": Options(
        "cxtzjJvkmpO", "fC", words("create extract list gzip bzip2 xz verbose file directory")
    ),
    "tee": Options("a", "", words("append")),
}

_FIND_ALONE: Final = words(
    "-L -H -P -O1 -O2 -O3 ! -not -a -and -o -or ( ) -empty -print -print0 -ls -prune -true -false "
    "-depth -d -xdev -mount -daystart -nouser -nogroup -readable -writable -follow "
    "-executable"
)
_FIND_VALUED: Final = words(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -type -xtype "
    "-size -mtime -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer -maxdepth -mindepth "
    "-perm -user -group -uid -gid -links -inum -samefile -lname -ilname -printf -newermt -fstype"
)
_ROOTS: Final = frozenset({"/", ".", "..", "~", "./", "../", "/*", "*", "./*"})
_SECRET_NAMES: Final = words(
    ".ssh .aws .gnupg .netrc .git-credentials .pgpass .docker .kube .env id_rsa id_ed25519 "
    "id_ecdsa authorized_keys .bash_history .npmrc .pypirc .my.cnf .vault-token .config/gcloud"
)
_SECRET_ENDS: Final = ("etc/shadow", "etc/gshadow", "etc/sudoers", "etc/shadow-", "master.passwd")
_KERNEL: Final = ("dev", "proc", "sys")


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands that may be run here."""

    more: frozenset[str] = frozenset()
    fewer: frozenset[str] = frozenset()

    def problem(self, line: Sequence[str]) -> str | None:
        """Why this command line is not run, or None."""
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
    """Why a command line may write, or None where it is known only to read."""
    if line[0] not in READERS and line[0] not in ("find", "git"):
        return f"{line[0][:64]!r} is not known only to read"
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
    if options is None:  # an operator's own: which of its options do harm is not known here
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
    """Whether a word names a file that holds secrets, or that is a door into the kernel."""
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
