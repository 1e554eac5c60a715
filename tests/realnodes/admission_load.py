# SPDX-License-Identifier: Apache-2.0
"""Creations of GPU pods through the API server and the Service of an installation, for as long as something changes."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.kube.pods import DECISION
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import Object
from tests.e2e.stage import eventually, gpu_pod

MAKERS = 2
CALLS = 100
"""Creations before and after a change, so that it lies within the stream."""
ADMITTED, BYPASSED = "admitted", "bypassed"
GPU = {"nvidia.com/gpu": 1}
REQUESTS_ONLY: Object = {"requests": GPU}
"""What a GPU pod asks for that only gpu-usher makes valid: without it the API server refuses the pod."""
LIMITS: Object = {"limits": GPU}
"""What a GPU pod asks for that the API server takes without gpu-usher too."""


@dataclass
class Admissions:
    """What became of the creations so far, and of how many when each step was taken.

    An outcome is `admitted` with a decision of ours, `bypassed` without, or the API server's refusal.
    """

    outcomes: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def note(self, step: str) -> None:
        """Note a step, as a row of a table of seconds, steps, creations and failures."""
        tally = Counter(self.outcomes)
        seconds = time.monotonic() - self.began
        self.steps.append(f"| {seconds:.0f} s | {step} | {tally[ADMITTED]} | {tally.total() - tally[ADMITTED]} |")

    def go_on(self) -> None:
        """Wait until some more pods have been created."""
        until = len(self.outcomes) + CALLS
        eventually("more pods are created", lambda: len(self.outcomes) >= until)

    def failures(self) -> Counter[str]:
        """Count the outcomes that are not `admitted`."""
        return Counter(outcome for outcome in self.outcomes if outcome != ADMITTED)


@contextmanager
def admissions(plane: ControlPlane, namespace: str, amounts: Object = REQUESTS_ONLY) -> Iterator[Admissions]:
    """Create GPU pods as dry runs, in several threads, for as long as the block lasts."""
    stop, stream = threading.Event(), Admissions()

    def make() -> None:
        with plane.api.like() as api:
            while not stop.is_set():
                pod = gpu_pod("p", namespace, **amounts)
                answer = api.try_create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
                body = answer.json()
                ours = ADMITTED if DECISION in body.get("metadata", {}).get("annotations", {}) else BYPASSED
                stream.outcomes.append(ours if answer.status_code == 201 else body["message"])

    threads = [threading.Thread(target=make) for _ in range(MAKERS)]
    for thread in threads:
        thread.start()
    try:
        yield stream
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
        print(f"{len(stream.outcomes)} creations, {stream.failures().total()} not admitted", *stream.steps, sep="\n")
