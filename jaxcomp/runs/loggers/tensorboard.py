"""Figures as event files that TensorBoard reads."""

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jaxcomp.runs.loggers.files import Logger, Opener, Row, RunSoFar, numbers

_REVERSED_CASTAGNOLI = 0x82F63B78
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protocol buffers
_START = 1  # of SessionLog.status


class Events(NamedTuple):
    """Where the events of a run go."""

    path: Path

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Add the values of a step, by their tags."""
        summary = b"".join(
            _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _float(2, value))
            for tag, value in values.items()
        )
        self._add(step, _field(5, _BYTES, summary))

    def restart(self, step: int) -> None:
        """Let readers forget that step and later ones of the files before this one."""
        self._add(step, _field(7, _BYTES, _number(1, _START)))

    def _add(self, step: int, content: bytes) -> None:
        event = _double(1, time.time()) + _number(2, step) + content
        with open(self.path, "ab") as file:
            file.write(_record(event))  # one write: a kill cuts at most the last


def open_events(folder: Path) -> Events:
    """A new file of events in a folder, after those that are there.

    Args:
      folder: made where it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Readers go through the files in the order of their names.
    found = [path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")]
    after = max((int(second) for second in found if second.isdigit()), default=0)
    second = max(int(time.time()), after + 1)
    name = f"events.out.tfevents.{second:010d}.{socket.gethostname()}.{os.getpid()}"
    path = folder / name
    version = _double(1, time.time()) + _field(3, _BYTES, b"brain.Event:2")
    path.write_bytes(_record(version))
    return Events(path)


def masked_crc32c(data: bytes) -> int:
    """The checksum of a record: CRC-32C, rotated and shifted, of the data.

    Example:
      >>> hex(masked_crc32c(b"123456789"))
      '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_REVERSED_CASTAGNOLI if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    sums = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return length + next(sums) + data + next(sums)


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, wire_type: int, content: bytes) -> bytes:
    length = _varint(len(content)) if wire_type == _BYTES else b""
    return _varint(number << 3 | wire_type) + length + content


def _number(number: int, value: int) -> bytes:
    return _field(number, _VARINT, _varint(value))


def _double(number: int, value: float) -> bytes:
    return _field(number, _FIXED64, struct.pack("<d", value))


def _float(number: int, value: float) -> bytes:
    """A 4-byte float; what is too large for one is an infinity."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _field(number, _FIXED32, packed)


FOLDER = "tensorboard"  # in the run folder; profiles go there too


def tensorboard() -> Opener:
    """tensorboard/: the same figures as scalars; look with `tensorboard --logdir=runs`.

    A run that goes on begins a file of its own, which tells TensorBoard to forget the
    steps after the checkpoint.
    """

    def open_(run: RunSoFar) -> Logger:
        events = open_events(run.folder / FOLDER)
        events.restart(run.start + 1)

        def add(kind: str, row: Row) -> None:
            known = numbers(row)
            step = int(known.pop("step"))
            tagged = {f"{kind}/{name}": value for name, value in known.items()}
            events.scalars(step, tagged)

        return Logger(lambda row: add("epoch", row), lambda row: add("step", row))

    return open_
