# SPDX-License-Identifier: Apache-2.0
"""The workloads of a fleet that hold GPUs, and which of them a hold of the history belongs to."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.usage.history import Hold
from app.usage.owners import owner_by_name
from app.usage.right_size import Workload
from app.whatif.placing_in_turn import GPUPod


def workloads_of(
    pods: Iterable[GPUPod], documents: Mapping[str, Mapping[str, Any]], owners: Mapping[str, str]
) -> tuple[Workload, ...]:
    """Group the bound pods by workload; `documents` and `owners` are by namespace/name."""
    groups: dict[str, list[GPUPod]] = {}
    for pod in pods:
        if pod.node:
            groups.setdefault(owners[pod.name], []).append(pod)
    return tuple(
        Workload(name, _kind(name), tuple(some), tuple(documents[pod.name] for pod in some))
        for name, some in sorted(groups.items())
    )


def _kind(workload: str) -> str:
    parts = workload.split("/")
    return parts[1] if len(parts) == 3 else ""


def workload_of(owners: Mapping[str, str]) -> Callable[[Hold], str | None]:
    """Return what gives the workload of a hold: that of its pod, or for a pod that is gone that of pods named alike."""
    alike = {}
    for pod, owner in owners.items():
        namespace, _, name = pod.partition("/")
        alike[f"{namespace}/{owner_by_name(name)}"] = owner

    def workload(hold: Hold) -> str | None:
        own = owners.get(f"{hold.namespace}/{hold.pod}")
        return own or alike.get(f"{hold.namespace}/{owner_by_name(hold.pod)}")

    return workload
