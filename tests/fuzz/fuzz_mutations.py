"""Damage to files: what happens to them on disks and in copies, and what people edit by hand.

Each form of file has the damage of its bytes, and its own: values of JSON replaced, removed, there
twice, nested deep; lines removed, exchanged, not UTF-8; arrays in another shape or dtype, NaN,
scaled, reversed. Numbers are drawn, and the same seed draws the same ones.
"""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

DEEP = 200_000
NESTED = "[" * DEEP + "]" * DEEP
# Texts that stand in the place of a value, of JSON or of gin.
VALUES = ["null", "-1", "2.5", '"x"', "[]", "{}", "1" + 30 * "0", "NaN", "-Infinity", NESTED]
LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = b"<!DOCTYPE html>\n<html><body>Sign in to download.</body></html>\n"


class Mutation(NamedTuple):
    """A kind of damage, and the file's new bytes, or None for a directory."""

    name: str
    content: bytes | None


def mutations(data: bytes, form: str, count: int, seed: str) -> Iterator[Mutation]:
    """``count`` mutations of a file. Every other one is of its form, if it has one."""
    draw = random.Random(seed)
    whole = _of_whole(data, draw)
    draw.shuffle(whole)
    for number in range(count):
        if number % 2 and form in _FORMS:
            yield _FORMS[form](data, draw)
        else:
            yield whole.pop() if whole else _of_bytes(data, draw)


def _of_whole(data: bytes, draw: random.Random) -> list[Mutation]:
    sizes = (1, len(data) // 4, len(data) // 2, len(data) - 1)
    return [
        Mutation("a directory", None),
        Mutation("empty", b""),
        Mutation("a Git-LFS pointer", LFS),
        Mutation("a web page", PAGE),
        Mutation("twice", data + data),
        Mutation("rubbish behind it", data + draw.randbytes(40)),
        Mutation("a line's end behind it", data + b"\n\n"),
        *(Mutation(f"truncated to {size} bytes", data[:size]) for size in sizes),
    ]


def _of_bytes(data: bytes, draw: random.Random) -> Mutation:
    front = draw.randrange(min(len(data), 400))  # Headers are in front.
    at, bit = draw.choice([front, draw.randrange(len(data))]), draw.randrange(8)
    before, behind = data[:at], data[at + 1 :]
    name, content = draw.choice([
        (f"bit {bit} flipped", before + bytes([data[at] ^ 1 << bit]) + behind),
        ("zeroed", before + b"\0" + behind),
        ("bytes inserted", before + draw.randbytes(3) + data[at:]),
        ("bytes removed", before + data[at + 5 :]),
    ])  # fmt: skip
    return Mutation(f"byte {at}: {name}", content)


def _of_json(data: bytes, draw: random.Random) -> Mutation:
    tree = json.loads(data)
    index = draw.choice(list(_places(tree)))
    value = _at(tree, index)
    texts = {text[:20]: text for text in VALUES}
    texts["the key there three times"] = f'{json.dumps(value)}, "x": 0, "x": 1'
    changed: dict[str, Any] = {}
    if isinstance(value, int | float):
        changed = {"times 10": value * 10, "negated": -value, "a string": str(value)}
    elif isinstance(value, str):
        changed = {"cut": value[: len(value) // 2], "longer": value + "\n\u2028" + value}
    elif isinstance(value, list) and value:
        changed = {"an entry twice": [*value, value[-1]], "reversed": value[::-1],
                   "shorter": value[:-1], "a list in it": [*value, []]}  # fmt: skip
    elif isinstance(value, dict):
        changed = {"one more": {**value, "extra": 1}}
    texts |= {name: json.dumps(new) for name, new in changed.items()}
    name, text = draw.choice([*texts.items(), ("removed", "")])
    where = f"{'.'.join(map(str, index))[-60:]}: {name}"
    return Mutation(where, _with(tree, index, text))


def _places(tree: Any, index: tuple = ()) -> Iterator[tuple]:
    yield index
    children = (
        tree if isinstance(tree, dict) else dict(enumerate(tree if type(tree) is list else ()))
    )
    for key, child in children.items():
        yield from _places(child, (*index, key))


def _at(tree: Any, index: tuple) -> Any:
    return functools.reduce(lambda node, key: node[key], index, tree)


def _with(tree: Any, index: tuple, text: str) -> bytes:
    """JSON in which a text stands at a place, or without the place if there is no text."""
    if not index:
        return text.encode()
    tree, mark = copy.deepcopy(tree), "a mark that nothing else has"
    node = _at(tree, index[:-1])
    node[index[-1]] = mark
    if not text:
        del node[index[-1]]
    return json.dumps(tree).replace(json.dumps(mark), text).encode()


def _of_lines(data: bytes, draw: random.Random) -> Mutation:
    lines = data.splitlines(keepends=True)
    number = draw.randrange(len(lines))
    line, middle = lines[number], len(lines[number]) // 2
    changed = {
        "removed": b"", "twice": line + line, "empty": b"\n",
        "before its predecessor": lines[number - 1] + line,
    }  # fmt: skip
    parts = {"not UTF-8": b"\xff", "a NUL": b"\0", "a carriage return": b"\r", "a tab": b"\t",
             "a surrogate": b"\xed\xa0\x80"}  # fmt: skip
    changed |= {name: line[:middle] + part + line[middle:] for name, part in parts.items()}
    name, sign, _ = line.partition(b"=")
    if sign:
        for value in (*VALUES, "None", "(" * DEEP, "float('nan')", "@x()"):
            changed[f"= {value[:12]}"] = name + b"= " + value.encode() + b"\n"
    what = draw.choice(list(changed))
    content = [*lines[:number], changed[what], *lines[number + 1 :]]
    return Mutation(f"line {number + 1}: {what}", b"".join(content))


def _of_tensors(data: bytes, draw: random.Random) -> Mutation:
    arrays, size = load(data), int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    if draw.random() < 0.3:
        name, text = _of_json(header, draw)
        assert text is not None
        return Mutation(f"header {name}", len(text).to_bytes(8, "little") + text + body)
    name = draw.choice(sorted(arrays))
    array = arrays.pop(name)
    what, new = draw.choice([*_of_array(array).items(), ("removed", None), ("renamed", array)])
    if new is not None:
        arrays[f"{name}x" if what == "renamed" else name] = np.array(new, order="C")
    return Mutation(f"{name} {what}", save(arrays, json.loads(header).get("__metadata__")))


@np.errstate(all="ignore")
def _of_array(array: np.ndarray) -> dict[str, np.ndarray]:
    """Damaged arrays, by what was done."""
    found = {
        "flat": array.reshape(-1), "one more axis": array[None], "zeroed": np.zeros_like(array),
        "negated": -array.astype(array.dtype), "plus one": array + array.dtype.type(1),
        "times 10": array * array.dtype.type(10),
    }  # fmt: skip
    if array.ndim and len(array) > 1:
        found |= {"reversed": array[::-1], "shorter": array[:-1], "empty": array[:0],
                  "a row twice": np.concatenate([array[:1], array[:-1]]),
                  "transposed": array.T}  # fmt: skip
    for dtype in (np.float64, np.float32, np.float16, np.int32, np.int64, np.uint8, np.bool_):
        found[f"as {np.dtype(dtype).name}"] = array.astype(dtype)
    if np.issubdtype(array.dtype, np.floating):
        for value in (np.nan, np.inf, 1e30):
            found[f"a {value}"] = array.copy()
            found[f"a {value}"].reshape(-1)[-1:] = value
    return found


_FORMS: dict[str, Callable[[bytes, random.Random], Mutation]] = {
    "json": _of_json, "lines": _of_lines, "tensors": _of_tensors
}  # fmt: skip
