"""Archives with lies and damage in them, and what such a file says when another library reads it.

An archive is a tree here: `{"/": …}` is a link, to a node or, with bytes, to these. Lies are changes of the tree, whose
digests are right again; damage is done to the blocks, and to the bytes of the file.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from copy import deepcopy
from hashlib import sha256
from typing import Any, TypeAlias

import dag_cbor
from blake3 import blake3
from multiformats import CID, varint

Tree: TypeAlias = Any

ODD: tuple[Tree, ...] = (
    *(None, True, 0, 3, 7, -1, 2**63, 2**64 - 1, 1e300, "", "\0", "x" * 300, b"", b"\xff\xfe"),
    *([], {}, [[None]], {"a": {"b": []}}, {"/": {}}, {"/": b"\xff"}, {"text": [{"/": b"\xff"}]}, {"bytes": []}),
)
_LIES_MAX = 3
_NEAR = 5  # containers below the root


def sections(content: bytes) -> Iterator[bytes]:
    """The sections of a CAR file, by its specification: each behind its length, as unsigned LEB128."""
    at = 0
    while at < len(content):
        length, used = varint.decode_raw(content[at:])[:2]
        yield content[at + used : at + used + length]
        at += used + length


def is_damaged(content: bytes) -> bool:
    """Whether a block has another digest than its CID says."""
    _header, *blocks = sections(content)
    digests = {b"\x12\x20": lambda data: sha256(data).digest(), b"\x1e\x20": lambda data: blake3(data).digest()}
    return any(digests[block[2:4]](block[36:]) != block[4:36] for block in blocks)


def tree_of(content: bytes) -> Tree:
    """What a sound archive says."""
    header, *blocks = sections(content)
    by_cid = {CID.decode(block[:36]): block[36:] for block in blocks}

    def grown(value: Any) -> Tree:
        match value:
            case CID():
                block = by_cid[value]
                return {"/": grown(dag_cbor.decode(block)) if value.codec.name == "dag-cbor" else block}
            case dict():
                return {key: grown(inner) for key, inner in value.items()}
            case list():
                return [grown(inner) for inner in value]
        return value

    first: Any = dag_cbor.decode(header)
    return grown(first["roots"][0])["/"]


def blocks_of(tree: Tree, *, with_blake3: bool) -> list[bytes]:
    """The sections of the archive that says this, its header first."""
    blocks: dict[CID, bytes] = {}

    def stored(codec: bytes, data: bytes) -> CID:
        digest = b"\x1e\x20" + blake3(data).digest() if with_blake3 else b"\x12\x20" + sha256(data).digest()
        cid = CID.decode(b"\x01" + codec + digest)
        blocks[cid] = data
        return cid

    def linked(value: Tree) -> Any:
        match value:
            case {"/": bytes(data)} if len(value) == 1:
                return stored(b"\x55", data)
            case {"/": inner} if len(value) == 1:
                return stored(b"\x71", dag_cbor.encode(linked(inner)))
            case dict():
                return {key: linked(inner) for key, inner in value.items()}
            case list():
                return [linked(inner) for inner in value]
        return value

    root = linked({"/": tree})
    return [
        dag_cbor.encode({"version": 1, "roots": [root]}),
        *(bytes(cid) + data for cid, data in blocks.items()),
    ]


def mutated(tree: Tree, rng: random.Random, *, with_blake3: bool) -> bytes:
    """The archive with up to three lies in it, its blocks in any order, or damaged; some are as they were."""
    tree = deepcopy(tree)
    for _ in range(rng.randint(0, _LIES_MAX)):
        where, key = _place(tree, rng)
        match rng.randrange(6):
            case 0:
                where[key] = deepcopy(rng.choice(ODD))
            case 4 | 5:
                where[key] = _other(where[key])
            case 1:
                del where[key]
            case 2 if isinstance(where, list):
                where.append(deepcopy(where[key]))
            case _:
                other, its_key = _place(tree, rng)
                where[key] = deepcopy(other[its_key])
    header, *blocks = blocks_of(tree, with_blake3=with_blake3)
    one, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
    match rng.randrange(16):
        case 0:
            rng.shuffle(blocks)
        case 1:
            blocks.insert(other, blocks[one])
        case 2:
            del blocks[one]
        case 3:
            blocks[one] = blocks[one][:36] + blocks[other][36:]
        case 4:
            header = rng.choice(blocks)[36:]
    content = b"".join(varint.encode(len(part)) + part for part in [header, *blocks])
    at = rng.randrange(len(content))
    match rng.randrange(16):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        case 2:
            return content[:at] + rng.randbytes(rng.randint(1, 5)) + content[at:]
        case 3:
            return content[:at] + content[rng.randrange(at, len(content)) :]
    return content


def _other(value: Tree) -> Tree:
    """Another value of the same kind, which may be as good."""
    match value:
        case str():
            return f"{value}ü"
        case bytes():
            return value[::-1]
        case int() | float():
            return value - 1 if value == 2**64 - 1 else value + 1
        case dict():
            return dict(reversed(value.items()))
        case list():
            return value[::-1]
    return "words"


def _place(tree: Tree, rng: random.Random) -> tuple[Any, Any]:
    """A container with one of its keys; half of them near the root, though there are fewer."""
    near, far = list[tuple[Any, Any]](), list[tuple[Any, Any]]()

    def walk(value: Tree, depth: int) -> None:
        if isinstance(value, dict | list):
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                (near if depth < _NEAR else far).append((value, key))
                walk(value[key], depth + 1)

    walk(tree, 0)
    return rng.choice(rng.choice([near, far]) or near)


def tables_in(content: bytes) -> Mapping[str, list[dict[str, Any]]]:
    """The rows that an archive of version 4 has, by table, each by column."""
    found: dict[str, list[dict[str, Any]]] = {}

    def cell(value: Tree) -> Any:
        match value:
            case {"/": bytes(data)}:
                return data
            case {"text": list(links)}:
                return b"".join(link["/"] for link in links).decode()
            case {"bytes": list(links)}:
                return b"".join(link["/"] for link in links)
        return value

    for table in tree_of(content)["data_cid"]["/"]["tables"]:
        for chunk in table["chunks"]:
            for row in chunk["/"]["rows"]:
                made = dict(zip(table["columns"], map(cell, row), strict=True))
                found.setdefault(table["table"], []).append(made)
    return found
