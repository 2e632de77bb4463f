"""Tool search: order of results, visibility by grants, the index that follows the catalog."""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.catalog.catalog import Catalog
from comity.catalog.search import tool_index, visibility
from comity.catalog.search.ranking import SearchQuery, SearchStrategy
from comity.catalog.search.service import SearchResult, ToolSearch
from comity.catalog.search.tool_index import (
    SearchDocument,
    ServerDescription,
    SimilarityResult,
    ToolAvailability,
    ToolIndex,
)
from comity.errors import Unavailable
from comity.gateway.pipeline import CallGate
from comity.mcp.actors import CALL, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.protocol import public_name
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.risk import Risk
from comity.policy.snapshot import GrantSnapshot, SnapshotFreshness
from tests.pace import here
from tests.support.cases import loop_over
from tests.support.clock import ManualClock

ME = Actor("agent:me")
TOOLS: dict[str, dict[str, str]] = {
    "files": {
        "read_file": "Read what a file holds, by its path.",
        "write_file": "Write text to a file.",
        "search_files": "Find files whose names fit a pattern.",
    },
    "mail": {
        "send_mail": "Send an email to somebody.",
        "list_mails": "List the mails of an inbox.",
    },
    "weather": {"get_forecast": "Give the weather forecast for a city."},
}


def offer(server: str, name: str, description: str = "", **more: Any) -> CatalogEntry:
    definition = {"name": public_name(server, name), "description": description, **more}
    key = public_name(server, name)
    return CatalogEntry(key, server, name, json.dumps(definition).encode())


@dataclass
class Vectors:
    """Meanings as a test says them: by the name of a tool, how near it is to any query."""

    near_by_name: dict[str, float]
    complete: bool = True
    broken: bool = False
    servers: dict[str, float] = field(default_factory=dict[str, float])
    held: dict[int, SearchDocument] = field(default_factory=dict[int, SearchDocument])

    @property
    def name(self) -> str:
        return "made-up"

    @property
    def is_warming(self) -> bool:
        return False

    async def wait_while_warming(self, timeout: timedelta) -> None: ...

    @property
    def is_complete(self) -> bool:
        return self.complete

    def put(self, slot: int, tool: SearchDocument) -> None:
        assert slot not in self.held
        self.held[slot] = tool

    def remove(self, slot: int) -> None:
        del self.held[slot]

    async def find_nearest(
        self, query: str, visible_mask: bytes | None, limit: int, also: Sequence[int] = ()
    ) -> SimilarityResult:
        if self.broken:
            raise Unavailable("no model")
        known = {
            slot: self.near_by_name[tool.name]
            for slot, tool in self.held.items()
            if tool.name in self.near_by_name and (visible_mask is None or visible_mask[slot])
        }
        best = sorted(known.items(), key=lambda item: -item[1])[:limit]
        least = min(known.values(), default=0.0)
        return SimilarityResult(best, [known.get(slot) for slot in also], least, self.servers)

    async def close(self) -> None: ...


class SearchSetup:
    """A finder before three servers, and who may call what of them."""

    def __init__(
        self,
        *grants: Grant,
        tools: Any = None,
        vectors: Vectors | None = None,
        about: Mapping[str, ServerDescription] | None = None,
        status: Mapping[str, str] | None = None,
        certainty: SnapshotFreshness | None = None,
    ) -> None:
        self.catalog = Catalog()
        self.clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        self.grants = GrantSnapshot(GrantSet.from_grants(grants), self.clock, certainty)
        self.gate = CallGate(self.catalog, self.grants, tools)
        self.vectors = vectors
        self.about = dict(about or {})
        states = status or {}
        self.finder = ToolSearch(
            self.gate,
            vectors,
            lambda server: self.about.get(server, ServerDescription(server)),
            lambda server: states.get(server, "connected"),
        )
        for server, offered in TOOLS.items():
            self.offer(server, **offered)

    def offer(self, server: str, **tools: str) -> None:
        offers = [offer(server, name, about) for name, about in tools.items()]
        self.catalog.put(server, EntryKind.TOOL, offers)

    def grant(self, *grants: Grant) -> None:
        self.grants.replace(GrantSet.from_grants(grants))

    async def find(self, text: str, actor: Actor = ME, **more: Any) -> SearchResult:
        return await self.finder.find(actor, SearchQuery(text, **more))

    async def names(self, text: str, actor: Actor = ME, **more: Any) -> list[str]:
        return [found.entry.name for found in (await self.find(text, actor, **more)).hits]

    async def words(self, text: str, **more: Any) -> list[str]:
        return await self.names(text, strategy=SearchStrategy.KEYWORD, **more)


def allowed(target: str, party: str = ME.party, **more: Any) -> Grant:
    return Grant(party, CALL, target, Effect.ALLOW, **more)


def denied(target: str, party: str = ME.party, **more: Any) -> Grant:
    return Grant(party, CALL, target, Effect.DENY, **more)


EVERYTHING = allowed("*/*")


@loop_over(
    ("text", "first"),
    [
        ("read the contents of a file", "read_file"),
        ("what will the weather be in this city", "get_forecast"),
        ("read_file", "read_file"),
        ("files__search_files", "search_files"),
        ("sendMail", "send_mail"),
        ("forecsat", "get_forecast"),
        ("wether", "get_forecast"),
        ("forec", "get_forecast"),
        # The server of spam repeats these words without end.
        ("weather forecast for a city", "get_forecast"),
    ],
)
async def test_words_find_a_tool_by_name_by_description_and_mistyped(text: str, first: str) -> None:
    search = SearchSetup(EVERYTHING)
    search.offer("spam", buy="weather forecast city " * 5_000)
    assert (await search.words(text))[0] == first


async def test_the_very_name_comes_first_and_then_names_that_begin_so() -> None:
    search = SearchSetup(EVERYTHING)
    search.offer("other", search="Anything.", search_web="Pages.", find="search search web search")
    found = await search.find("search", strategy=SearchStrategy.KEYWORD)
    assert [each.entry.name for each in found.hits[:3]] == ["search", "search_files", "search_web"]
    assert found.hits[0].score == 1.0
    assert found.hits[-1].entry.name == "find"


async def test_scores_fall_lie_within_one_and_are_higher_where_more_was_found() -> None:
    search = SearchSetup(EVERYTHING)
    good = (await search.find("read contents file", strategy=SearchStrategy.KEYWORD)).hits
    poor = (await search.find("read quantum poetry aloud", strategy=SearchStrategy.KEYWORD)).hits
    scores = [each.score for each in good]
    assert scores == sorted(scores, reverse=True)
    assert 1 >= scores[0] > poor[0].score >= 0


async def test_ties_are_by_key_and_the_same_question_has_the_same_answer() -> None:
    search = SearchSetup(EVERYTHING)
    for server in ("zebra", "ape", "mole"):
        search.offer(server, ping="Say something back.")
    for _ in range(2):
        found = await search.find("say something back", strategy=SearchStrategy.KEYWORD)
        assert [each.entry.server for each in found.hits] == ["ape", "mole", "zebra"]
        search.offer("bear", hunt="Nothing to do with it.")


@loop_over(
    "vectors",
    [None, Vectors({"send_mail": 0.5}, complete=False), Vectors({"send_mail": 0.9}, broken=True)],
)
async def test_words_stand_in_for_missing_vectors_and_the_answer_says_so(
    vectors: Vectors | None,
) -> None:
    search = SearchSetup(EVERYTHING, vectors=vectors)
    found = await search.find("read the contents of a file")
    assert found.strategy is SearchStrategy.HYBRID
    assert found.fallback is SearchStrategy.KEYWORD
    assert found.hits[0].entry.name == "read_file"
    assert (await search.find("read", strategy=SearchStrategy.KEYWORD)).fallback is None


async def test_meaning_finds_what_shares_no_word() -> None:
    search = SearchSetup(EVERYTHING, vectors=Vectors({"get_forecast": 0.8, "send_mail": 0.1}))
    found = await search.find("shall I take an umbrella", strategy=SearchStrategy.SEMANTIC)
    assert found.hits[0].entry.name == "get_forecast"
    assert found.hits[0].score_parts == {"meaning": 1.0}
    assert found.fallback is None


async def test_words_and_meaning_both_count_in_a_hybrid_search() -> None:
    near = {"read_file": 0.5, "send_mail": 0.6, "list_mails": 0.1}
    search = SearchSetup(EVERYTHING, vectors=Vectors(near))
    found = await search.find("read the contents")
    assert found.hits[0].entry.name == "read_file"
    assert found.hits[0].score_parts == {"words": 1.0, "meaning": 0.8}
    assert found.hits[1].entry.name == "send_mail"


async def test_what_a_server_says_of_itself_counts_where_it_says_enough() -> None:
    about = {
        "files": ServerDescription("files", "Everything that lies on this machine"),
        "mail": ServerDescription("mail", "Mail."),
    }
    vectors = Vectors({"read_file": 0.5, "send_mail": 0.5}, servers={"files": 0.5, "mail": 0.9})
    search = SearchSetup(EVERYTHING, vectors=vectors, about=about)
    found = await search.find("umbrella")
    assert [each.entry.name for each in found.hits] == ["read_file", "send_mail"]
    assert found.hits[0].score_parts["server"] == 0.1
    assert "server" not in found.hits[1].score_parts


async def test_category_is_found_by_name_with_what_is_below_it_or_by_words() -> None:
    search = SearchSetup(EVERYTHING)
    for text, names in (
        ("filesystem", ["read_file", "search_files", "write_file"]),
        ("filesystem/read", ["read_file"]),
        ("filesystem > write", ["write_file"]),
        ("the weather today", ["get_forecast"]),
    ):
        found = await search.names(text, strategy=SearchStrategy.CATEGORY)
        assert sorted(found) == names


async def test_filters_leave_out_before_anything_is_ranked_or_counted() -> None:
    search = SearchSetup(EVERYTHING, status={"mail": "error"})
    by_category = await search.find("file mail", categories=("mail",))
    assert {each.entry.server for each in by_category.hits} == {"mail"}
    assert by_category.total == 2
    by_status = await search.find("file mail", status="connected")
    assert by_status.total == 4
    assert "mail" not in {each.entry.server for each in by_status.hits}
    by_server = await search.find("file mail", servers=("mail", "nobody"), status="error")
    assert by_server.total == 2


async def test_several_searches_are_answered_by_turns() -> None:
    search = SearchSetup(EVERYTHING)
    queries = [
        SearchQuery("read file", most=3),
        SearchQuery("send mail", most=3),
        SearchQuery("send mail", most=3),
    ]
    found = await search.finder.find_all(ME, queries)
    assert [each.entry.name for each in found.hits[:2]] == ["read_file", "send_mail"]
    assert len(found.hits) == 3
    assert found.total == 6
    assert found.fallback is SearchStrategy.KEYWORD
    assert (await search.finder.find_all(ME, [])).hits == []


@loop_over("text", ["", " ", "???", "the of a", "\ud800", "x" * 1_000_000])
async def test_query_without_words_finds_nothing(text: str) -> None:
    found = await SearchSetup(EVERYTHING).find(text)
    assert found.hits == []
    assert found.total == 6


async def test_no_more_is_found_than_was_wanted_and_facts_are_known() -> None:
    search = SearchSetup(EVERYTHING, about={"files": ServerDescription("Files", "All of them")})
    assert len(await search.names("file mail weather", most=2)) == 2
    assert len(await search.names("file mail weather", most=10_000)) == 6
    known = search.finder.summarize_tool((await search.find("read_file")).hits[0].entry)
    assert known.searchable.server_title == "Files"
    assert known.searchable.categories == ("filesystem/read",)
    assert {"files", "read", "file"} <= set(known.keywords)


OTHER = Actor("agent:other")


async def count(search: SearchSetup, actor: Actor = ME) -> int:
    return (await search.find("anything", actor)).total


async def test_the_categories_are_those_of_what_may_be_called_with_their_counts() -> None:
    search = SearchSetup(allowed("*/*"), allowed("mail/*", OTHER.party))
    mine = await search.finder.categories(ME)
    assert {name: each.count for name, each in mine.items()} == {
        "filesystem": 3,
        "mail": 2,
        "weather": 1,
    }
    below = {name: each.count for name, each in mine["filesystem"].below.items()}
    assert below == {"read": 1, "search": 1, "write": 1}
    assert list(await search.finder.categories(OTHER)) == ["mail"]


@loop_over(
    ("grants", "seen"),
    [
        ((allowed("*/*"), denied("files/write_file")), 5),
        ((allowed("*/*"), denied("mail/*")), 4),
        ((allowed("files/*_file"),), 2),
        ((allowed("*/send_mail"),), 1),
        ((allowed("f*/*"), denied("f*/write_*")), 2),
        ((denied("*/*"), allowed("mail/*")), 2),
        ((allowed("files/read_file"), allowed("mail/*", OTHER.party)), 1),
        ((), 0),
    ],
)
async def test_only_granted_tools_are_found_and_counted(grants: Any, seen: int) -> None:
    search = SearchSetup(*grants)
    assert await count(search) == seen
    found = await search.words("read write search file send list mail get forecast", most=50)
    assert len(found) == seen


async def test_permissions_of_a_credential_limit_what_is_found() -> None:
    search = SearchSetup(allowed("*/*"))
    bounded = replace(ME, permissions=(("tools/call", "mail/*"),))
    assert await count(search, bounded) == 2
    assert await count(search) == 6


async def test_a_grant_that_is_taken_back_is_void_at_once() -> None:
    search = SearchSetup(allowed("*/*"))
    assert await count(search) == 6
    search.grant(allowed("mail/*"))
    assert await count(search) == 2
    assert await search.words("read file") == []
    search.grant(allowed("*/*"))
    assert await count(search) == 6


async def test_grants_and_denials_end_with_their_time() -> None:
    search = SearchSetup()
    ends = search.clock.now + timedelta(minutes=1)
    search.grant(
        allowed("mail/*", expires_at=ends),
        allowed("files/*"),
        denied("files/read_file", expires_at=ends),
    )
    assert await count(search) == 4
    search.clock.now += timedelta(minutes=2)
    assert await count(search) == 3
    assert await search.words("mail") == []


async def test_what_changes_for_others_is_not_worked_out_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = SearchSetup(allowed("*/*"))
    await count(search)
    judged: list[str] = []
    looked = search.grants.server_visibility

    def outlook(actor: Actor, verb: str, server: str) -> Any:
        judged.append(server)
        return looked(actor, verb, server)

    monkeypatch.setattr(search.grants, "server_visibility", outlook)
    changed = {OTHER.party: [allowed("mail/*", OTHER.party)]}
    search.grants.replace(search.grants.latest.with_subjects(changed))
    assert await count(search) == 6
    assert judged == []
    assert await count(search, OTHER) == 2


async def test_tools_that_come_and_go_are_judged_one_by_one() -> None:
    search = SearchSetup(allowed("files/*"), denied("files/secret"))
    assert await count(search) == 3
    search.offer("files", read_file="Read.", secret="Read secrets.", new="Read news.")
    assert sorted(await search.words("read")) == ["new", "read_file"]
    assert await count(search) == 2
    search.offer("mail", read="Read mail.")
    assert await count(search) == 2
    search.catalog.clear("files")
    assert await count(search) == 0


async def test_nothing_that_is_not_known_for_sure_is_shown() -> None:
    seconds = 0.0
    search = SearchSetup(
        allowed("*/*"), certainty=SnapshotFreshness(timedelta(seconds=1), lambda: seconds)
    )
    assert await count(search) == 6
    seconds = 5.0
    with pytest.raises(Unavailable):
        await count(search)


@dataclass
class _Standing:
    refusal: object = None
    risk: Risk = Risk.SAFE


@dataclass
class _Tools:
    """Who looks after tools: what is said of each, by its name."""

    said: dict[str, _Standing] = field(default_factory=dict[str, _Standing])

    def review_of(self, entry: CatalogEntry) -> _Standing:
        return self.said.get(entry.name, _Standing())


async def test_a_tool_that_nobody_can_use_now_is_not_found_until_it_can_be() -> None:
    tools = _Tools({"read_file": _Standing("changed")})
    search = SearchSetup(allowed("*/*"), tools=tools)
    assert await count(search) == 5
    assert "read_file" not in await search.words("read file")
    tools.said.clear()
    search.finder.index.reindex_server("files")
    assert await count(search) == 6
    tools.said["read_file"] = _Standing("changed again")
    # Nobody has told the index; but whoever shows it asks.
    assert "read_file" not in await search.words("read file")


async def test_tools_are_filtered_by_the_risk_that_they_count_as() -> None:
    tools = _Tools({"write_file": _Standing(risk=Risk.DANGEROUS)})
    tools.said["send_mail"] = _Standing(risk=Risk.MODERATE)
    search = SearchSetup(allowed("*/*"), tools=tools)
    assert (await search.find("file", risk_level_max=Risk.SAFE)).total == 4
    assert (await search.find("file", risk_level_max=Risk.MODERATE)).total == 5
    assert (await search.find("file", risk_level_max=Risk.DANGEROUS)).total == 6


async def test_only_so_many_parties_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility, "MAX_CACHE_BYTES", 1)
    search = SearchSetup(allowed("*/*", "*"))
    for number in range(20):
        assert await count(search, Actor(f"agent:{number}")) == 6
    assert search.finder.cached_masks <= 4


async def test_a_model_is_asked_only_about_what_may_be_called() -> None:
    vectors = Vectors({"read_file": 0.9, "send_mail": 0.8})
    search = SearchSetup(allowed("mail/*"), vectors=vectors)
    assert await search.names("anything at all") == ["send_mail"]
    assert (await search.finder.find(ME, SearchQuery("x", SearchStrategy.SEMANTIC))).total == 2


async def test_one_snapshot_of_grants_may_take_the_place_of_another_meanwhile() -> None:
    vectors = Vectors({"read_file": 0.9, "send_mail": 0.8})
    search = SearchSetup(allowed("*/*"), vectors=vectors)
    near = vectors.find_nearest

    async def slow(*asked: Any) -> Any:
        found = await near(*asked)
        search.grants.replace(GrantSet.from_grants([allowed("mail/*")]))
        return found

    vectors.find_nearest = slow  # type: ignore[method-assign]
    assert await search.names("anything at all") == ["send_mail"]


async def test_only_changed_tools_get_another_slot_and_slots_are_used_again() -> None:
    vectors = Vectors({})
    search = SearchSetup(allowed("*/*"), vectors=vectors)
    index = search.finder.index
    await index.wait_until_indexed()
    assert len(index) == 6
    assert set(index.servers) == {"files", "mail", "weather"}
    before = {name: index.slot_of("files", name) for name in ("read_file", "write_file")}
    search.offer("files", read_file="Read what a file holds, by its path.", write_file="!")
    await index.wait_until_indexed()
    assert index.slot_of("files", "read_file") == before["read_file"]
    assert index.slot_of("files", "search_files") is None
    assert len(index) == 5
    names = sorted(tool.name for tool in vectors.held.values() if tool.server == "files")
    assert names == ["read_file", "write_file"]
    for turn in range(10):
        search.offer("files", **{f"tool_{turn}_{number}": "Do it." for number in range(5)})
        await index.wait_until_indexed()
    assert len(index) == 8
    assert len(index.entries) <= 13
    late = ToolIndex(search.catalog, lambda _: ServerDescription(), lambda _: ToolAvailability())
    await late.wait_until_indexed()
    assert len(late) == 8


async def test_index_follows_only_tools_and_forgets_empty_categories() -> None:
    search = SearchSetup(allowed("*/*"))
    index = search.finder.index
    await index.wait_until_indexed()
    generation = index.generation
    search.catalog.put("files", EntryKind.PROMPT, [offer("files", "explain")])
    await index.wait_until_indexed()
    assert index.generation == generation
    assert "weather/read" in index.categories
    search.catalog.clear("weather")
    await index.wait_until_indexed()
    assert "weather" not in index.categories
    assert "weather/read" not in index.categories


async def test_a_server_that_calls_itself_otherwise_is_read_anew() -> None:
    search = SearchSetup(allowed("*/*"))
    assert await search.words("umbrella") == []
    search.about["weather"] = ServerDescription("Umbrella advice", "")
    search.catalog.announce("weather", EntryKind.TOOL)
    assert await search.words("umbrella") == ["get_forecast"]


async def test_what_is_gone_is_not_shown_while_the_index_does_not_know_it_yet() -> None:
    search = SearchSetup(allowed("*/*"))
    index = search.finder.index
    await index.wait_until_indexed()
    slot = index.slot_of("mail", "send_mail")
    assert slot is not None
    assert index.entry_at(slot) is not None
    search.catalog.clear("mail")
    assert index.entry_at(slot) is None
    assert index.entry_at(10_000) is None


async def test_a_long_list_is_taken_in_by_pieces() -> None:
    search = SearchSetup(allowed("*/*"))
    await search.finder.index.wait_until_indexed()
    many = [offer("many", f"tool_{n}", "Does one thing or another. " * 20) for n in range(600)]
    search.catalog.put("many", EntryKind.TOOL, many)
    turns, longest = 0, 0.0
    work = asyncio.ensure_future(search.finder.index.wait_until_indexed())
    while not work.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
        turns += 1
    assert turns > 20
    assert longest < here(0.1)
    assert len(search.finder.index) == 606


async def test_a_search_does_not_wait_for_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_index, "SMALL_BACKLOG", 1_000)
    search = SearchSetup(allowed("*/*"))
    await search.finder.index.wait_until_indexed()
    many = [offer("many", f"tool_{n}", "Does something.") for n in range(2_000)]
    search.catalog.put("many", EntryKind.TOOL, many)
    found = await search.find("read file", ME)
    assert found.total < 2_006
    await search.finder.index.wait_until_indexed()
    assert (await search.find("read file", ME)).total == 2_006
    search.finder.stop()
