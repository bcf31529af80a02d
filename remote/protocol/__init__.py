"""Contract 2: the messages between laptop and box. Standard library only; the agent's bundle carries this package.

One JSON object per line (a *frame*, at most 64 KiB), in both directions over one channel:

    client -> agent                                       agent -> client
    {"type": "hello", "protocol": 1, "settings": {...}}   {"type": "hello", "protocol": 1, "agent": HASH,
                                                           "version": V, "format": F, "engine": {...}, "host": {...}}
    {"type": "request", "id": 7, "op": OP, "params": {}}  {"type": "response", "id": 7, "ok": true, "result": {}}
                                                          {"type": "response", "id": 7, "ok": false, "error": {...}}
    {"type": "subscribe", "id": 8, "topic": TOPIC,        {"type": "data", "id": 8, "offset": 0, "text"|"base64": ...}
         "params": {}, "credit": 262144}                  {"type": "update", "id": 8, "value": {...}}
    {"type": "credit", "id": 8, "bytes": 65536}           {"type": "rotated", "id": 8, "cursor": {...}}
    {"type": "unsubscribe", "id": 8}                      {"type": "closed", "id": 8, "error": {...}}
    {"type": "ping", "n": 3}                              {"type": "pong", "n": 3, "time": SECONDS}
    {"type": "part", "text": "…", "more": true}           the same: a frame over the limit, split (see encode_parts)

The client chooses ids and never reuses one on a connection. ``OP`` is one of :data:`OPERATIONS`. A topic is ``log``
(bytes of one file from a :class:`Cursor` on; ``data`` frames use up credit, which the client returns once it has
consumed them) or one of :data:`VALUE_TOPICS` (the whole value, sent whenever it changes; while it cannot be read,
``error`` in its place). A pong has the box's clock, in seconds since the epoch. A ``data`` frame carries facts for the
cursor after it: ``tail`` (SHA-256 of the last bytes), ``head`` (length and SHA-256 of the first bytes) and ``file``
(device and inode), the latter two whenever they changed. Receivers ignore types and keys that they do not know.
"""

from remote.protocol.frames import (
    AGENT_SILENCE_S,
    HEAD_BYTES,
    INITIAL_CREDIT,
    LOST_AFTER_S,
    MAX_DATA,
    MAX_FRAME,
    PING_EVERY_S,
    PROTOCOL_VERSION,
    STALE_AFTER_S,
    VALUE_TOPICS,
    Cursor,
    Decoder,
    Flood,
    ProtocolError,
    RemoteError,
    Settings,
    data_of,
    encode,
    encode_data,
    encode_parts,
)
from remote.protocol.operations import OPERATIONS, Operation

__all__ = [
    "AGENT_SILENCE_S", "HEAD_BYTES", "INITIAL_CREDIT", "LOST_AFTER_S", "MAX_DATA", "MAX_FRAME", "OPERATIONS",
    "PING_EVERY_S", "PROTOCOL_VERSION", "STALE_AFTER_S", "VALUE_TOPICS", "Cursor", "Decoder", "Flood", "Operation",
    "ProtocolError", "RemoteError", "Settings", "data_of", "encode", "encode_data", "encode_parts",
]  # fmt: skip
