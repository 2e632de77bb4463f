"""What a tool is about, read from its definition: its words, its categories and its keywords.

Rule 1: all of it is its server's text. It is cut to size, and nothing but finding follows from it.
Rule 2: a category is a path, as `filesystem/read`: what it is about, and what is done with it. One
        that the definition names comes first; permissions it needs and its own words add theirs.
Rule 3: what cannot be read is a tool with a name and nothing else.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from comity.rules.catalogue import CATEGORY_KEY, LONGEST_TAG, read_tool
from comity.rules.search_words import Field, words
from comity.rules.signatures import TAGS_KEY
from comity.rules.stems import stem
from comity.wire.security import MIRROR

MOST_PARAMETERS: Final = 64
LONGEST_PARAMETER: Final = 64
LONGEST_PARAMETER_TEXT: Final = 300
LONGEST_TEXT: Final = 200
MOST_CATEGORIES: Final = 4
MOST_KEYWORDS: Final = 16
DEEPEST: Final = 4
ELSEWHERE: Final = "other"

_TOPICS: Final[Mapping[str, str]] = {
    "filesystem": "file files folder directory path disk filesystem",
    "web": "web url http website webpage page browser crawl scrape html fetch internet",
    "database": "sql database table row schema query postgres sqlite mysql mongo redis",
    "code": "code git commit branch repository repo github gitlab pull merge lint compile test",
    "shell": "shell terminal command process bash script execute",
    "mail": "mail email inbox smtp gmail message",
    "chat": "chat slack discord telegram whatsapp channel conversation",
    "calendar": "calendar event meeting schedule appointment reminder",
    "time": "time date timezone clock timer",
    "maps": "map location route geocode distance address latitude longitude navigation place",
    "travel": "flight hotel booking trip travel airport train ticket rental",
    "weather": "weather forecast temperature climate rain humidity wind",
    "finance": "stock price finance market currency crypto invest portfolio tax loan interest bank",
    "shopping": "product cart order shop price store purchase checkout buy",
    "documents": "document pdf word markdown page note notion excel spreadsheet sheet slide csv",
    "media": "image video audio music song photo picture film movie play podcast",
    "text": "text translate language summarize sentiment spell grammar",
    "mathematics": "calculate math equation area triangle matrix statistic factorial sum mean",
    "science": "chemistry physics biology gene protein molecule species experiment paper research",
    "health": "health medical patient drug disease hospital diet fitness",
    "news": "news article headline report journal",
    "sport": "sport game match team player score league",
    "people": "user contact profile person employee customer account",
    "memory": "memory knowledge entity graph recall remember store",
    "cloud": "cloud server kubernetes docker container deploy cluster instance aws azure",
    "security": "security password vulnerability encrypt token secret scan permission",
    "data": "data dataset chart plot visualize analyze json export import",
    "tasks": "task todo project issue ticket board sprint",
}
_DEEDS: Final[Mapping[str, str]] = {
    "read": "read get fetch list show view open load download retrieve describe browse check",
    "search": "search find query lookup discover filter",
    "write": "write create add set update edit save insert append upload put make move rename",
    "delete": "delete remove clear drop erase purge cancel",
    "send": "send post publish reply notify share message book order",
    "run": "run execute call invoke start stop launch deploy restart",
    "calculate": "calculate compute analyze estimate convert predict compare solve evaluate count",
}
_PATH: Final = re.compile(r"\s*(?:/|>|::)\s*")
_PLAIN: Final = re.compile(r"[^\w-]+", re.UNICODE)

type Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is searched of one tool."""

    title: str = ""
    description: str = ""
    parameters: Parameters = ()
    categories: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


def facts_of(name: str, definition: bytes) -> Facts:
    """What a definition says of the tool that its server calls `name`."""
    tool = read_tool(definition)
    annotations = _table(tool.get("annotations"))
    title = _text(tool.get("title")) or _text(annotations.get("title"))
    description = _text(tool.get("description"))[: Field.DESCRIPTION.most]
    return Facts(
        title[: Field.TITLE.most],
        description,
        _parameters(_table(_table(tool.get("inputSchema")).get("properties"))),
        categories_of(name, description, tool),
        _keywords(tool),
    )


def texts_of(
    name: str, facts: Facts, server_title: str, server_text: str
) -> Iterator[tuple[Field, str]]:
    """The fields of a tool by which its words weigh."""
    yield Field.NAME, name
    yield Field.TITLE, facts.title
    yield Field.DESCRIPTION, facts.description
    yield Field.KEYWORDS, " ".join(facts.keywords)
    yield Field.PARAMETERS, " ".join(name for name, _ in facts.parameters)
    yield Field.PARAMETER_TEXTS, " ".join(text for _, text in facts.parameters)
    yield Field.SERVER_TITLE, server_title
    yield Field.SERVER_TEXT, server_text


def categories_of(name: str, description: str, tool: Mapping[str, Any]) -> tuple[str, ...]:
    """The categories of a tool, the surest first."""
    said = _table(tool.get("_meta")).get(CATEGORY_KEY)
    declared = [said] if isinstance(said, str) else _texts(said)
    needs = permissions_of(tool)
    found = [
        *(category_of(each) for each in declared[:MOST_CATEGORIES]),
        *(category_path(each.split(".")) for each in needs[:MOST_CATEGORIES]),
        _guessed(name, description),
    ]
    return tuple(dict.fromkeys(each for each in found if each))[:MOST_CATEGORIES]


def permissions_of(tool: Mapping[str, Any]) -> tuple[str, ...]:
    """What a tool says that it needs: testimony, for those who read it. (MGP §4)"""
    security = _table(tool.get("security")) or _table(_table(tool.get("_meta")).get(MIRROR))
    return tuple(_texts(security.get("permissions_required")))


def category_of(text: str) -> str:
    """The category that a text names, in the one way in which they are written here."""
    return category_path(_PATH.split(text[: DEEPEST * LONGEST_TAG]))


def category_path(parts: Iterable[str]) -> str:
    """A category as it is written here: small letters, a stroke between what holds and is held."""
    plain = (_PLAIN.sub("-", part.casefold()[:LONGEST_TAG]).strip("-") for part in parts)
    return "/".join([part for part in plain if part][:DEEPEST])


def holders_of(category: str) -> Iterator[str]:
    """A category, and those in which it lies, the widest last."""
    while category:
        yield category
        category = category.rpartition("/")[0]


def _guessed(name: str, description: str) -> str:
    named, told = words(name[: Field.NAME.most]), words(description[:300])
    counts: dict[str, int] = {}
    for weight, said in ((3, named), (1, told)):
        for word in dict.fromkeys(said):
            for topic in TOPIC_OF.get(word, ()):
                counts[topic] = counts.get(topic, 0) + weight
    topic = min(counts, key=lambda each: (-counts[each], each), default=ELSEWHERE)
    deed = next((DEED_OF[word] for word in (*named, *told[:3]) if word in DEED_OF), "")
    return f"{topic}/{deed}" if deed and deed != topic else topic


def _by_stem(table: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for topic, said in table.items():
        for word in dict.fromkeys(map(stem, said.split())):
            found[word] = (*found.get(word, ()), topic)
    return found


TOPIC_OF: Final = _by_stem(_TOPICS)
DEED_OF: Final = {word: deeds[0] for word, deeds in _by_stem(_DEEDS).items()}


def _parameters(properties: Mapping[str, Any]) -> Parameters:
    found: list[tuple[str, str]] = []
    for name, schema in properties.items():
        if len(found) == MOST_PARAMETERS:
            break
        text = _text(_table(schema).get("description"))
        found.append((name[:LONGEST_PARAMETER], text[:LONGEST_PARAMETER_TEXT]))
    return tuple(found)


def _keywords(tool: Mapping[str, Any]) -> tuple[str, ...]:
    meta = _table(tool.get("_meta"))
    said = (*_texts(meta.get(TAGS_KEY)), *_texts(meta.get(KEYWORDS_KEY)))
    plain = (" ".join(each[:LONGEST_TAG].split()) for each in said)
    return tuple(dict.fromkeys(each for each in plain if each))[:MOST_KEYWORDS]


KEYWORDS_KEY: Final = "dev.comity/keywords"


def _table(said: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _texts(said: object) -> Sequence[str]:
    listed = cast("list[object]", said) if isinstance(said, list) else []
    return [each[:LONGEST_TEXT] for each in listed[:MOST_KEYWORDS] if isinstance(each, str)]


def _text(said: object) -> str:
    return said if isinstance(said, str) else ""
