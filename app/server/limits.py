# SPDX-License-Identifier: Apache-2.0
"""The limits of a listener and its connections, and the phases of a connection.

Nothing bounds a single client: its address may be that of a proxy or of a node. Each listener has its own bound
instead, `connections`, and when it is reached a new caller takes the place of one that sends nothing
(`newcomer_seconds`, `settling_seconds`). So one client can hold all connections of a listener, but keep no other out.
"""

from dataclasses import dataclass
from enum import Enum

from app.values.quantity import MIB

KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds and sizes in bytes that callers may use. The times end what slow callers hold."""

    silent_seconds: float = 5.0
    """From the end of the TLS handshake to the first byte."""
    header_seconds: float = 5.0
    """From the first byte of a request to the end of its header."""
    body_seconds: float = 5.0
    """The rate of a body is measured over windows of this length; a connection below `body_rate` is then closed."""
    body_rate: int = 16 * KIB
    """Required bytes per second. A review of 10 kB comes at once; 8 MiB must come faster to meet `request_seconds`."""
    request_seconds: float = 30.0
    """For a whole request to arrive or an answer to be taken; the longest timeoutSeconds of a webhook."""
    answer_seconds: float = 5.0
    """Within which a peer must take some byte of a waiting answer."""
    stalled_seconds: float = 1.0
    """A body below its rate for this long is closed when too many requests are in hand; so is a peer that took nothing
    of its answer for this long when no connection is free. A guess, not measured."""
    handshake_seconds: float = 10.0
    """For a TLS handshake, which takes 0.01 s on a local network. A guess: longer than a lossy network needs, and less
    than the event loop's default of 60 s. When no connection is free, `settling_seconds` applies instead."""
    goodbye_seconds: float = 2.0
    """For the peer's close_notify; a guess. The event loop's default of 30 s would delay our exit."""
    header_bytes: int = 64 * KIB
    """A request with a larger header gets the answer 431."""
    requests: int = 512
    """Requests in progress at once; probes are not counted."""
    connections: int = 640
    """Connections of one listener, handshakes included: one for each request, and some for probes and idle callers."""
    idle: int = 256
    """Connections kept open between requests: an API server keeps a few, a scheduler at most two."""
    newcomer_seconds: float = 0.25
    """When no connection is free, one without a request is closed after this, and so is a body below its rate. A caller
    sends its request within a round trip, and a probe behind a thousand silent connections is answered within its
    second (measured)."""
    settling_seconds: float = 0.25
    """The same for a TLS handshake, which takes 0.01 s; one whose bytes we have not read yet stays. A new caller beside
    1,000 unfinished handshakes waits 0.2 s (p99, tests/results/attacks.md); with 1.0 here it was 0.9 s."""
    held_bytes: int = 16 * MIB
    """Bytes of pipelined requests over all connections of a listener. One connection holds one read of its transport,
    at most 256 KiB (max_size of asyncio.selector_events), because reading stops until its request is answered."""
    unread_bytes: int = 64 * MIB
    """Bytes of answers not taken by peers, over all connections; a single answer may be larger
    (docs/reference/measurements.md#serving)."""
    keep_alive_seconds: int = 90
    """Longer than callers keep idle connections, so that they close them and not we."""


class Phase(Enum):
    """What a connection waits for. A connection that takes too long is counted under this value, the label of
    gpu_usher_closed_connections_total; the other labels are `room` (it made room for another), `handshake` and
    `header_size`."""

    Silent = "silent"
    """The first byte of the first request."""
    Header = "header"
    """The rest of a request's header."""
    Body = "body"
    """The rest of a request's body."""
    Answer = "answer"
    """Our answer."""
    Idle = "idle"
    """The next request, or the peer to take the rest of our answer."""
    Refused = "refused"
    """The peer to close after our error. Its bytes are read and dropped: after a reset it could not read the error."""
    Closing = "closing"
    """The peer to close."""
