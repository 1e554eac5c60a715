# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of a cluster whose GPUs are devices: 5,000 nodes without labels, 40,000 devices in ResourceSlices.

`python -m tests.bench.devices` prints the rows, in half a minute. Budgets are those that hold for labels. Objects come
as lines of watches, through the decoders and readers of the service.
"""

import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from app.cluster.garbage_collection import leave_out_all
from app.cluster.reflector import Reflector
from app.cluster.watched_kinds import core_kinds, dra_kinds
from app.demo.notation import DemoDeviceClass, DemoGPU, NodePool
from app.demo.sample_fleets import device_class, resource_slice
from app.explain.pending_pod import explain
from app.kube.api_kinds import API_KINDS
from app.server.service import Service
from app.telemetry.logs import LOGGER
from app.telemetry.metrics import Metrics
from app.values.computations import finish
from tests.bench.explaining import filter_body
from tests.bench.fleet import node_name
from tests.bench.measure import REFERENCE_MS, ROUNDS, Scaled, cpu, middle, paced, reference, resident_mib
from tests.bench.rows import Row, print_rows, timed, timed_pair
from tests.builders import make_service, node_document, pod, shipped
from tests.finished import filter_nodes

Document = dict[str, Any]
NODES, GPUS = 5_000, 8
EVENTS = 200
GPU_MAKES = (
    DemoGPU("NVIDIA H100 80GB HBM3", 81559, "9.0"),
    DemoGPU("NVIDIA A100-SXM4-80GB", 81920, "8.0"),
    DemoGPU("NVIDIA L4", 23034, "8.9"),
)
HELD = 4
"""GPUs of each node that claims have."""
MANAGED = [{"manager": "kubelet-plugin", "operation": "Update", "fieldsV1": {"f:spec": {"f:devices": {}}}}]
TOO_LARGE = "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('141Gi')) >= 0"


def slice_of(index: int, generation: int = 1) -> Document:
    """Write the ResourceSlice of a node as NVIDIA's driver does."""
    gpu = GPU_MAKES[index % len(GPU_MAKES)]
    pool = NodePool(names=(), gpus=GPUS, gpu=gpu, driver="580.95.05", cuda="13.0")
    made = resource_slice(pool, node_name(index))
    made["metadata"] |= {"uid": f"slice-{index}", "resourceVersion": "1", "managedFields": MANAGED}
    made["spec"]["pool"]["generation"] = generation
    return made


def claim_of(index: int, held: int = HELD) -> Document:
    """Write a claim that has GPUs of a node, and a pod that uses it; with held=0 the claim has none yet."""
    name = node_name(index)
    results = [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": name, "device": f"gpu-{i}"} for i in range(held)]
    selector = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [selector]}}
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": HELD}
    return {
        "metadata": {"name": f"claim-{index}", "namespace": "team", "uid": f"claim-{index}", "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": f"p-{index}", "uid": "u"}]}
        if held
        else {},
    }


def template() -> Document:
    """Write the template of the pods that wait: for a GPU with more memory than any has."""
    exactly = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": TOO_LARGE}}]}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    return {"metadata": {"name": "large", "namespace": "team", "uid": "t", "resourceVersion": "1"}, "spec": spec}


def bare_node(index: int) -> Document:
    """Write a node that says nothing of its GPUs."""
    made = node_document(node_name(index), None, None, {}, {"pool": "gpu"})
    made["metadata"] |= {"uid": f"node-{index}", "resourceVersion": "1"}
    return made


def waiting(template_name: str) -> Document:
    """Write a pod that claims by a template."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": template_name}]
    made = pod({"name": "main", "image": "train:1", "resources": {"claims": [{"name": "gpu"}]}}, resourceClaims=claims)
    made["metadata"] |= {"namespace": "team", "name": "waiting", "uid": "waiting", "resourceVersion": "1"}
    return made


def line(document: Document) -> bytes:
    """Write the line of a watch."""
    return json.dumps({"type": "MODIFIED", "object": document}, separators=(",", ":")).encode()


class Followed:
    """A service and a reflector for each kind, to which lines are given."""

    def __init__(self, folder: Path) -> None:
        self.service: Service = make_service(folder, [], shipped())
        kinds = (*core_kinds(self.service.state, self.service.book, "gpu-usher"), *dra_kinds(self.service.state, "v1"))
        self._reflectors = {kind.name: Reflector(kind, None, Metrics()) for kind in kinds}  # type: ignore[arg-type]

    def apply(self, kind: str, text: bytes) -> None:
        """Apply the line of a watch of a kind."""
        self._reflectors[API_KINDS[kind].plural].apply_event(text)


def rows() -> Iterator[Row]:
    """Measure a fleet of devices."""
    with tempfile.TemporaryDirectory() as folder:
        followed = Followed(Path(folder))
        yield from _ready(followed)
        leave_out_all()
        yield from _events(followed)
        yield from _questions(followed)


def _ready(followed: Followed) -> Iterator[Row]:
    devices = NODES * GPUS
    nodes = [("Node", line(bare_node(index))) for index in range(NODES)]
    others = [("DeviceClass", line(device_class("gpu.nvidia.com", DemoDeviceClass("gpu", "nvidia.com/gpu"))))]
    slices = [("ResourceSlice", line(slice_of(index))) for index in range(NODES)]
    claims = [("ResourceClaim", line(claim_of(index))) for index in range(NODES)]
    yield from _read(followed, [*nodes, *others], "nodes without labels, read")
    before = resident_mib()
    yield from _read(followed, slices, f"{devices:,} devices in {NODES:,} slices, read until ready", 5.0)
    yield Row("  memory of a device", (resident_mib() - before) * 1024 / devices, 3, "KiB")
    yield from _read(followed, claims, f"{NODES:,} claims with {HELD} devices each, read")
    followed.apply("ResourceClaimTemplate", line(template()))


def _read(followed: Followed, lines: list[tuple[str, bytes]], what: str, budget: float = 5.0) -> Iterator[Row]:
    before, started = reference(), time.process_time()
    for kind, text in lines:
        followed.apply(kind, text)
    seconds = time.process_time() - started
    yield timed(what, Scaled(seconds, (before + reference()) / 2 / REFERENCE_MS), budget, "s")


def _events(followed: Followed) -> Iterator[Row]:
    changed = [line(slice_of(index % 100, 2 + index // 100)) for index in range(10 * EVENTS)]
    allocations = [line(claim_of(index // 2, HELD if index % 2 else 0)) for index in range(400)]
    pods = [line({**waiting("large"), "metadata": {**waiting("large")["metadata"], "uid": f"u{index}", "name":
                  f"p{index}"}}) for index in range(10 * EVENTS)]  # fmt: skip
    for kind, lines, what, budget in (
        ("ResourceSlice", changed, "slice event, new generation of 8 devices", 500),
        ("ResourceClaim", allocations, "claim event, 4 devices given and taken", 100),
        ("Pod", pods, "pod event, waiting with a claim", 50),
    ):
        following = cycle(lines)
        rounds = paced(lambda kind=kind, following=following: cpu(  # type: ignore[misc]
            lambda: followed.apply(kind, next(following)), EVENTS))  # fmt: skip
        yield timed(what, middle((figure.p50, scale) for figure, scale in rounds), budget, "µs p50")


def _questions(followed: Followed) -> Iterator[Row]:
    service = followed.service
    asked = json.loads(filter_body(NODES))
    body = json.dumps({**asked, "Pod": waiting("large")}).encode()
    yield from timed_pair(
        "filter of a pod with a claim, 5,000 names", paced(partial(cpu, lambda: filter_nodes(body, service), 50)),
        1000, 3000)  # fmt: skip
    for what, find_fixes in (("explain, a claim that fits nowhere", True), ("  without fixes", False)):
        rounds = paced(partial(_explained, service, find_fixes), ROUNDS)
        yield timed(what, middle(rounds), 1, "s")


def _explained(service: Service, find_fixes: bool) -> float:
    started = time.process_time()
    explanation = finish(explain(waiting("large"), service.world_copied(), live=True, find_fixes=find_fixes))
    assert explanation.fits == 0
    assert explanation.unjudged == ()
    return time.process_time() - started


if __name__ == "__main__":
    LOGGER.setLevel(logging.CRITICAL)
    print_rows(rows())
    sys.exit(0)
