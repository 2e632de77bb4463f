"""What every embedder has to be: the twin in memory, the built-in one, and those of others."""

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.metadata import EntryPoint

import pytest
import pytest_asyncio

from comity.app.plugins import EMBEDDER_GROUP, embedder_problem, load_plugin_embedder
from comity.catalog.search.tool_index import Embedder
from comity.catalog.semantic.minilm import MiniLm
from comity.errors import Misconfigured, Unavailable
from tests.support.embedder import MemoryEmbedder
from tests.support.weights import FOLDER, needs_weights

type Vectors = Sequence[Sequence[float]]


class Lent(MemoryEmbedder):
    """One that comes as a plugin."""

    def __init__(self) -> None:
        super().__init__(size=32, name="lent/1")


def lent() -> Embedder:
    return load_plugin_embedder("lent", [point("Lent", "lent")])


def built_in() -> Embedder:
    assert FOLDER is not None
    return MiniLm(FOLDER)


def point(value: str, name: str = "mine") -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{value}", EMBEDDER_GROUP)


MAKERS: list[object] = [
    pytest.param(MemoryEmbedder, id="memory"),
    pytest.param(lent, id="plugin"),
    pytest.param(built_in, id="minilm", marks=[needs_weights, pytest.mark.timeout(120)]),
]


@pytest_asyncio.fixture(params=MAKERS)
async def embedder(request: pytest.FixtureRequest) -> AsyncGenerator[Embedder]:
    make: Callable[[], Embedder] = request.param
    made = make()
    yield made
    await made.close()


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_each_text_has_a_vector_of_length_one(embedder: Embedder) -> None:
    texts = ["read a file", "", "x" * 20_000, "明天的天气", "\0\ud800 odd", "read a file"]
    vectors = await embedder.embed(texts)
    assert len(vectors) == len(texts)
    for vector in vectors:
        assert len(vector) == embedder.size
        assert math.sqrt(cosine(vector, vector)) == pytest.approx(1, abs=1e-3)


async def test_the_same_text_has_the_same_vector_whatever_is_beside_it(embedder: Embedder) -> None:
    alone = (await embedder.embed(["read a file"]))[0]
    beside = (await embedder.embed(["something else", "read a file"]))[1]
    assert cosine(alone, beside) == pytest.approx(1, abs=1e-3)


async def test_what_is_alike_is_nearer_than_what_is_not(embedder: Embedder) -> None:
    query, near, far = await embedder.embed(
        ["read a file", "read a file from the disk", "book a flight to Lisbon"]
    )
    assert cosine(query, near) > cosine(query, far) + 0.1


async def test_nothing_asked_is_nothing_answered(embedder: Embedder) -> None:
    assert len(await embedder.embed([])) == 0


async def test_after_its_end_it_is_unavailable_and_ending_twice_is_no_harm(
    embedder: Embedder,
) -> None:
    await embedder.close()
    await embedder.close()
    with pytest.raises(Unavailable):
        await embedder.embed(["read a file"])


class Nameless:
    size = 4


class Endless:
    name, size = "endless", 10**9


class Hasty:
    name, size = "hasty", 4

    def embed(self, texts: Sequence[str]) -> Vectors: ...
    def close(self) -> None: ...


class Curious(Lent):
    async def embed(self, texts: Sequence[str], whose: str) -> Vectors: ...  # type: ignore[override]


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("a bug")


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("Nameless", "its name must identify the model"),
        ("Endless", "its size must be a whole number"),
        ("Hasty", "it needs async methods"),
        ("Curious", "exactly texts"),
        ("Broken", "does not load: RuntimeError"),
        ("Absent", "does not load: AttributeError"),
    ],
)
def test_one_that_does_not_keep_to_its_port_stops_the_start(named: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        load_plugin_embedder("mine", [point(named)])


def test_one_that_nobody_named_is_not_even_loaded() -> None:
    assert load_plugin_embedder("lent", [point("Broken"), point("Lent", "lent")]).name == "lent/1"
    with pytest.raises(Misconfigured, match="`minilm`, `none`, `mine`"):
        load_plugin_embedder("other", [point("Broken")])


class Faulty(Lent):
    async def embed(self, texts: Sequence[str]) -> Vectors:
        raise KeyError("a bug of theirs")

    async def close(self) -> None:
        raise OSError("another one")


async def test_a_bug_in_one_is_its_own_and_words_still_find() -> None:
    faulty = load_plugin_embedder("mine", [point("Faulty")])
    with pytest.raises(Unavailable, match="KeyError"):
        await faulty.embed(["read a file"])
    await faulty.close()


def test_the_twin_in_memory_keeps_to_the_port_of_plugins() -> None:
    assert embedder_problem(MemoryEmbedder()) is None
