# SPDX-License-Identifier: Apache-2.0
"""The notation of the sample fleets (fleets/*.yaml): pools of GPU nodes, in NVIDIA's and Kubernetes' words.

A pool describes the hardware and how it is shared. Labels, allocatable and ResourceSlices are derived from that, as the
components that write them do; `labels`, `offers` and `allocatable` override the derived values. A misspelt field is an
error.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec

from app.values.errors import BadInput

FOLDER = Path(__file__).parent / "fleets"
DEFAULT = "mixed"
"""The sample fleet of `--demo`."""


class DemoGPU(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU model: the name that `nvidia-smi -L` prints, memory in MiB, compute capability."""

    name: str
    memory: int
    compute: str


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The MIG slices of one profile on a node. `memory` is the MiB of one slice.

    `engines` are the numbers of copy, decoder, encoder, jpeg and ofa engines. `id` and `starts` are the GPU instance
    profile ID and the placements on every GPU, from which DRA makes device names.
    """

    count: int
    memory: int
    multiprocessors: int
    engines: tuple[int, int, int, int, int]
    id: int = 0
    starts: tuple[int, ...] = ()


class MIG(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node's GPUs are sliced; `whole` GPUs are not. Without slices MIG is off.

    `config` is what the administrator requested of mig-manager, and `state` the result.
    """

    strategy: Literal["single", "mixed"]
    slices: dict[str, Slice] = {}
    whole: int = 0
    invalid: bool = False
    config: str | None = None
    state: str | None = None


class DemoSharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device plugin's sharing; `renamed` is its `renameByDefault`."""

    strategy: Literal["time-slicing", "mps"]
    replicas: int
    renamed: bool = False


class NodePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Equal nodes; without `gpu`, nodes without GPUs.

    `names` are the nodes' names; with `nodes` set, each name stands for that many nodes, numbered from `-0`. `driver`
    and `cuda` are the driver's version and the highest CUDA version that it runs. `gfd` selects the labels of GPU
    Feature Discovery: those of v0.17 and later, those before v0.15, or none. `taints` are `key=value:Effect`; None
    stands for the fleet's. `offers` overrides the capacity, `allocatable` overrides amounts of it. `busy` is the number
    of GPUs that a running pod holds on each node, in order; nodes without a number are idle.
    """

    names: tuple[str, ...]
    nodes: int = 0
    gpus: int = 0
    gpu: DemoGPU | None = None
    driver: str = ""
    cuda: str = ""
    gfd: Literal["v0.17", "old", "none"] = "v0.17"
    machine: str = "unknown"
    clique: str | None = None
    sharing: DemoSharing | None = None
    mig: MIG | None = None
    dra: bool = False
    offers: dict[str, int] | None = None
    allocatable: dict[str, int] = {}
    labels: dict[str, str] = {}
    taints: tuple[str, ...] | None = None
    cordoned: bool = False
    busy: tuple[int, ...] = ()
    cpu: str = "64"
    memory: str = "512Gi"

    def node_names(self) -> tuple[str, ...]:
        return (
            tuple(f"{name}-{number}" for name in self.names for number in range(self.nodes))
            if self.nodes
            else self.names
        )


class DemoPod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod bound to a node, or without `node` a pending one as admission leaves it.

    `asks` are requests and limits of its one container, `priority` is that of its class, `created` its creation time as
    the API server writes it, `owner` the kind and name of its controller, such as Job/pretrain.
    """

    name: str
    asks: dict[str, int | str]
    node: str = ""
    owner: str = ""
    created: str = ""
    namespace: str = "team-b"
    annotations: dict[str, str] = {}
    image: str = "train:1"
    priority: int = 0


class DemoDeviceClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A DeviceClass of NVIDIA's devices of a type; `serves` is its extendedResourceName."""

    type: Literal["gpu", "mig"]
    serves: str | None = None


class DemoFleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample fleet. `labels` and `taints` are those of every node with GPUs.

    `namespaces` are namespaces with their labels; `default` always exists. `objects` are further objects as the API
    server has them, such as ResourceClaims and the pods that use them.
    """

    description: str
    pools: tuple[NodePool, ...]
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    pods: tuple[DemoPod, ...] = ()
    namespaces: dict[str, dict[str, str]] = {}
    runtime_classes: tuple[str, ...] = ("nvidia",)
    device_classes: dict[str, DemoDeviceClass] = {}
    objects: tuple[dict[str, Any], ...] = ()


def fleet_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def read_fleet(name: str) -> DemoFleet:
    """Read a sample fleet.

    Raises BadInput for an unknown name.
    """
    if name not in fleet_names():
        raise BadInput(f"demo fleet: got {name[:40]!r}, wants one of {', '.join(fleet_names())}")
    return msgspec.yaml.decode((FOLDER / f"{name}.yaml").read_bytes(), type=DemoFleet)
