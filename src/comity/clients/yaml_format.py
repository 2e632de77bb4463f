"""YAML in plain block style, edited by its lines. Any other form is refused."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from comity.clients.formats import Entries, Entry, Section
from comity.errors import Misconfigured

_KEY: Final = re.compile(
    r"(?P<key>[A-Za-z_$][\w.$/@-]*|\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*')\s*:(?:\s+(?P<rest>.*))?"
)
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][\w-]*")
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_WORDS: Final[Mapping[str, object]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Words that some YAML versions read as booleans or null.
_RESERVED: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_NOT_PRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_BLOCK_TEXT: Final = re.compile(r"(?P<style>[|>])(?P<chomp>[-+]?)\s*(?:#.*)?")
_NOTHING: Final = re.compile(r"(?:\{\s*\}|\[\s*\]|null|~)?\s*(?P<comment>#.*)?")


@dataclass(frozen=True, slots=True)
class YamlLine:
    """A line with content: its number in the file, its indentation and its text."""

    number: int
    indent: int
    text: str


@dataclass(frozen=True, slots=True)
class YamlItem:
    """One server in a section: the lines from its first to its last content."""

    first: int
    last: int
    name: str
    entry: Any


@dataclass(frozen=True, slots=True)
class YamlSection:
    """The lines of the key that holds the servers."""

    key_line: int
    indent: int
    items: tuple[YamlItem, ...]

    def find(self, name: str) -> YamlItem | None:
        found = [item for item in self.items if item.name == name]
        if len(found) > 1:
            raise Misconfigured(f"it has {name!r:.80} twice")
        return found[0] if found else None

    @property
    def end(self) -> int:
        return self.items[-1].last if self.items else self.key_line


@dataclass(frozen=True, slots=True)
class YamlFormat:
    """Reads and edits the servers of a YAML file. All other lines stay.

    `is_list` says that the servers are a list whose items have a `name`.
    """

    is_list: bool = False

    def read(self, text: str, section: Section) -> Entries:
        found = self._section(text, section[0])
        return {item.name: item.entry for item in found.items} if found else {}

    def put(self, text: str, section: Section, name: str, entry: Entry) -> str:
        found = self._section(text, section[0])
        indent = found.indent if found else 2
        lines = _rendered_item(name, entry, indent, is_list=self.is_list)
        edited = self._edited(text, section[0], found, name, lines)
        self._check(text, edited, section, {name: dict(entry)})
        return edited

    def put_back(self, text: str, section: Section, name: str, raw: str) -> str:
        found = self._section(text, section[0])
        lines = raw.splitlines()
        written = _indent_of(lines[0])
        indent = found.indent if found and found.items else written
        moved = [line[written:] if line.strip() else line for line in lines]
        moved = [" " * indent + line if line.strip() else line for line in moved]
        edited = self._edited(text, section[0], found, name, moved)
        head = f"{section[0]}:\n" + "\n".join(moved) + "\n"
        self._check(text, edited, section, self.read(head, section))
        return edited

    def take(self, text: str, section: Section, name: str) -> tuple[str, str]:
        found = self._section(text, section[0])
        item = found.find(name) if found else None
        if found is None or item is None:
            return text, ""
        lines = text.splitlines(keepends=True)
        raw = "".join(lines[item.first : item.last + 1])
        del lines[item.first : item.last + 1]
        if len(found.items) == 1:
            # A key without a value would be null, which no client expects.
            empty = "[]" if self.is_list else "{}"
            lines[found.key_line] = lines[found.key_line].replace(":", f": {empty}", 1)
        edited = "".join(lines)
        self._check(text, edited, section, {}, without=name)
        return edited, raw

    def is_empty(self, text: str, section: Section) -> bool:
        rest = [line for line in text.splitlines() if line.strip()]
        return all(re.fullmatch(rf"{section[0]}:\s*(\{{\}}|\[\])?\s*", line) for line in rest)

    def render(self, section: Section, name: str, entry: Entry) -> str:
        lines = _rendered_item(name, entry, 2, is_list=self.is_list)
        return "\n".join([f"{section[0]}:", *lines, ""])

    def _edited(
        self, text: str, key: str, found: YamlSection | None, name: str, written: list[str]
    ) -> str:
        newline = "\r\n" if "\r\n" in text else "\n"
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith(("\n", "\r")):
            lines[-1] += newline
        block = [line + newline for line in written]
        if found is None:
            return "".join([*lines, f"{key}:{newline}", *block])
        item = found.find(name)
        if item is not None:
            lines[item.first : item.last + 1] = block
        else:
            if not found.items:
                lines[found.key_line] = _emptied(lines[found.key_line], newline)
            lines[found.end + 1 : found.end + 1] = block
        return "".join(lines)

    def _check(
        self, before: str, after: str, section: Section, put: Entries, without: str = ""
    ) -> None:
        """Compare the meaning of both texts. Raises Misconfigured if anything else differs."""
        wanted = {**self.read(before, section), **put}
        wanted.pop(without, None)
        if self.read(after, section) != wanted:
            raise Misconfigured("its form is not understood")

    def _section(self, text: str, key: str) -> YamlSection | None:
        lines = text.removeprefix("\ufeff").splitlines()
        top = _top_level_keys(lines)
        found = [at for at, name in top if name == key]
        if len(found) > 1:
            raise Misconfigured(f"it has {key!r} twice")
        if not found:
            return None
        end = next((at for at, _ in top if at > found[0]), len(lines))
        match = _KEY.fullmatch(lines[found[0]].rstrip())
        rest = (match and match["rest"]) or ""
        content = _content_lines(lines, found[0] + 1, end)
        if not _NOTHING.fullmatch(rest) or (rest and not rest.startswith("#") and content):
            raise Misconfigured(f"line {found[0] + 1}: {key} is not written in block style")
        if not content:
            return YamlSection(found[0], 2, ())
        return YamlSection(found[0], content[0].indent, tuple(self._items(lines, content)))

    def _items(self, lines: Sequence[str], content: list[YamlLine]) -> list[YamlItem]:
        starts = [line.number for line in content if line.indent == content[0].indent]
        reader = YamlBlockReader(lines, content)
        value = reader.read_block(content[0].indent)
        if reader.at < len(content):
            raise _strange(content[reader.at].number)
        if isinstance(value, list):
            named = [_named(each) for each in cast("list[object]", value)]
        else:
            named = list(cast("Entries", value).items())
        if self.is_list != isinstance(value, list) or len(named) != len(starts):
            raise _strange(content[0].number)
        ends = [*starts[1:], content[-1].number + 1]
        numbers = [line.number for line in content]
        return [
            YamlItem(start, max(at for at in numbers if at < end), name, entry)
            for (name, entry), start, end in zip(named, starts, ends, strict=True)
        ]


class YamlBlockReader:
    """Reads mappings, lists and scalars in block style from lines with content."""

    def __init__(self, lines: Sequence[str], content: list[YamlLine]) -> None:
        self._lines = lines
        self._content = content
        self.at = 0

    def read_block(self, indent: int) -> object:
        """Return the value whose lines have this indentation."""
        line = self._content[self.at]
        if line.indent != indent:
            raise _strange(line.number)
        return self._read_list(indent) if _is_dash(line.text) else self._read_mapping(indent)

    def _read_mapping(self, indent: int) -> dict[str, object]:
        found: dict[str, object] = {}
        while (line := self._next(indent)) is not None and not _is_dash(line.text):
            match = _KEY.fullmatch(line.text)
            if match is None:
                raise _strange(line.number)
            key = cast("str", _scalar(match["key"], line.number))
            if key in found:
                raise Misconfigured(f"line {line.number + 1}: it has {key!r:.80} twice")
            self.at += 1
            found[key] = self._read_value(match["rest"] or "", indent, line.number)
            if found[key] is None and self._is_list_at(indent):
                # A list may have the indentation of its key.
                found[key] = self._read_list(indent)
        return found

    def _read_list(self, indent: int) -> list[object]:
        found: list[object] = []
        while (line := self._next(indent)) is not None and _is_dash(line.text):
            rest = line.text[1:].lstrip(" ")
            inner = indent + len(line.text) - len(rest)
            if rest and (_KEY.fullmatch(rest) or _is_dash(rest)):
                # The first key of a mapping stands behind the dash.
                self._content[self.at] = YamlLine(line.number, inner, rest)
                found.append(self.read_block(inner))
            else:
                self.at += 1
                found.append(self._read_value(rest, indent, line.number))
        return found

    def _read_value(self, rest: str, indent: int, number: int) -> object:
        following = self._content[self.at] if self.at < len(self._content) else None
        block = _BLOCK_TEXT.fullmatch(rest)
        if block is not None:
            return self._read_text(block, indent, number)
        if rest and not rest.startswith("#"):
            if following is not None and following.indent > indent:
                raise _strange(following.number)  # a scalar over several lines
            return _scalar(rest, number)
        if following is None or following.indent <= indent:
            return None
        return self.read_block(following.indent)

    def _is_list_at(self, indent: int) -> bool:
        line = self._content[self.at] if self.at < len(self._content) else None
        return line is not None and line.indent == indent and _is_dash(line.text)

    def _read_text(self, block: re.Match[str], indent: int, number: int) -> str:
        lines: list[str] = []
        for line in self._lines[number + 1 :]:
            if line.strip() and _indent_of(line) <= indent:
                break
            lines.append(line)
        while self.at < len(self._content) and self._content[self.at].number <= number + len(lines):
            self.at += 1
        margin = min(
            (len(each) - len(each.lstrip(" ")) for each in lines if each.strip()), default=0
        )
        body = ("\n" if block["style"] == "|" else " ").join(each[margin:] for each in lines)
        return body.rstrip() + ("" if block["chomp"] == "-" else "\n")

    def _next(self, indent: int) -> YamlLine | None:
        if self.at >= len(self._content) or self._content[self.at].indent < indent:
            return None
        line = self._content[self.at]
        if line.indent > indent:
            raise _strange(line.number)
        return line


def _top_level_keys(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Return the keys of the document with their lines. Raises Misconfigured for another form."""
    found: list[tuple[int, str]] = []
    for at, line in enumerate(lines):
        if not line.strip() or line.startswith((" ", "#", "- ")) or line.rstrip() == "-":
            continue
        if line.rstrip() == "---" and not found:
            continue
        match = _KEY.fullmatch(line.rstrip())
        if match is None:
            raise _strange(at)
        found.append((at, cast("str", _scalar(match["key"], at))))
    return found


def _content_lines(lines: Sequence[str], start: int, end: int) -> list[YamlLine]:
    found: list[YamlLine] = []
    for at in range(start, end):
        bare = lines[at].strip()
        if not bare or bare.startswith("#"):
            continue
        indent = _indent_of(lines[at])
        if lines[at][indent] == "\t":
            raise _strange(at)
        found.append(YamlLine(at, indent, _without_comment(bare)))
    return found


def _without_comment(text: str) -> str:
    """Return a line without the comment at its end. A `#` in quotes or in a word is none."""
    quote = ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and (quote == "'" or text[at - 1] != "\\") else quote
        elif letter in "\"'" and (at == 0 or text[at - 1] in " [{,:-"):
            quote = letter
        elif letter == "#" and at and text[at - 1] in " \t":
            return text[:at].rstrip()
    return text


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _is_dash(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _scalar(text: str, number: int) -> object:
    """Return a value that is written on one line."""
    if text[:1] in ("[", "{"):
        return _flow(text, number)
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError:
            raise _strange(number) from None
    if text.startswith("'"):
        if len(text) < 2 or not text.endswith("'") or re.search(r"(?<!')'(?:'')*(?!')", text[1:-1]):
            raise _strange(number)
        return text[1:-1].replace("''", "'")
    # Anchors, aliases, tags and reserved marks, or a mapping inside a scalar.
    if text[:1] in tuple("&*!|>%@`?,]}") or ": " in text or text.endswith(":"):
        raise _strange(number)
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _INTEGER.fullmatch(text) else text


def _flow(text: str, number: int) -> object:
    """Return a list or a mapping in JSON's form, or an empty one, or a list of plain words."""
    try:
        found: object = json.loads(text)
        return found
    except ValueError:
        words = text[1:-1].split(",")
        is_simple = (
            text.startswith("[")
            and text.endswith("]")
            and not re.search(r"[\[\]{}\"'#]", text[1:-1])
        )
        if not is_simple:
            raise _strange(number) from None
        return [_scalar(word.strip(), number) for word in words]
    except RecursionError:
        raise _strange(number) from None


def _named(value: object) -> tuple[str, Entries]:
    """Return the name of a server in a list, and the rest of it."""
    entry = dict(cast("Entries", value)) if isinstance(value, dict) else {}
    name = entry.pop("name", None)
    if not isinstance(name, str):
        raise Misconfigured("a server in its list has no name")
    return name, entry


def _strange(number: int) -> Misconfigured:
    return Misconfigured(f"the form of line {number + 1} is not understood")


def _emptied(line: str, newline: str) -> str:
    """Return the line of a key without the empty value after it."""
    key, _, rest = line.rstrip("\r\n").partition(":")
    match = _NOTHING.fullmatch(rest.strip())
    comment = match["comment"] if match else None
    return key + ":" + (f"  {comment}" if comment else "") + newline


def _rendered_item(name: str, entry: Entry, indent: int, *, is_list: bool) -> list[str]:
    pad = " " * indent
    if is_list:
        first, *rest = _rendered({"name": name, **entry}, indent + 2)
        return [f"{pad}- {first.strip()}", *rest]
    return [f"{pad}{_rendered_key(name)}:", *_rendered(entry, indent + 2)]


def _rendered(value: Mapping[str, object], indent: int) -> list[str]:
    lines: list[str] = []
    for key, each in value.items():
        begun = " " * indent + _rendered_key(key) + ":"
        if isinstance(each, Mapping) and each:
            lines += [begun, *_rendered(cast("Mapping[str, object]", each), indent + 2)]
        elif isinstance(each, list) and each:
            items = cast("list[object]", each)
            lines += [
                begun,
                *(" " * (indent + 2) + "- " + _rendered_scalar(item) for item in items),
            ]
        else:
            lines.append(f"{begun} {_rendered_scalar(cast('object', each))}")
    return lines


def _rendered_key(name: str) -> str:
    is_plain = _PLAIN_KEY.fullmatch(name) and name.lower() not in _RESERVED
    return name if is_plain else _rendered_scalar(name)


def _rendered_scalar(value: object) -> str:
    """Return a value in JSON's form, which means the same in YAML.

    YAML requires escapes for some characters that JSON allows.
    """
    written = json.dumps(value, ensure_ascii=False)
    return _NOT_PRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
