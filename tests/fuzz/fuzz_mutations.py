"""Damage to files: what happens to them on disks and in copies, and what people edit by hand.

A mutation is a name and a function that makes the damaged content. Each form of file has those of
its bytes, and its own: values of JSON replaced, removed, there twice, nested deep; lines removed,
exchanged, not UTF-8; arrays in another shape or dtype, NaN, scaled, reversed; the same of msgpack.

:func:`mutations` draws some of them; the same seed gives the same ones.
"""

from __future__ import annotations

import copy
import functools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from flax import serialization
from safetensors.numpy import load, save

DEEP = 200_000
VALUES = (None, True, -1, 2.5, "x", [], {}, 10**30)
LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = b"<!DOCTYPE html>\n<html><body>Sign in to download.</body></html>\n"


class Mutation(NamedTuple):
    """A kind of damage; ``content`` makes the file's new bytes, or None for a directory."""

    name: str
    content: Callable[[], bytes | None]


@functools.lru_cache(maxsize=1)  # Tests ask for one after the other.
def mutations(data: bytes, form: str, count: int, seed: str) -> tuple[Mutation, ...]:
    """``count`` mutations of a file (fewer if there are no more), by a seed.

    Half of them are of its form, if it has one; others of its bytes, those of all of them first.
    """
    draw = random.Random(seed)
    of_form = list(_FORMS[form](data, draw)) if form in _FORMS else []
    whole, parts = list(_of_whole(data, draw)), list(_of_parts(data, draw))
    for some in (whole, parts, of_form):
        draw.shuffle(some)
    of_bytes = whole + parts
    half = max(count - len(of_form), min(len(of_bytes), count // 2 if of_form else count))
    return tuple((of_bytes[:half] + of_form)[:count])


def _bytes(name: str, content: bytes | None) -> Mutation:
    return Mutation(name, lambda: content)


def _of_whole(data: bytes, draw: random.Random) -> Iterator[Mutation]:
    yield _bytes("a directory", None)
    yield _bytes("empty", b"")
    yield _bytes("a Git-LFS pointer", LFS)
    yield _bytes("a web page", PAGE)
    yield _bytes("twice", data + data)
    yield _bytes("rubbish behind it", data + draw.randbytes(40))
    yield _bytes("a line's end behind it", data + b"\n\n")
    for size in (1, len(data) // 4, len(data) // 2, len(data) - 1):
        yield _bytes(f"truncated to {size} bytes", data[:size])


def _of_parts(data: bytes, draw: random.Random) -> Iterator[Mutation]:
    for _ in range(12):
        at, bit = draw.randrange(len(data)), draw.randrange(8)
        changed = bytes([data[at] ^ 1 << bit])
        yield _bytes(f"bit {bit} of byte {at} flipped", data[:at] + changed + data[at + 1 :])
        at = draw.randrange(min(len(data), 400))  # Headers are in front.
        yield _bytes(f"byte {at} zeroed", data[:at] + b"\0" + data[at + 1 :])
        yield _bytes(f"bytes inserted at {at}", data[:at] + draw.randbytes(3) + data[at:])
        yield _bytes(f"bytes {at} to {at + 5} removed", data[:at] + data[at + 5 :])


# JSON. A place is a path of keys; a mutation gives the text that stands there, None to remove it.


def _of_json(data: bytes, draw: random.Random) -> Iterator[Mutation]:
    try:
        tree = json.loads(data)
    except ValueError:
        return
    yield from _of_tree(tree, draw)
    for text in ("[]", "{}", "null", "3", '"x"', "NaN", "[" * DEEP, '{"a":' * DEEP):
        yield Mutation(f"{text[:8]} as the whole", functools.partial(text.encode))
    nested = "[" * DEEP + "]" * DEEP
    yield Mutation("nested deep as the whole", lambda: nested.encode())
    for index in draw.sample(indices := list(_places(tree)), min(4, len(indices))):
        for name, text in (("nested deep", nested), ("NaN", "NaN"), ("Infinity", "-Infinity")):
            yield Mutation(f"{_dotted(index)}: {name}", lambda p=index, t=text: _with(tree, p, t))
        if index and isinstance(index[-1], str):
            again = json.dumps(index[-1])
            where, value = index[:-1], json.dumps(_at(tree, index))

            def twice(where=where, again=again, value=value) -> bytes:
                rest = json.dumps(_at(tree, where))[1:]
                return _with(tree, where, f"{{{again}: {value}, {again}: 0, {rest}")

            yield Mutation(f"{_dotted(index)}: the key there three times", twice)


def _of_tree(
    tree: Any, draw: random.Random, write: Callable[[Any], bytes] | None = None
) -> Iterator[Mutation]:
    """Values replaced, removed, repeated; of large trees at 60 places."""
    write = write or (lambda tree: json.dumps(tree).encode())
    indices = [index for index in _places(tree) if index]
    for index in draw.sample(indices, min(len(indices), 60)):
        value = _at(tree, index)
        known = repr(value)
        changed: dict[str, Any] = {repr(new)[:20]: new for new in VALUES if repr(new) != known}
        if isinstance(value, int | float) and not isinstance(value, bool):
            changed |= {"times 10": value * 10, "negated": -value, "a string": str(value)}
        elif isinstance(value, str):
            changed |= {"cut": value[: len(value) // 2], "longer": value + "\n\u2028" + value}
        elif isinstance(value, list) and value:
            changed |= {"an entry twice": [*value, value[-1]], "reversed": value[::-1],
                        "shorter": value[:-1], "a list in it": [*value, []]}  # fmt: skip
        elif isinstance(value, dict) and value:
            changed |= {"one more": {**value, "extra": 1}}
        for name, new in changed.items():
            yield Mutation(
                f"{_dotted(index)}: {name}",
                lambda index=index, new=new: write(_changed(tree, index, new)),
            )
        yield Mutation(
            f"{_dotted(index)} removed", lambda index=index: write(_changed(tree, index, ...))
        )


def _places(tree: Any, index: tuple = ()) -> Iterator[tuple]:
    yield index
    children = (
        tree if isinstance(tree, dict) else dict(enumerate(tree if type(tree) is list else ()))
    )
    for key, child in children.items():
        yield from _places(child, (*index, key))


def _dotted(index: tuple) -> str:
    return ".".join(map(str, index))[-60:]


def _at(tree: Any, index: tuple) -> Any:
    return functools.reduce(lambda node, key: node[key], index, tree)


def _changed(tree: Any, index: tuple, value: Any) -> Any:
    """A copy with another value there; without the place if it is ``...``."""
    tree = copy.deepcopy(tree)
    node = _at(tree, index[:-1])
    if value is ...:
        del node[index[-1]]
    else:
        node[index[-1]] = value
    return tree


def _with(tree: Any, index: tuple, text: str) -> bytes:
    """JSON in which a text stands at a place."""
    if not index:
        return text.encode()
    mark = "a mark that nothing else has"
    return json.dumps(_changed(tree, index, mark)).replace(json.dumps(mark), text).encode()


# Lines


def _of_lines(data: bytes, draw: random.Random) -> Iterator[Mutation]:
    lines = data.splitlines(keepends=True)

    def made(name: str, number: int, *new: bytes) -> Mutation:
        content = b"".join([*lines[:number], *new, *lines[number + 1 :]])
        return Mutation(f"line {number + 1} {name}", lambda: content)

    for number in draw.sample(range(len(lines)), min(len(lines), 20)):
        line = lines[number]
        middle = len(line) // 2
        yield made("removed", number)
        yield made("twice", number, line, line)
        yield made("empty", number, b"\n")
        yield made("before its predecessor", number, lines[number - 1], line)
        for name, part in (("not UTF-8", b"\xff"), ("a NUL", b"\0"), ("a carriage return", b"\r"),
                           ("a tab", b"\t"), ("a surrogate", b"\xed\xa0\x80")):  # fmt: skip
            yield made(f"with {name}", number, line[:middle] + part + line[middle:])
        name, sign, _ = line.partition(b"=")
        for value in (*map(repr, VALUES), "(" * DEEP, "[" * 80 + "]" * 80, "float('nan')", "@x()"):
            if sign:
                text = f" {value}\n".encode()
                yield made(f"= {value[:12]}", number, name + sign + text)


# Arrays


def _of_array(array: np.ndarray) -> dict[str, np.ndarray]:
    """Damaged arrays, by what was done."""
    found = {
        "flat": array.reshape(-1), "one more axis": array[None], "zeroed": np.zeros_like(array),
        "negated": -array.astype(array.dtype), "plus one": array + array.dtype.type(1),
    }  # fmt: skip
    if array.ndim and len(array) > 1:
        found |= {"reversed": array[::-1], "shorter": array[:-1], "empty": array[:0],
                  "a row twice": np.concatenate([array[:1], array[:-1]]),
                  "transposed": array.T}  # fmt: skip
    for dtype in (np.float64, np.float32, np.float16, np.int32, np.int64, np.uint8, np.bool_):
        if array.dtype != dtype:
            found[f"as {np.dtype(dtype).name}"] = array.astype(dtype)
    if np.issubdtype(array.dtype, np.floating):
        for name, factor in (("times 10", 10), ("times 1e30", 1e30)):
            with np.errstate(over="ignore"):
                found[name] = array * array.dtype.type(factor)
        for name, value in (("NaN", np.nan), ("infinity", np.inf)):
            found[name] = array.copy()
            found[name].reshape(-1)[-1:] = value
    elif array.size:
        found["times 10"] = array * array.dtype.type(10)
        found["minus a thousand"] = array - array.dtype.type(1000)
    return found


def _of_tensors(data: bytes, draw: random.Random) -> Iterator[Mutation]:
    arrays = load(data)
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    metadata = header.get("__metadata__")

    def written(changes: dict[str, Any], about: dict | None = metadata) -> bytes:
        kept = {name: a for name, a in (arrays | changes).items() if a is not None}
        return save({name: np.array(a, order="C") for name, a in kept.items()}, about)

    for name in draw.sample(sorted(arrays), min(len(arrays), 12)):
        array = arrays[name]
        changes: dict[str, dict] = {
            "removed": {name: None}, "renamed": {name: None, f"{name}x": array},
            "twice": {f"{name}x": array},
        }  # fmt: skip
        with np.errstate(all="ignore"):
            changes |= {what: {name: new} for what, new in _of_array(array).items()}
        for what, change in changes.items():
            yield Mutation(f"{name} {what}", functools.partial(written, change))
    for key in metadata or {}:
        for text in (None, "", "x", "-1", "0", "1", "1000000"):
            about = {k: text if k == key else v for k, v in metadata.items()}
            about = {k: v for k, v in about.items() if v is not None}
            yield Mutation(f"metadata {key} {text!r}", functools.partial(written, {}, about))
    yield Mutation("no metadata", functools.partial(written, {}, None))
    for name, content in _of_json(json.dumps(header).encode(), draw):

        def with_header(content=content) -> bytes:
            text = content()
            return len(text).to_bytes(8, "little") + text + body

        yield Mutation(f"header {name}", with_header)


def _of_msgpack(data: bytes, draw: random.Random) -> Iterator[Mutation]:
    tree = serialization.msgpack_restore(data)
    if not isinstance(tree, dict):
        return

    def written(tree: Any) -> bytes:
        return serialization.msgpack_serialize(tree)

    for mutation in _of_tree(tree, draw, written):
        if "0000000000" not in mutation.name:  # msgpack has no such number.
            yield mutation
    arrays = [index for index in _places(tree) if isinstance(_at(tree, index), np.ndarray)]
    for index in draw.sample(arrays, min(len(arrays), 8)):
        with np.errstate(all="ignore"):
            for what, new in _of_array(_at(tree, index)).items():
                yield Mutation(
                    f"{_dotted(index)} {what}",
                    lambda index=index, new=new: written(_changed(tree, index, new)),
                )


_FORMS: dict[str, Callable[[bytes, random.Random], Iterator[Mutation]]] = {
    "json": _of_json, "lines": _of_lines, "tensors": _of_tensors, "msgpack": _of_msgpack,
}  # fmt: skip
