"""Content-addressed archives: a file of blocks, each under the digest of its bytes.

Source: "Content Addressable aRchives (CAR), version 1" and "DAG-CBOR", ipld.io/specs. A block is a node (DAG-CBOR) or
bytes (raw). Its CID has version 1, the codec, and sha2-256; in archives of the original system BLAKE3. libipld writes
any bytes in a node that look like a CID as a link, so bytes are in blocks of their own, and bytes in a node are always
a link.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeAlias

import libipld
from blake3 import blake3

from pattern_core.errors import PatternError

Cid: TypeAlias = bytes
Node: TypeAlias = Any
"""A value of JSON's kinds, or a `Cid` where JSON has none."""

BLOCK_BYTES_MAX = 1_000_000  # of one block; other readers refuse larger ones
READ_BYTES_MAX = 16 * 1024 * 1024  # of one block of others: the oldest archives had larger ones
CIDS_MAX = 20_000_000
_NODE, _RAW = b"\x01\x71", b"\x01\x55"  # version 1, codec
_SHA2, _BLAKE3 = b"\x12\x20", b"\x1e\x20"  # code, 32 bytes
_DIGEST_BYTES = 32
_CID_BYTES = len(_NODE) + len(_SHA2) + _DIGEST_BYTES
_VARINT_BYTES_MAX = 9


class ArchiveInvalid(PatternError):
    """The archive is damaged, incomplete, or not what this program reads; nothing was imported."""

    code = "archive_invalid"
    remedy = "Copy the file again, or export it again; `pattern car verify` says what is wrong with it."


class CarWriter:
    """Writes the blocks of an archive into an empty file, each once. `close` names the root."""

    def __init__(self, file: BinaryIO, *, with_blake3: bool = False) -> None:
        self.blocks = 0
        self.bytes = 0
        self._file = file
        self._hash = _BLAKE3 if with_blake3 else _SHA2
        self._known: set[Cid] = set()
        file.write(_header(_NODE + self._hash + bytes(_DIGEST_BYTES)))  # as long as that of the root, at the end

    def node(self, value: Node) -> Cid:
        """Store a node; return its CID.

        Raises:
            ArchiveInvalid: it is too large for one block.
        """
        return self._store(_NODE, libipld.encode_dag_cbor(value))

    def raw(self, data: bytes) -> Cid:
        """Store bytes; return their CID.

        Raises:
            ArchiveInvalid: they are too many for one block.
        """
        return self._store(_RAW, data)

    def close(self, root: Cid) -> None:
        """Complete the file, with its root."""
        self._file.seek(0)
        self._file.write(_header(root))

    def _store(self, codec: bytes, data: bytes) -> Cid:
        if len(data) > BLOCK_BYTES_MAX:
            raise ArchiveInvalid(f"a block of {len(data)} bytes is larger than {BLOCK_BYTES_MAX}")
        cid = codec + self._hash + _digest(self._hash, data)
        if cid not in self._known:
            self._known.add(cid)
            self._file.write(_varint(len(cid) + len(data)) + cid + data)
            self.blocks += 1
            self.bytes += len(data)
        return cid


class CarReader:
    """Reads an archive from a seekable file. Each block is checked against its CID, first all of them.

    Raises:
        ArchiveInvalid: the file is damaged, cut off, or no archive.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._places: dict[Cid, tuple[int, int]] = {}
        header = _decoded(self._section(at_start=True) or b"")
        roots = header.get("roots") if isinstance(header, dict) else None
        if not isinstance(header, dict) or header.get("version") != 1 or not isinstance(roots, list):
            raise ArchiveInvalid("this is not an archive: it does not begin with the header of a CAR file, version 1")
        if not roots or not isinstance(roots[0], bytes):
            raise ArchiveInvalid("the archive names no root")
        self.root: Cid = roots[0]
        while (section := self._section()) is not None:
            cid, data = section[:_CID_BYTES], section[_CID_BYTES:]
            _check(cid, data)
            self._places[cid] = file.tell() - len(data), len(data)
            if len(self._places) > CIDS_MAX:
                raise ArchiveInvalid(f"the archive has more than {CIDS_MAX} blocks")

    def __len__(self) -> int:
        """How many different blocks there are."""
        return len(self._places)

    def node(self, cid: object) -> Node:
        """Return the node with this CID.

        Raises:
            ArchiveInvalid: it is not the CID of a node, or the block is missing or damaged.
        """
        return _decoded(self._block(cid, _NODE))

    def raw(self, cid: object) -> bytes:
        """Return the bytes with this CID.

        Raises:
            ArchiveInvalid: it is not the CID of bytes, or the block is missing or damaged.
        """
        return self._block(cid, _RAW)

    def _block(self, cid: object, codec: bytes) -> bytes:
        if not isinstance(cid, bytes) or not cid.startswith(codec) or cid not in self._places:
            raise ArchiveInvalid("the archive lacks a block that it refers to")
        place, length = self._places[cid]
        self._file.seek(place)
        data = self._file.read(length)
        _check(cid, data)  # the file may have changed
        return data

    def _section(self, *, at_start: bool = False) -> bytes | None:
        """Return the next section, None at the end of the file."""
        length, shift = 0, 0
        while byte := self._file.read(1):
            length |= (byte[0] & 0x7F) << shift
            shift += 7
            if not byte[0] & 0x80:
                break
            if shift >= 7 * _VARINT_BYTES_MAX:
                raise ArchiveInvalid("the archive is damaged: the length of a block is not a number")
        else:
            if shift or at_start:
                raise ArchiveInvalid("the file is empty or cut off")
            return None
        if length > READ_BYTES_MAX:
            raise ArchiveInvalid(f"a block of the archive is larger than {READ_BYTES_MAX} bytes, or it is damaged")
        section = self._file.read(length)
        if len(section) < length:
            raise ArchiveInvalid("the archive is cut off")
        return section


def raw_cid(digest: bytes) -> Cid:
    """Return the CID of bytes with this SHA-256."""
    return _RAW + _SHA2 + digest


def text_of(cid: Cid) -> str:
    """Return a CID as other programs show it."""
    return str(libipld.encode_cid(cid))


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield the data in pieces that fit into blocks; nothing if it is empty."""
    for start in range(0, len(data), BLOCK_BYTES_MAX):
        yield data[start : start + BLOCK_BYTES_MAX]


def _header(root: Cid) -> bytes:
    header = libipld.encode_dag_cbor({"roots": [root], "version": 1})
    return _varint(len(header)) + header


def _varint(number: int) -> bytes:
    """Unsigned LEB128."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _digest(code: bytes, data: bytes) -> bytes:
    return hashlib.sha256(data).digest() if code == _SHA2 else blake3(data).digest()


def _check(cid: Cid, data: bytes) -> None:
    codec, code, digest = cid[:2], cid[2:4], cid[4:]
    if len(cid) != _CID_BYTES or codec not in (_NODE, _RAW) or code not in (_SHA2, _BLAKE3):
        raise ArchiveInvalid("the archive has a block with a CID of a kind that this version does not read")
    if _digest(code, data) != digest:
        raise ArchiveInvalid(f"the block {text_of(cid)} is damaged: its bytes have another digest")


def _decoded(data: bytes) -> Node:
    try:
        return libipld.decode_dag_cbor(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveInvalid(f"a block of the archive is not DAG-CBOR: {error}") from error
