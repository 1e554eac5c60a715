# SPDX-License-Identifier: Apache-2.0
"""Attacks with the content of bodies: large policies, ConfigMaps, pods and questions, each sent again and again."""

import contextlib
import socket
from collections.abc import Sequence
from functools import partial

from tests.attacks.target import Attack, Target, open_tls
from tests.largest import Input, json_inputs, pod_inputs, policy_inputs, question_inputs

AT_ONCE = 12
"""Connections at once: more than may wait for a check."""
ANSWER_SECONDS = 30.0
PATHS = {
    "mutate": "/mutate",
    "validate": "/validate",
    "filter": "/scheduler/filter",
    "prioritize": "/scheduler/prioritize",
    "preempt": "/scheduler/preempt",
}


def post_all(kind: str, target: Target) -> None:
    """Post every input of a kind, on several connections at once, and read the answers."""
    requests = [request_of(largest_input) for largest_input in KINDS[kind]() if largest_input.route in PATHS]
    sent = 0
    for _ in target.turns():
        socks: list[socket.socket] = []
        for request in requests[sent : sent + AT_ONCE]:
            sock = None if target.over else open_tls(target)
            if sock is not None and send_all(sock, request):
                socks.append(sock)
        for sock in socks:
            receive_all(sock)
        sent = (sent + AT_ONCE) % len(requests)


def request_of(sent: Input) -> bytes:
    """Write the request of an input; its answer is the connection's last."""
    head = f"POST {PATHS[sent.route]} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(sent.body)}\r\n\r\n".encode() + sent.body


def send_all(sock: socket.socket, request: bytes) -> bool:
    """Send a request whole; False, and closed, where the replica refuses it before its end."""
    sock.settimeout(ANSWER_SECONDS)
    try:
        sock.sendall(request)
    except OSError:
        sock.close()
        return False
    return True


def receive_all(sock: socket.socket) -> None:
    """Read an answer to its end."""
    with contextlib.suppress(OSError):
        while sock.recv(1 << 18):
            pass
    sock.close()


KINDS = {"policies": policy_inputs, "pods": pod_inputs, "questions": question_inputs, "JSON": json_inputs}
_WHAT: Sequence[tuple[str, str, str]] = (
    ("posted-policies", "policies", "GPUPolicies of 300,000 products, ConfigMaps of 1 MiB of `---`, and the like"),
    ("posted-pods", "pods", "pods of 1,000 containers, of 100,000 values, and the like"),
    ("posted-questions", "questions", "ExtenderArgs of a million names, and the like"),
    ("posted-json", "JSON", "reviews of 8 MiB of lists, fractions, digits"),
)
POST_ATTACKS: tuple[Attack, ...] = tuple(Attack(name, what, partial(post_all, kind)) for name, kind, what in _WHAT)
