# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.flows`: the files of app/ that an AdmissionReview, a filter call and a node event go through.

Each flow is played until its caches are warm, and once more under a profiler that records every call of our own
functions. A stay is a call from one file of ours into another one.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import app
from tests.bench.fleet import node, node_name, nodes
from tests.builders import container, make_service, pod, review
from tests.finished import filter_nodes
from tests.finished import review as answer_review

APP = Path(app.__file__).parent
NODES = 100
WARM_ROUNDS = 3
MOST_FILES = {"POST /mutate": 23, "POST /scheduler/filter": 14, "node event": 11}
"""The budget: files of app/ that a warm flow enters at most, in a cluster without DRA."""
MOST_STAYS = {"POST /mutate": 72, "POST /scheduler/filter": 30, "node event": 18}
"""The same for stays: how often the flow comes into a file from another one."""


@dataclass(slots=True)
class Flow:
    """The calls of one flow; `files` maps each file to its calls, in the order in which the files were entered."""

    files: dict[str, int] = field(default_factory=dict)
    """File, relative to app/ → calls."""
    stays: int = 0

    @property
    def calls(self) -> int:
        """The number of calls of our functions."""
        return sum(self.files.values())


def record(act: Callable[[], object]) -> Flow:
    """Play a flow once, and record every call."""
    flow, last = Flow(), ""

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal last
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(APP) or frame.f_code.co_name.startswith("<"):
            return
        name = str(path.relative_to(APP))
        flow.files[name] = flow.files.get(name, 0) + 1
        flow.stays += name != last
        last = name

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return flow


def flows() -> dict[str, Flow]:
    """Play the three flows on a service of 100 nodes."""
    with tempfile.TemporaryDirectory() as folder:
        service = make_service(Path(folder), list(nodes(NODES)), filter_answer="shortlist")
        service.state.namespaces.put("team-a", {"kubernetes.io/metadata.name": "team-a"})
        asking = pod(container(requests={"nvidia.com/gpu": "2"}, image="nvcr.io/nvidia/pytorch:24.05-py3"))
        admission = json.dumps(review(asking)).encode()
        names = [node_name(index) for index in range(NODES)]
        extender = json.dumps({"Pod": asking, "NodeNames": names, "Nodes": None}).encode()
        played: dict[str, Callable[[], object]] = {
            "POST /mutate": lambda: answer_review(admission, "mutate", service),
            "POST /scheduler/filter": lambda: filter_nodes(extender, service),
            "node event": lambda: service.state.put_node(node(0)),
        }
        for _ in range(WARM_ROUNDS):
            for act in played.values():
                act()
        return {name: record(act) for name, act in played.items()}


def main() -> None:
    """Print each flow: its figures, then its files in the order in which they are entered."""
    for name, flow in flows().items():
        print(f"{name}: {len(flow.files)} files, {flow.calls} calls, {flow.stays} stays")
        for file, calls in flow.files.items():
            print(f"  {file} ({calls})")


if __name__ == "__main__":
    main()
