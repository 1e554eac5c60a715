# SPDX-License-Identifier: Apache-2.0
"""The limits of a listener and its connections, and the phases of a connection.

Nothing bounds a single client: its address may be that of a proxy or of a node. Each listener has its own bound
instead, `connections`, and when it is reached a new caller takes the place of one that sends nothing
(`newcomer_seconds`). So one client can hold all connections of a listener, but keep no other out.
"""

from dataclasses import dataclass
from enum import Enum

from app.values.quantity import MIB

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds and sizes in bytes that callers may use. The times end what slow callers hold."""

    header_seconds: float = 5.0
    """From the opening of a connection, or the first byte of a later request, to the end of the request's header."""
    request_seconds: float = 30.0
    """For a body to arrive, and for an answer to be taken; the longest timeoutSeconds of a webhook."""
    handshake_seconds: float = 10.0
    """For a TLS handshake, which takes 0.01 s on a local network. A guess: longer than a lossy network needs, and less
    than the event loop's default of 60 s. When no connection is free, `newcomer_seconds` applies instead."""
    goodbye_seconds: float = 2.0
    """For the peer to close after our error, and for its close_notify; a guess. The event loop's default of 30 s would
    delay our exit."""
    keep_alive_seconds: int = 90
    """Longer than callers keep idle connections, so that they close them and not we."""
    newcomer_seconds: float = 0.25
    """When no connection is free, a handshake or a connection without a request gives way after this. A caller sends
    its request within a round trip. A new caller beside 1,000 unfinished handshakes waits 0.2 s (p99,
    tests/results/attacks.md); with 1.0 here it was 0.9 s."""
    stalled_seconds: float = 1.0
    """The same for a body that has not arrived whole, also when too many requests are in progress, and for a peer that
    does not take its last answer. A guess, not measured."""
    header_bytes: int = 64 * KIB
    """A request with a larger header gets the answer 431."""
    held_bytes: int = 64 * KIB
    """Bytes of later requests that a connection may have sent before an answer; beyond them it is closed. No caller of
    ours sends a request before the answer to the last."""
    unread_bytes: int = 64 * MIB
    """Bytes of answers not taken by peers, over all connections; a single answer may be larger
    (docs/reference/measurements.md#serving)."""
    requests: int = 512
    """Requests in progress at once; probes are not counted."""
    connections: int = 640
    """Connections of one listener, handshakes included: one for each request, and some for probes and idle callers."""


class Phase(Enum):
    """What a connection waits for. A connection that takes too long is counted under this value, the label of
    gpu_usher_closed_connections_total; the other labels are `room` (it made room for another), `handshake` and
    `header_size`."""

    Header = "header"
    """A request's header."""
    Body = "body"
    """The rest of a request's body."""
    Answer = "answer"
    """Our answer."""
    Idle = "idle"
    """The next request, and the peer to take the rest of our answer."""
    Ending = "ending"
    """The peer to close, or to take our last answer. After an error its bytes are read and dropped: after a reset it
    could not read the error."""
