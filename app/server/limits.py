# SPDX-License-Identifier: Apache-2.0
"""How long and how much a caller may take, and what a connection waits for."""

from dataclasses import dataclass
from enum import Enum

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how much a caller may take. The waits end what slow callers hold (fault 24)."""

    silent_seconds: float = 5.0
    """From the connection, its TLS settled, to the first byte."""
    header_seconds: float = 5.0
    """From a request's first byte to the end of its header, whatever trickles in between."""
    body_seconds: float = 5.0
    """A body is measured over windows of this length: one below `body_rate` is closed at its end."""
    body_rate: int = 16 * KIB
    """Bytes a second, the least: a review of 10 kB comes at once, one of 8 MiB within `request_seconds` faster yet."""
    request_seconds: float = 30.0
    """For a whole request to arrive, or an answer to be taken: no webhook's timeoutSeconds may be longer."""
    answer_seconds: float = 5.0
    """In which a peer takes some byte of an answer that waits to be taken."""
    stalled_seconds: float = 1.0
    """A body below its rate for so long gives way where we are full; guess, measured nowhere."""
    handshake_seconds: float = 10.0
    goodbye_seconds: float = 2.0
    """For the peer's close_notify; guess. The event loop's own 30 s would hold up our end (HA-04)."""
    header_bytes: int = 64 * KIB
    """A larger header is fault 25."""
    requests: int = 512
    """In hand at once (HA-08), the probes' not counted."""
    connections: int = 640
    """Of a listener, handshakes included: a request each, and some for probes and for callers between requests."""
    idle: int = 256
    """Connections kept between requests: an API server keeps a few, a scheduler at most two."""
    newcomer_seconds: float = 0.25
    """Where all connections are taken, one that asked nothing yet gives way after this: whoever connects to ask does so
    in a round trip, and a probe behind a thousand who do not is answered within its second (measured)."""
    settling_seconds: float = 1.0
    """The same for a TLS handshake, which takes 0.01 s, and turns of a busy loop."""
    held_bytes: int = 16 * MIB
    """Of requests sent ahead of their turn, over all connections; whoever pipelines waits on one piece of 256 KiB."""
    unread_bytes: int = 64 * MIB
    """Of answers that nobody takes, over all connections; one alone may be larger
    (docs/reference/measurements.md#serving)."""
    keep_alive_seconds: int = 90
    """Longer than the callers' idle connections live, so that they close them, not we (HA-04)."""


class Phase(Enum):
    """What a connection waits for; the values name closed connections in the metric."""

    Silent = "silent"
    """Its first byte ever."""
    Header = "header"
    Body = "body"
    Answer = "answer"
    """Ours."""
    Idle = "idle"
    """The next request, or that the peer takes the rest of our answer."""
    Refused = "refused"
    """The end: who still sends cannot read our refusal after a reset, so that we take the rest, and drop it."""
    Closing = "closing"
    """The peer's own end."""
