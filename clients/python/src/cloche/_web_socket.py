"""Frames of RFC 6455 as a client writes and reads them. Free of I/O."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ._errors import ClocheConnectionError

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_CONTINUATION = 0
_SALT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MESSAGE_BYTES = 16 * 1024 * 1024


class Message(NamedTuple):
    opcode: int
    payload: bytes


def handshake(subprotocol: str) -> Tuple[Dict[str, str], str]:
    """The headers that ask for a WebSocket, and what the answer must have as `sec-websocket-accept`."""
    key = base64.b64encode(os.urandom(16)).decode()
    accept = base64.b64encode(hashlib.sha1(f"{key}{_SALT}".encode()).digest()).decode()
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": key,
        "sec-websocket-protocol": subprotocol,
    }
    return headers, accept


def frame(opcode: int, payload: bytes) -> bytes:
    """One whole message, masked as a client's must be."""
    length = len(payload)
    if length < 126:
        head = bytes((0x80 | opcode, 0x80 | length))
    elif length < 65_536:
        head = bytes((0x80 | opcode, 0x80 | 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0x80 | 127)) + length.to_bytes(8, "big")
    mask = os.urandom(4)
    repeated = (mask * (length // 4 + 1))[:length]
    masked = int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")
    return head + mask + masked.to_bytes(length, "little")


class MessageParser:
    """Puts messages together of bytes as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._pieces: List[bytes] = []
        self._opcode = BINARY

    def feed(self, piece: bytes) -> Iterator[Message]:
        """The messages that a piece completes. A control frame may come between the pieces of one."""
        self._rest += piece
        while True:
            cut = self._cut()
            if cut is None:
                return
            final, opcode, payload = cut
            if opcode >= CLOSE:
                yield Message(opcode, payload)
                continue
            if opcode != _CONTINUATION:
                self._opcode, self._pieces = opcode, []
            self._pieces.append(payload)
            if final:
                yield Message(self._opcode, b"".join(self._pieces))
                self._pieces = []

    def _cut(self) -> Optional[Tuple[bool, int, bytes]]:
        rest = self._rest
        if len(rest) < 2:
            return None
        short = rest[1]
        start = 2 + (2 if short == 126 else 8 if short == 127 else 0)
        if len(rest) < start:
            return None
        length = short if start == 2 else int.from_bytes(rest[2:start], "big")
        if short > 127 or rest[0] & 0x70 or length > _MESSAGE_BYTES:
            raise ClocheConnectionError("the service sent what is no frame of a WebSocket")
        if len(rest) < start + length:
            return None
        payload = bytes(rest[start : start + length])
        final, opcode = bool(rest[0] & 0x80), rest[0] & 0x0F
        del rest[: start + length]
        return final, opcode, payload
