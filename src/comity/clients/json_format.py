"""JSON with comments and trailing commas, edited by position."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from comity.clients.formats import Entries, Entry, Section
from comity.errors import Misconfigured
from comity.toolkit.text import object_members

# Strings come first, since comment marks and commas inside them do not count. An unterminated
# comment extends to the end of the file.
_TEXT: Final = r'"(?:[^"\\\r\n]|\\.)*"'
_COMMENT: Final = re.compile(_TEXT + r"|//[^\r\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_LAST_COMMA: Final = re.compile(_TEXT + r"|,(?=\s*[}\]])")
_TOKEN: Final = re.compile(
    rf"(?P<space>[\s\ufeff]+)|(?P<line>//[^\r\n]*)|(?P<block>/\*.*?\*/)|(?P<string>{_TEXT})"
    r'|(?P<mark>[{}\[\],:])|(?P<scalar>[^\s{}\[\],:"/]+)',
    re.DOTALL,
)
_LINE_END: Final = re.compile(r"[\r\n]")
_INDENT: Final = re.compile(r"[\r\n]([ \t]+)[^\s/*]")


def plain_json(text: str) -> str:
    """Return the document without comments and trailing commas. Line numbers stay the same."""
    return _LAST_COMMA.sub(_kept, _COMMENT.sub(_kept, text))


def _kept(match: re.Match[str]) -> str:
    token = match.group()
    return token if token.startswith('"') else "\n" * token.count("\n") or " "


def parse_json(text: str) -> dict[str, Any]:
    """Return the object in a JSON text; empty for an empty text. Raises Misconfigured.

    Errors drop their causes, because those contain the text and so its secrets.
    """
    plain = plain_json(text.removeprefix("\ufeff"))
    if not plain.strip():
        return {}
    try:
        found = json.loads(plain)
    except json.JSONDecodeError as problem:
        raise Misconfigured(f"it is not JSON at line {problem.lineno}: {problem.msg}") from None
    except RecursionError:
        raise Misconfigured("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise Misconfigured("it holds no table of names and values")
    return cast("dict[str, Any]", found)


@dataclass(frozen=True, slots=True)
class JsonToken:
    """A token that is no white space, with its place in the text."""

    kind: str
    start: int
    end: int


@dataclass(slots=True)
class JsonMember:
    """A member of an object: the places of its key, its value and the comma after it."""

    name: str
    start: int
    # The end of the token before the key, which may be a comment.
    before: int
    after_line_comment: bool
    value: int = 0
    end: int = 0
    comma: int | None = None


@dataclass(slots=True)
class JsonObject:
    """An object in the text: the places of its braces and its members."""

    start: int
    close: int = 0
    members: list[JsonMember] = field(default_factory=list["JsonMember"])
    # The end of the last token before the closing brace, which may be a comment.
    last: int = 0

    def find(self, name: str) -> JsonMember | None:
        found = [member for member in self.members if member.name == name]
        if len(found) > 1:
            raise Misconfigured(f"it has {name!r:.80} twice")
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """Reads and edits the servers of a JSON file. Comments, order and spacing stay."""

    def read(self, text: str, section: Section) -> Entries:
        found: object = parse_json(text)
        for key in section:
            found = object_members(found).get(key)
        return dict(object_members(found))

    def put(self, text: str, section: Section, name: str, entry: Entry) -> str:
        """Return the text with this server added or replaced."""
        return self._put(text, section, name, entry, "")

    def put_back(self, text: str, section: Section, name: str, raw: str) -> str:
        """Return the text with a server that `take` has taken out."""
        return self._put(text, section, name, parse_json(raw), raw)

    def take(self, text: str, section: Section, name: str) -> tuple[str, str]:
        """Return the text without this server, and the server as it was written."""
        if name not in self.read(text, section):
            return text, ""
        inside = _find_object(text, section)
        member = inside.find(name) if inside else None
        if inside is None or member is None:
            raise Misconfigured("its form is not understood")
        edited = _without(text, inside, member)
        _check(text, edited, section, name, None)
        return edited, text[member.value : member.end]

    def is_empty(self, text: str, section: Section) -> bool:
        """Return whether only an empty section for servers is left."""
        if _COMMENT.sub(_kept, text) != text:
            return False
        nothing: dict[str, Any] = {}
        for key in reversed(section):
            nothing = {key: nothing}
        return parse_json(text) in ({}, nothing)

    def render(self, section: Section, name: str, entry: Entry) -> str:
        """Return the text that a user can paste into the file."""
        document: dict[str, Any] = {name: dict(entry)}
        for key in reversed(section):
            document = {key: document}
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"

    def _put(self, text: str, section: Section, name: str, entry: Entry, raw: str) -> str:
        edited = self._edited(text, section, name, entry, raw)
        _check(text, edited, section, name, entry)
        return edited

    def _edited(self, text: str, section: Section, name: str, entry: Entry, raw: str) -> str:
        newline = _newline(text)
        if not parse_json(text) and not plain_json(text.removeprefix("\ufeff")).strip():
            # An empty file, or one with nothing but comments.
            begun = text + newline * (not text.endswith(("\r", "\n")) and text.strip() != "")
            return begun + self.render(section, name, entry).replace("\n", newline)
        depth = len(section)
        while (inside := _find_object(text, section[:depth])) is None:
            depth -= 1
        first, *rest = *section[depth:], name
        member = inside.find(first)
        if member is None:
            value: object = dict(entry)
            for key in reversed(rest):
                value = {key: value}
            return _with_member(text, inside, first, value, "" if rest else raw)
        if rest:
            raise Misconfigured(f"{first} is no table in it")
        written = raw or _rendered(dict(entry), _indent_at(text, member.start), text)
        return text[: member.value] + written + text[member.end :]


def _check(before: str, after: str, section: Section, name: str, entry: Entry | None) -> None:
    """Compare the meaning of both texts. Raises Misconfigured if anything else differs."""
    wanted, found = parse_json(before), parse_json(after)
    inside = wanted
    for key in section:
        inside = inside.setdefault(key, {})
    if entry is None:
        inside.pop(name, None)
    else:
        inside[name] = dict(entry)
    if found != wanted:
        raise Misconfigured("its form is not understood")


def _tokens(text: str, start: int = 0) -> Iterator[JsonToken]:
    position = start
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Misconfigured(f"it is not JSON at line {text.count(chr(10), 0, position) + 1}")
        position = match.end()
        if match.lastgroup != "space":
            yield JsonToken(str(match.lastgroup), match.start(), position)


def _find_object(text: str, section: Section) -> JsonObject | None:
    """Return the object at this path, or None. Raises Misconfigured if a key is there twice."""
    found = _object_at(text, next(token.start for token in _tokens(text) if token.kind == "mark"))
    for key in section:
        member = found.find(key)
        if member is None or text[member.value] != "{":
            return None
        found = _object_at(text, member.value)
    return found


def _object_at(text: str, start: int) -> JsonObject:
    """Return the members of the object whose brace is at `start`, without looking into them."""
    found = JsonObject(start)
    depth, before, comment = 0, start + 1, ""
    for token in _tokens(text, start):
        is_comment = token.kind in ("line", "block")
        mark = text[token.start] if token.kind == "mark" else " "
        if mark in "}]" and depth == 1:
            found.close, found.last = token.start, before
            return found
        if depth == 1 and token.kind == "string" and _awaits_key(found):
            name = cast("str", json.loads(text[token.start : token.end], strict=False))
            found.members.append(JsonMember(name, token.start, before, comment == "line"))
        elif found.members and not is_comment:
            _take_token(found.members[-1], token, mark, depth)
        depth += (mark in "{[") - (mark in "}]")
        before, comment = token.end, token.kind if is_comment else ""
    raise Misconfigured("it ends before its last brace")


def _awaits_key(inside: JsonObject) -> bool:
    return not inside.members or inside.members[-1].comma is not None


def _take_token(member: JsonMember, token: JsonToken, mark: str, depth: int) -> None:
    """Take one token after the key of a member: the colon, a part of the value, or the comma."""
    if depth == 1 and mark == ",":
        member.comma = token.start
    elif depth == 1 and mark == ":" and not member.value:
        member.value = -1
    elif member.value == -1:
        member.value, member.end = token.start, token.end
    else:
        member.end = token.end


def _with_member(text: str, inside: JsonObject, name: str, value: object, raw: str) -> str:
    """Return the text with a new last member. `raw` is its value, if that is written already."""
    last = inside.members[-1] if inside.members else None
    has_lines = _LINE_END.search(text, inside.start, inside.close) is not None
    outer = _indent_at(text, inside.close)
    own = _indent_at(text, last.start) if last else outer + _unit(text)
    key = json.dumps(name, ensure_ascii=False) + ": "
    if has_lines or last is None:
        piece = _newline(text) + own + key + (raw or _rendered(value, own, text))
    else:
        piece = " " + key + (raw or json.dumps(value, ensure_ascii=False))
    if last is None:
        # Between braces on one line there is nothing to keep but comments.
        end = text[inside.last :] if has_lines else _newline(text) + outer + text[inside.close :]
        return text[: inside.last] + piece + end
    if last.comma is not None:
        return text[: inside.last] + piece + "," + text[inside.last :]
    return text[: last.end] + "," + text[last.end : inside.last] + piece + text[inside.last :]


def _without(text: str, inside: JsonObject, member: JsonMember) -> str:
    """Return the text without this member. The comments around it stay."""
    index = inside.members.index(member)
    end = member.end if member.comma is None else member.comma + 1
    # There may be comments between the value and its comma.
    kept = text[member.end : end].rstrip(",")
    around = text[inside.start + 1 : member.start] + kept + text[end : inside.close]
    if len(inside.members) == 1 and not around.strip():
        return text[: inside.start + 1] + text[inside.close :]
    start = member.before
    following = text[end : inside.close].lstrip(" \t")
    if not following.startswith(("\r", "\n")) and (index == 0 or member.after_line_comment):
        # What follows on the same line takes the place of the member.
        start, end = member.start, inside.close - len(following)
    before = text[:start]
    if member.comma is None and index > 0:
        comma = cast("int", inside.members[index - 1].comma)
        before = text[:comma] + text[comma + 1 : start]
    return before + kept + text[end:]


def _rendered(value: object, indent: str, text: str) -> str:
    """Return a value over several lines, with the indentation and line ends of the text."""
    lines = json.dumps(value, indent=_unit(text), ensure_ascii=False).split("\n")
    return (_newline(text) + indent).join(lines)


def _unit(text: str) -> str:
    found = _INDENT.search(text)
    return found[1] if found else "  "


def _newline(text: str) -> str:
    if "\r\n" in text:
        return "\r\n"
    return "\r" if "\r" in text and "\n" not in text else "\n"


def _indent_at(text: str, position: int) -> str:
    """Return the white space at the beginning of the line."""
    begin = max(text.rfind("\n", 0, position), text.rfind("\r", 0, position)) + 1
    line = text[begin:position].removeprefix("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))]
