# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.events [SECONDS]`: what Events cost with 5,000 pods that wait for 20 causes.

It starts a control plane without a scheduler, since a pod that nobody places waits as well, and prints every minute
what was written, and the CPU time and memory of the service.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.controlplane.binaries import Binaries, find_binaries
from tests.controlplane.cluster import ControlPlane, control_plane
from tests.controlplane.fleet import add_nodes, node_object
from tests.controlplane.kubectl import Object
from tests.e2e.stage import DEPLOY, Service, create_namespace, gpu_pod, serving

PODS, CAUSES, NODES = 5_000, 20, 40
MINUTE = 60
GPU = "nvidia.com/gpu"


def nodes() -> Iterator[Object]:
    """Write old nodes of two makes, on which no pod of this bench can run."""
    for index in range(NODES):
        product = ("Tesla-T4", "NVIDIA-A10")[index % 2]
        yield node_object(f"n-{index}", product, "470.82.01", {GPU: 4})


def pods(namespace: str) -> Iterator[Object]:
    """Write pods whose needs have CAUSES variants, the pods of one need in one Job's name."""
    for index in range(PODS):
        variant = index % CAUSES
        annotations = {"gpu-memory": f"{40 + variant}Gi"} if variant % 2 else {"products": f"H100,!A{variant}"}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{variant}", "uid": f"uid-{variant}"}
        pod = gpu_pod(f"p-{index}", namespace, {GPU: 1 + variant % 4}, annotations=annotations)
        pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
        yield pod


def resident_mib(pid: int) -> int:
    """Return the resident memory of a process in MiB (proc(5), statm)."""
    return int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def measure(plane: ControlPlane, service: Service, seconds: float) -> None:
    """Print the figures, minute by minute."""
    began, cpu = time.monotonic(), service.process.cpu_seconds()
    print("seconds | Events on Jobs | on pods | causes told | waiting | CPU s | RSS MiB")
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(min(MINUTE, seconds - passed))
        events = plane.api.items("/apis/events.k8s.io/v1/events")
        kinds = Counter(event["regarding"]["kind"] for event in events)
        told = len({event["note"].partition("nodes fit. ")[2] for event in events})
        spent = service.process.cpu_seconds() - cpu
        figures = (kinds["Job"], kinds["Pod"], told, service.metric("gpu_usher_events_waiting"), round(spent, 1))
        print(round(time.monotonic() - began), *figures, resident_mib(service.process.pid), sep=" | ", flush=True)


def main(seconds: float) -> None:
    """Run the bench for so many seconds."""
    binaries = find_binaries()
    assert isinstance(binaries, Binaries), binaries
    os.environ["GPU_USHER_EVENTS"] = "true"
    with control_plane(binaries) as plane:
        create_namespace(plane, "gpu-usher")
        namespace = create_namespace(plane, "many")
        files = (DEPLOY / "components" / "events" / f"{name}.yaml" for name in ("rbac", "lease", "wake"))
        plane.kubectl("apply", *(word for file in files for word in ("-f", str(file))))
        add_nodes(plane.api, nodes())
        plane.api.create_all(f"/api/v1/namespaces/{namespace}/pods", pods(namespace))
        with serving(plane) as service:
            measure(plane, service, seconds)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 6 * MINUTE)
