# SPDX-License-Identifier: Apache-2.0
"""What the pods of `make bench-scheduler` ask for besides a GPU: soft constraints, or nothing of a GPU at all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.bench.fleet import MAKES, ZONE
from tests.bench.load import one_gpu_pods
from tests.controlplane.kubectl import Object

Change = Callable[[int, Object], None]


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods of a run: `change` is what makes the pod of an index different from one that asks for one GPU.

    `every_pod` sends pods without a GPU to the extender too (`scheduler-config --every-pod`). `profiles` is how many
    profiles of the scheduler share the pods.
    """

    change: Change
    every_pod: bool = False
    profiles: int = 1

    def pods(self, count: int, schedulers: list[str]) -> Iterator[Object]:
        """Write the pods, by turns for the profiles of these names."""
        for index, pod in enumerate(one_gpu_pods(count, schedulers[0])):
            pod["spec"]["schedulerName"] = schedulers[index % len(schedulers)]
            self.change(index, pod)
            yield pod


def nothing(_: int, __: Object) -> None:
    """Leave the pod as it is."""


def over_zones(_: int, pod: Object) -> None:
    """Spread the pods over zones where that is possible, as many Deployments do."""
    pod["metadata"]["labels"] = {"app": "load"}
    pod["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": ZONE,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "load"}},
        }
    ]


def preferred_product(index: int, pod: Object) -> None:
    """Prefer a product, another from pod to pod, with two terms of different weight."""
    wanted = [MAKES[(index + place) % len(MAKES)][0] for place in range(2)]
    pod["spec"]["affinity"] = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": weight,
                    "preference": {
                        "matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": [product]}]
                    },
                }
                for weight, product in zip((50, 10), wanted, strict=True)
            ]
        }
    }


def whole_node(_: int, pod: Object) -> None:
    """Ask for eight GPUs, all that the larger half of the nodes have, as training jobs do."""
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "8"


def without_gpu(_: int, pod: Object) -> None:
    """Ask for no GPU."""
    del pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]


def some_without_gpu(index: int, pod: Object) -> None:
    """Take the GPU from three pods of ten."""
    if index % 10 < 3:
        del pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]


WORKLOADS: Mapping[str, Workload] = {
    "one GPU": Workload(nothing),
    "zone spread": Workload(over_zones),
    "preferred product": Workload(preferred_product),
    "30 % without GPU": Workload(some_without_gpu, every_pod=True),
    "whole node": Workload(whole_node),
    "CPU": Workload(without_gpu),
    "two profiles": Workload(nothing, profiles=2),
}
"""Workload by name, as the command takes it."""
