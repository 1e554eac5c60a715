# SPDX-License-Identifier: Apache-2.0
"""What one filter call about a member of a PodGroup costs: CPU of the decision, without HTTP.

A group of n members costs n calls for each candidate placement, and in a preemption n more for all victims at once and,
in v1.36, for each one that is given back. The first call of a cycle renews what has changed; the others are look-ups.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.api.wire import encode
from app.server.service import Service
from tests.builders import gpus, make_service, node_document, pod
from tests.finished import filter_nodes

MEMBERS = 16
NODES = (1000, 5000)
SHARED = {"nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.replicas": "4"}


def whole(name: str) -> dict[str, Any]:
    return node_document(name)


def shared(name: str) -> dict[str, Any]:
    return node_document(name, "Tesla-T4-SHARED", offers={"nvidia.com/gpu": 8}, labels=SHARED)


KINDS: tuple[tuple[str, Callable[[str], dict[str, Any]], bool, str | None], ...] = (
    ("a single pod", whole, False, None),
    ("a member", whole, True, None),
    ("a single pod that declares memory", shared, False, "12Gi"),
    ("a member that declares memory", shared, True, "12Gi"),
)


def asked(index: int, grouped: bool, memory: str | None) -> dict[str, Any]:
    """Write a pod that waits."""
    group = {"schedulingGroup": {"podGroupName": "gang"}} if grouped else {}
    made = pod(gpus(1), annotations={"gpu-memory": memory} if memory else None, **group)
    made["metadata"] |= {"name": f"m-{index}", "uid": f"m-{index}"}
    return made


def cycle(service: Service, bodies: Sequence[bytes]) -> list[float]:
    """Ask about each member once; return the milliseconds of CPU of each call."""
    spent = []
    for body in bodies:
        started = time.process_time()
        filter_nodes(body, service)
        spent.append(1000 * (time.process_time() - started))
    return spent


def row(name: str, make: Callable[[str], dict[str, Any]], grouped: bool, memory: str | None) -> str:
    """Measure one kind of pod on each number of nodes: the first call after a binding, and the others of the cycle."""
    cells = [name]
    for number in NODES:
        pods = [asked(index, grouped, memory) for index in range(MEMBERS)]
        objects = [*(make(f"n-{index:05}") for index in range(number)), *pods]
        service = make_service(Path(tempfile.mkdtemp()), objects, filter_answer="shortlist", recount="false")
        bodies = [encode({"Pod": one, "NodeNames": list(service.nodes)}) for one in pods]
        cycle(service, bodies)
        firsts, others = [], []
        for index in range(5):
            bound = asked(900 + index, False, None)
            bound["spec"]["nodeName"] = "n-00001"
            service.state.put_pod(bound)
            first, *rest = cycle(service, bodies)
            firsts.append(first)
            others.append(sum(rest) / len(rest))
        cells += [f"{min(firsts):.2f}", f"{min(others):.2f}"]
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """Write the table."""
    columns = [f"{number}: {what}" for number in NODES for what in ("first", "others")]
    head = f"| about | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}"
    return "\n".join(["## CPU of a call, in ms, by the number of nodes", "", head, *(row(*kind) for kind in KINDS), ""])


if __name__ == "__main__":
    print(table())
