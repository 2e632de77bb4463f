"""Turns the text of a tool or a query into search terms, categories and keywords."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, cast

from comity.catalog.catalog import CATEGORY_KEY, MAX_TAG_LENGTH, read_tool
from comity.catalog.signatures import TAGS_KEY
from comity.policy.risk import SECURITY_META_KEY

_VOWELS: Final = "aeiouy"
_R1: Final = re.compile(r"^(?:gener|commun|arsen)|^.*?[aeiouy][^aeiouy]")
_REGION: Final = re.compile(r".*?[aeiouy][^aeiouy]")
_SHORT_END: Final = re.compile(r"(?:[^aeiouy][aeiouy][^aeiouywxY]|^[aeiouy][^aeiouy])$")
_HAS_VOWEL: Final = re.compile(r"[aeiouy]")
_DOUBLE: Final = re.compile(r"(?:bb|dd|ff|gg|mm|nn|pp|rr|tt)$")

_IRREGULAR_STEMS: Final = {
    "skis": "ski",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "idly": "idl",
    "gently": "gentl",
    "only": "onli",
    "singly": "singl",
    "sky": "sky",
    "news": "news",
    "atlas": "atlas",
    "bias": "bias",
    "proceed": "proceed",
    "exceed": "exceed",
    "succeed": "succeed",
}
_STEP_2: Final = (
    ("ization", "ize"),
    ("ational", "ate"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("iveness", "ive"),
    ("tional", "tion"),
    ("biliti", "ble"),
    ("lessli", "less"),
    ("entli", "ent"),
    ("ation", "ate"),
    ("alism", "al"),
    ("aliti", "al"),
    ("ousli", "ous"),
    ("iviti", "ive"),
    ("fulli", "ful"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("abli", "able"),
    ("izer", "ize"),
    ("ator", "ate"),
    ("alli", "al"),
    ("bli", "ble"),
)
_STEP_3: Final = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("alize", "al"),
    ("icate", "ic"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ness", ""),
    ("ful", ""),
)
_STEP_4: Final = (
    *("ement", "ance", "ence", "able", "ible", "ment", "ant", "ent", "ism", "ate", "iti"),
    *("ous", "ive", "ize", "al", "er", "ic"),
)


def stem_word(word: str) -> str:
    """Return the English stem of a lower-case word."""
    if len(word) <= 2 or not word.isascii():
        return word
    if word in _IRREGULAR_STEMS:
        return _IRREGULAR_STEMS[word]
    marked = _with_consonant_y(word)
    found = _R1.match(marked)
    first = found.end() if found else len(marked)
    further = _REGION.match(marked, first)
    second = further.end() if further else len(marked)
    for step in _STEPS:
        marked = step(marked, first, second)
    return marked.replace("Y", "y")


def _with_consonant_y(word: str) -> str:
    if "y" not in word:
        return word
    letters = list(word)
    for at, letter in enumerate(letters):
        if letter == "y" and (at == 0 or letters[at - 1] in _VOWELS):
            letters[at] = "Y"
    return "".join(letters)


def _plural(word: str, first: int, second: int) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith(("ied", "ies")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")) and _HAS_VOWEL.search(word[:-2]):
        return word[:-1]
    return word


def _past(word: str, first: int, second: int) -> str:
    for end in ("eedly", "eed"):
        if word.endswith(end):
            return word[: -len(end)] + "ee" if len(word) - len(end) >= first else word
    for end in ("ingly", "edly", "ing", "ed"):
        if word.endswith(end):
            kept = word[: -len(end)]
            return _mended(kept, first) if _HAS_VOWEL.search(kept) else word
    return word


def _mended(kept: str, first: int) -> str:
    if kept.endswith(("at", "bl", "iz")):
        return kept + "e"
    if _DOUBLE.search(kept):
        return kept[:-1]
    is_short = first >= len(kept) and _SHORT_END.search(kept) is not None
    return kept + "e" if is_short else kept


def _final_y(word: str, first: int, second: int) -> str:
    if len(word) > 2 and word[-1] in "yY" and word[-2] not in _VOWELS:
        return word[:-1] + "i"
    return word


def _long_ends(word: str, first: int, second: int) -> str:
    for end, instead in _STEP_2:
        if word.endswith(end):
            return word[: -len(end)] + instead if len(word) - len(end) >= first else word
    if word.endswith("logi") and len(word) - 3 >= first:
        return word[:-1]
    if word.endswith("li") and len(word) - 2 >= first and word[-3:-2] in tuple("cdeghkmnrt"):
        return word[:-2]
    return word


def _middle_ends(word: str, first: int, second: int) -> str:
    for end, instead in _STEP_3:
        if word.endswith(end):
            return word[: -len(end)] + instead if len(word) - len(end) >= first else word
    if word.endswith("ative") and len(word) - 5 >= second:
        return word[:-5]
    return word


def _short_ends(word: str, first: int, second: int) -> str:
    for end in _STEP_4:
        if word.endswith(end):
            return word[: -len(end)] if len(word) - len(end) >= second else word
    if word.endswith(("sion", "tion")) and len(word) - 3 >= second:
        return word[:-3]
    return word


def _last_letter(word: str, first: int, second: int) -> str:
    if word.endswith("e"):
        at = len(word) - 1
        is_loose = at >= first and not _SHORT_END.search(word[:-1])
        return word[:-1] if at >= second or is_loose else word
    return word[:-1] if word.endswith("ll") and len(word) - 1 >= second else word


_STEPS: Final[tuple[Callable[[str, int, int], str], ...]] = (
    *(_plural, _past, _final_y, _long_ends, _middle_ends, _short_ends, _last_letter),
)


MAX_TERMS: Final = 256
"""The number of different words that are indexed for one tool."""

MAX_WORD_LENGTH: Final = 40
MAX_REPETITIONS: Final = 3
"""The most occurrences of a word that count in one field."""

SATURATION: Final = 1.2
"""BM25's k1: how soon further occurrences of a word stop adding weight."""

MAX_CACHED_WORDS: Final = 65_536
IMPACT_SCALE: Final = 16_384
"""The impact that means 1. Impacts are integers, so that they are equal on every machine."""

_WORD_PART_PATTERN: Final = re.compile(
    r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+|[^\W\dA-Za-z_]+", re.UNICODE
)
_UNSPACED_SCRIPT_PATTERN: Final = re.compile(
    r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
)
_STOP_WORD_TEXT: Final = (
    "a an and are as at be by can do does for from had has have i if in into is it its me my of "
    "on or our out so such than that the their them then there these they this to was we were "
    "what when where which who will with would you your"
)
_STOP_WORDS: Final = frozenset(_STOP_WORD_TEXT.split())


class SearchField(Enum):
    """The fields of a tool: weight, usual length, influence of length, and length limit."""

    NAME = (3.0, 3.0, 0.4, 200)
    TITLE = (1.0, 3.0, 0.5, 200)
    DESCRIPTION = (1.5, 20.0, 0.6, 2_000)
    KEYWORDS = (1.0, 5.0, 0.5, 800)
    PARAMETERS = (0.5, 6.0, 0.5, 2_000)
    PARAMETER_TEXTS = (0.3, 40.0, 0.6, 4_000)
    SERVER_TITLE = (1.0, 3.0, 0.4, 200)
    SERVER_TEXT = (0.3, 20.0, 0.6, 1_000)

    def __init__(self, weight: float, usual: float, slope: float, most: int) -> None:
        self.weight = weight
        self.usual = usual
        self.slope = slope
        # The number of characters that are read.
        self.most = most


def stem_words(text: str) -> list[str]:
    """Return the stems of a text in order, without the commonest English words."""
    if not text.isascii():
        text = _without_marks(text)
    found: list[str] = []
    for part in _WORD_PART_PATTERN.findall(text):
        word = _stem_part(part)
        if word:
            found.append(word)
        elif word is None:
            found.extend(_pairs(part.casefold()))
    return found


@lru_cache(maxsize=MAX_CACHED_WORDS)
def _stem_part(part: str) -> str | None:
    """Return the stem of a part; "" for a common word, None for a script without spaces."""
    word = part.casefold()
    if not word.isascii() and _UNSPACED_SCRIPT_PATTERN.search(word):
        return None
    return "" if word in _STOP_WORDS else stem_word(word[:MAX_WORD_LENGTH])


def split_name(name: str) -> str:
    """Return a name as separate words in lower case: `readFile` becomes `read file`."""
    return " ".join(_WORD_PART_PATTERN.findall(name)).casefold()


def word_impacts(fields: Iterable[tuple[SearchField, str]]) -> dict[str, int]:
    """Return the weight of each word of a tool over all its fields."""
    weights: dict[str, float] = {}
    for field, text in fields:
        counts: dict[str, int] = {}
        said = stem_words(text[: field.most])
        for word in said:
            counts[word] = counts.get(word, 0) + 1
        # Each word of a long field carries less information.
        length = 1 - field.slope + field.slope * len(said) / field.usual
        for word, count in counts.items():
            weight = field.weight * min(count, MAX_REPETITIONS) / length
            weights[word] = weights.get(word, 0.0) + weight
    if len(weights) > MAX_TERMS:
        weights = dict(sorted(weights.items(), key=_weight_key)[:MAX_TERMS])
    return {word: saturate_weight(weight) for word, weight in weights.items()}


def saturate_weight(weight: float) -> int:
    """Return the impact of a word of that weight; at most MOST_IMPACT."""
    return max(1, round(IMPACT_SCALE * weight * (SATURATION + 1) / (SATURATION + weight)))


MAX_IMPACT: Final = round(IMPACT_SCALE * (SATURATION + 1))


def compact_name(text: str) -> str:
    """Return a name without separators and case, to compare names."""
    text = text if text.isascii() else _without_marks(text)
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _weight_key(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]


def _without_marks(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text)
    if not plain.isascii():
        plain = "".join(each for each in plain if not unicodedata.combining(each))
        # NFKD splits Hangul syllables into letters; NFC joins them again.
        plain = unicodedata.normalize("NFC", plain)
    return plain


def _pairs(run: str) -> Iterable[str]:
    """Return all pairs of adjacent characters, the search terms of scripts without spaces."""
    return (run[at : at + 2] for at in range(max(1, len(run) - 1)))


type Impacts = Mapping[str, int]


MAX_SENTENCES: Final = 8
"""Sentences that are searched separately; each costs as much as a query."""

MIN_SENTENCE_WORDS: Final = 3
"""In words. A shorter sentence, such as "Thank you.", says too little by itself."""

_SENTENCE_END_PATTERN: Final = re.compile(r"(?<=[.?!;])\s+|(?<=[。？！；])\s*|\n+")  # noqa: RUF001 - their full stops
# In scripts without spaces, this many characters say as much as SHORTEST words.
_MIN_UNSPACED_LETTERS: Final = 6


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text; empty if there is only one."""
    parts = [part.strip() for part in _SENTENCE_END_PATTERN.split(text)]
    found = [part for part in parts if _is_meaningful(part)][:MAX_SENTENCES]
    return found if len(found) > 1 else []


def _is_meaningful(part: str) -> bool:
    return len(part.split()) >= MIN_SENTENCE_WORDS or (
        not part.isascii() and len(part) >= _MIN_UNSPACED_LETTERS and " " not in part
    )


MAX_PARAMETERS: Final = 64
MAX_PARAMETER_LENGTH: Final = 64
MAX_PARAMETER_TEXT_LENGTH: Final = 300
MAX_TEXT_LENGTH: Final = 200
MAX_CATEGORIES: Final = 4
MAX_KEYWORDS: Final = 16
MAX_CATEGORY_DEPTH: Final = 4
DEFAULT_CATEGORY: Final = "other"

_TOPIC_WORDS: Final[Mapping[str, str]] = {
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
_ACTION_WORDS: Final[Mapping[str, str]] = {
    "read": "read get fetch list show view open load download retrieve describe browse check",
    "search": "search find query lookup discover filter",
    "write": "write create add set update edit save insert append upload put make move rename",
    "delete": "delete remove clear drop erase purge cancel",
    "send": "send post publish reply notify share message book order",
    "run": "run execute call invoke start stop launch deploy restart",
    "calculate": "calculate compute analyze estimate convert predict compare solve evaluate count",
}
_PATH_SEPARATOR_PATTERN: Final = re.compile(r"\s*(?:/|>|::)\s*")
_UNSAFE_PATTERN: Final = re.compile(r"[^\w-]+", re.UNICODE)

type Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """The searchable facts about one tool."""

    title: str = ""
    description: str = ""
    parameters: Parameters = ()
    categories: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


def extract_facts(name: str, definition: bytes) -> ToolFacts:
    """Return the facts in the definition of the tool that its server calls `name`."""
    tool = read_tool(definition)
    annotations = _as_dict(tool.get("annotations"))
    title = _as_text(tool.get("title")) or _as_text(annotations.get("title"))
    description = _as_text(tool.get("description"))[: SearchField.DESCRIPTION.most]
    return ToolFacts(
        title[: SearchField.TITLE.most],
        description,
        _parameters(_as_dict(_as_dict(tool.get("inputSchema")).get("properties"))),
        categories_of(name, description, tool),
        _keywords(tool),
    )


def field_texts(
    name: str, facts: ToolFacts, server_title: str, server_text: str
) -> Iterator[tuple[SearchField, str]]:
    """Yield the text of each field of a tool."""
    yield SearchField.NAME, name
    yield SearchField.TITLE, facts.title
    yield SearchField.DESCRIPTION, facts.description
    yield SearchField.KEYWORDS, " ".join(facts.keywords)
    yield SearchField.PARAMETERS, " ".join(name for name, _ in facts.parameters)
    yield SearchField.PARAMETER_TEXTS, " ".join(text for _, text in facts.parameters)
    yield SearchField.SERVER_TITLE, server_title
    yield SearchField.SERVER_TEXT, server_text


def categories_of(name: str, description: str, tool: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the categories of a tool: declared ones, those of its permissions, then a guess."""
    said = _as_dict(tool.get("_meta")).get(CATEGORY_KEY)
    declared = [said] if isinstance(said, str) else _as_texts(said)
    needs = permissions_of(tool)
    found = [
        *(category_of(each) for each in declared[:MAX_CATEGORIES]),
        *(category_path(each.split(".")) for each in needs[:MAX_CATEGORIES]),
        _guess_category(name, description),
    ]
    return tuple(dict.fromkeys(each for each in found if each))[:MAX_CATEGORIES]


def permissions_of(tool: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the permissions that a tool declares; the declaration is not verified. (MGP §4)"""
    security = _as_dict(tool.get("security")) or _as_dict(
        _as_dict(tool.get("_meta")).get(SECURITY_META_KEY)
    )
    return tuple(_as_texts(security.get("permissions_required")))


def category_of(text: str) -> str:
    """Return the category that a text names, in canonical form."""
    return category_path(_PATH_SEPARATOR_PATTERN.split(text[: MAX_CATEGORY_DEPTH * MAX_TAG_LENGTH]))


def category_path(parts: Iterable[str]) -> str:
    """Return the canonical form of a category: lower case, with `/` between the levels."""
    plain = (
        _UNSAFE_PATTERN.sub("-", part.casefold()[:MAX_TAG_LENGTH]).strip("-") for part in parts
    )
    return "/".join([part for part in plain if part][:MAX_CATEGORY_DEPTH])


def category_and_parents(category: str) -> Iterator[str]:
    """Yield a category and its parents, the widest last."""
    while category:
        yield category
        category = category.rpartition("/")[0]


def _guess_category(name: str, description: str) -> str:
    named, told = stem_words(name[: SearchField.NAME.most]), stem_words(description[:300])
    counts: dict[str, int] = {}
    for weight, said in ((3, named), (1, told)):
        for word in dict.fromkeys(said):
            for topic in TOPICS_BY_STEM.get(word, ()):
                counts[topic] = counts.get(topic, 0) + weight
    topic = min(counts, key=lambda each: (-counts[each], each), default=DEFAULT_CATEGORY)
    deed = next(
        (ACTION_BY_STEM[word] for word in (*named, *told[:3]) if word in ACTION_BY_STEM), ""
    )
    return f"{topic}/{deed}" if deed and deed != topic else topic


def _by_stem(table: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for topic, said in table.items():
        for word in dict.fromkeys(map(stem_word, said.split())):
            found[word] = (*found.get(word, ()), topic)
    return found


TOPICS_BY_STEM: Final = _by_stem(_TOPIC_WORDS)
ACTION_BY_STEM: Final = {word: deeds[0] for word, deeds in _by_stem(_ACTION_WORDS).items()}


def _parameters(properties: Mapping[str, Any]) -> Parameters:
    found: list[tuple[str, str]] = []
    for name, schema in properties.items():
        if len(found) == MAX_PARAMETERS:
            break
        text = _as_text(_as_dict(schema).get("description"))
        found.append((name[:MAX_PARAMETER_LENGTH], text[:MAX_PARAMETER_TEXT_LENGTH]))
    return tuple(found)


def _keywords(tool: Mapping[str, Any]) -> tuple[str, ...]:
    meta = _as_dict(tool.get("_meta"))
    said = (*_as_texts(meta.get(TAGS_KEY)), *_as_texts(meta.get(KEYWORDS_KEY)))
    plain = (" ".join(each[:MAX_TAG_LENGTH].split()) for each in said)
    return tuple(dict.fromkeys(each for each in plain if each))[:MAX_KEYWORDS]


KEYWORDS_KEY: Final = "dev.comity/keywords"


def _as_dict(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _as_texts(value: object) -> Sequence[str]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [each[:MAX_TEXT_LENGTH] for each in listed[:MAX_KEYWORDS] if isinstance(each, str)]


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""
