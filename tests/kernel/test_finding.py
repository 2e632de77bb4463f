"""Finding tools: what fits best comes first, of what may be called, and by which evidence."""

import pytest

from comity.kernel.tool_index import ServerWords
from comity.rules.search import Query, Strategy
from tests.kernel.finding_scene import ME, Scene, Vectors, allowed

EVERYTHING = allowed("*/*")


@pytest.mark.parametrize(
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
    ],
)
async def test_words_find_a_tool_by_name_by_description_and_mistyped(text: str, first: str) -> None:
    assert (await Scene(EVERYTHING).words(text))[0] == first


async def test_the_very_name_comes_first_and_then_names_that_begin_so() -> None:
    scene = Scene(EVERYTHING)
    scene.offer("other", search="Anything.", search_web="Pages.", find="search search web search")
    found = await scene.find("search", strategy=Strategy.KEYWORD)
    assert [each.offer.name for each in found.found[:3]] == ["search", "search_files", "search_web"]
    assert found.found[0].score == 1.0
    assert found.found[-1].offer.name == "find"


async def test_scores_fall_lie_within_one_and_are_higher_where_more_was_found() -> None:
    scene = Scene(EVERYTHING)
    good = (await scene.find("read contents file", strategy=Strategy.KEYWORD)).found
    poor = (await scene.find("read quantum poetry aloud", strategy=Strategy.KEYWORD)).found
    scores = [each.score for each in good]
    assert scores == sorted(scores, reverse=True)
    assert 1 >= scores[0] > poor[0].score >= 0


async def test_ties_are_by_key_and_the_same_question_has_the_same_answer() -> None:
    scene = Scene(EVERYTHING)
    for server in ("zebra", "ape", "mole"):
        scene.offer(server, ping="Say something back.")
    for _ in range(2):
        found = await scene.find("say something back", strategy=Strategy.KEYWORD)
        assert [each.offer.server for each in found.found] == ["ape", "mole", "zebra"]
        scene.offer("bear", hunt="Nothing to do with it.")


async def test_without_vectors_words_stand_in_and_the_answer_says_so() -> None:
    scene = Scene(EVERYTHING)
    for strategy in (Strategy.HYBRID, Strategy.SEMANTIC):
        found = await scene.find("read_file", strategy=strategy)
        assert found.strategy is strategy
        assert found.fallback is Strategy.KEYWORD
        assert found.found[0].offer.name == "read_file"
    assert (await scene.find("read", strategy=Strategy.KEYWORD)).fallback is None


async def test_meaning_finds_what_shares_no_word() -> None:
    scene = Scene(EVERYTHING, vectors=Vectors({"get_forecast": 0.8, "send_mail": 0.1}))
    found = await scene.find("shall I take an umbrella", strategy=Strategy.SEMANTIC)
    assert found.found[0].offer.name == "get_forecast"
    assert found.found[0].parts == {"meaning": 1.0}
    assert found.fallback is None


async def test_words_and_meaning_both_count_in_a_hybrid_search() -> None:
    near = {"read_file": 0.5, "send_mail": 0.6, "list_mails": 0.1}
    scene = Scene(EVERYTHING, vectors=Vectors(near))
    found = await scene.find("read the contents")
    assert found.found[0].offer.name == "read_file"
    assert found.found[0].parts == {"words": 1.0, "meaning": 0.8}
    assert found.found[1].offer.name == "send_mail"


async def test_what_a_server_says_of_itself_counts_where_it_says_enough() -> None:
    about = {
        "files": ServerWords("files", "Everything that lies on this machine"),
        "mail": ServerWords("mail", "Mail."),
    }
    vectors = Vectors({"read_file": 0.5, "send_mail": 0.5}, servers={"files": 0.5, "mail": 0.9})
    scene = Scene(EVERYTHING, vectors=vectors, about=about)
    found = await scene.find("umbrella")
    assert [each.offer.name for each in found.found] == ["read_file", "send_mail"]
    assert found.found[0].parts["server"] == 0.1
    assert "server" not in found.found[1].parts


async def test_a_tool_without_its_vector_is_found_by_its_words_alone() -> None:
    scene = Scene(EVERYTHING, vectors=Vectors({"send_mail": 0.5}, complete=False))
    found = await scene.find("read the contents of a file")
    assert found.found[0].offer.name == "read_file"
    assert found.fallback is Strategy.KEYWORD


async def test_a_model_that_cannot_be_used_is_done_without() -> None:
    vectors = Vectors({"send_mail": 0.9}, broken=True)
    found = await Scene(EVERYTHING, vectors=vectors).find("read file")
    assert found.found[0].offer.name == "read_file"
    assert found.fallback is Strategy.KEYWORD


async def test_a_category_holds_what_is_below_it() -> None:
    scene = Scene(EVERYTHING)
    everything = await scene.names("filesystem", strategy=Strategy.CATEGORY)
    assert sorted(everything) == ["read_file", "search_files", "write_file"]
    assert await scene.names("filesystem/read", strategy=Strategy.CATEGORY) == ["read_file"]
    assert await scene.names("filesystem > write", strategy=Strategy.CATEGORY) == ["write_file"]


async def test_words_find_a_category_that_none_names() -> None:
    scene = Scene(EVERYTHING)
    found = await scene.find("the weather today", strategy=Strategy.CATEGORY)
    assert [each.offer.name for each in found.found] == ["get_forecast"]
    assert found.found[0].score == 0.5


async def test_filters_leave_out_before_anything_is_ranked_or_counted() -> None:
    scene = Scene(EVERYTHING, status={"mail": "error"})
    by_category = await scene.find("file mail", categories=("mail",))
    assert {each.offer.server for each in by_category.found} == {"mail"}
    assert by_category.total == 2
    by_status = await scene.find("file mail", status="connected")
    assert by_status.total == 4
    assert "mail" not in {each.offer.server for each in by_status.found}
    by_server = await scene.find("file mail", servers=("mail", "nobody"), status="error")
    assert by_server.total == 2


async def test_several_searches_are_answered_by_turns() -> None:
    scene = Scene(EVERYTHING)
    queries = [Query("read file", most=3), Query("send mail", most=3), Query("send mail", most=3)]
    found = await scene.finder.find_all(ME, queries)
    assert [each.offer.name for each in found.found[:2]] == ["read_file", "send_mail"]
    assert len(found.found) == 3
    assert found.total == 6
    assert found.fallback is Strategy.KEYWORD
    assert (await scene.finder.find_all(ME, [])).found == []


@pytest.mark.parametrize("text", ["", " ", "???", "the of a", "\ud800", "x" * 1_000_000])
async def test_a_query_in_which_nothing_can_be_sought_finds_nothing(text: str) -> None:
    found = await Scene(EVERYTHING).find(text)
    assert found.found == []
    assert found.total == 6


async def test_no_more_is_found_than_was_wanted() -> None:
    scene = Scene(EVERYTHING)
    assert len(await scene.names("file mail weather", most=2)) == 2
    assert len(await scene.names("file mail weather", most=10_000)) == 6


async def test_what_is_known_of_a_tool_is_told_beside_it() -> None:
    scene = Scene(EVERYTHING, about={"files": ServerWords("Files", "All of them")})
    found = (await scene.find("read_file")).found[0]
    known = scene.finder.facts(found.offer)
    assert known.searchable.server_title == "Files"
    assert known.searchable.categories == ("filesystem/read",)
    assert {"files", "read", "file"} <= set(known.keywords)


async def test_a_tool_that_repeats_a_word_does_not_outdo_one_that_means_it() -> None:
    scene = Scene(EVERYTHING)
    scene.offer("spam", buy="weather forecast city " * 5_000)
    assert (await scene.words("weather forecast for a city"))[0] == "get_forecast"
