"""The layers of MiniLM as an ONNX graph with whole numbers of eight bits, written by hand.

ONNX is a message of Protocol Buffers, of which little is needed: fields of bytes, and of whole
numbers. So neither a converter nor a file that nobody can read stands between the weights, whose
hash is known, and what runs.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

type Weights = Mapping[str, np.ndarray[Any, Any]]

LAYERS: Final = 6
HEADS: Final = 12
SIZE: Final = 384
_EPSILON: Final = 1e-12
_FLOAT, _INT32 = 1, 6
_TYPES: Final = {"float32": _FLOAT, "int8": 3, "int64": 7}
# What ONNX Runtime has beyond the standard: steps that would be many are one there.
_FUSED: Final = "com.microsoft"


def minilm(weights: Weights) -> bytes:
    """From what each token is (`x`) and whether it counts (`mask`) to a vector of length one."""
    graph = _Graph()
    state = graph.normed("x", weights, "embeddings.LayerNorm")
    for number in range(LAYERS):
        state = _layer(graph, weights, f"encoder.layer.{number}", state)
    counts = graph.step("Unsqueeze", [graph.step("Cast", ["mask"], to=_FLOAT), "last"])
    total = graph.step("ReduceSum", [graph.step("Mul", [state, counts]), "middle"], keepdims=0)
    graph.step("LpNormalization", [total], axis=-1, p=2, output="vector")
    return graph.model()


def _layer(graph: "_Graph", weights: Weights, layer: str, state: str) -> str:
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


class _Graph:
    """The steps and the numbers, as they are written one after the other."""

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
        """A layer of whole numbers for weights, each column with a scale of its own.

        Seven bits of eight: with all, sums of two products overflow on processors without VNNI.
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
