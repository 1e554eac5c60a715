# SPDX-License-Identifier: Apache-2.0
"""The notation of the sample fleets (fleets/*.yaml): pools of GPU nodes, said once, in NVIDIA's and Kubernetes' words.

A pool says what the hardware is and how it is given out; labels, allocatable and ResourceSlices follow from that, as
the components that write them would. What `labels`, `offers` and `allocatable` say overrules what follows.
A misspelt field is an error.
"""

from pathlib import Path
from typing import Literal

import msgspec

from app.values.errors import BadInput

FOLDER = Path(__file__).parent / "fleets"
DEFAULT = "mixed"
"""The sample fleet of `--demo`."""


class DemoGPU(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A make of GPU: the name that `nvidia-smi -L` prints, memory in MiB, compute capability."""

    name: str
    memory: int
    compute: str


class Slice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """MIG slices of one profile on a node. `memory`: MiB of one; `engines`: copy, decoder, encoder, jpeg, ofa.

    `id` and `starts`: GPU instance profile id and placements on every GPU, for DRA, which names devices by them.
    """

    count: int
    memory: int
    multiprocessors: int
    engines: tuple[int, int, int, int, int]
    id: int = 0
    starts: tuple[int, ...] = ()


class MIG(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a node's GPUs are sliced; `whole`: GPUs left unsliced. Without slices MIG is off.

    `config`, `state`: what the administrator asked of mig-manager, and what it made of that.
    """

    strategy: Literal["single", "mixed"]
    slices: dict[str, Slice] = {}
    whole: int = 0
    invalid: bool = False
    config: str | None = None
    state: str | None = None


class DemoSharing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The device plugin's sharing; `renamed`: its `renameByDefault`."""

    strategy: Literal["time-slicing", "mps"]
    replicas: int
    renamed: bool = False


class NodePool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes of one make; without `gpu`, nodes without GPUs.

    `names`: the nodes'; with `nodes` set, each name stands for that many, `-0` upwards. `driver`, `cuda`: its version
    and the highest CUDA it runs. `gfd`: which labels GPU Feature Discovery writes: those of v0.17 and later, those of
    before v0.15, or none, where it does not run. `taints`: `key=value:Effect`; None takes the fleet's.
    `offers`: capacity, where it is not what follows; `allocatable`: where that differs from capacity.
    `busy`: GPUs held by a running pod on each node, in order; missing ones are idle.
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
        """List the names of the nodes."""
        return tuple(f"{each}-{n}" for each in self.names for n in range(self.nodes)) if self.nodes else self.names


class DemoPod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pod bound to a node; without `node` one that waits, as admission let it in. `asks`: requests and limits of its
    one container. `priority`: its class's. `created`: when, as the API server writes it.
    """

    name: str
    asks: dict[str, int | str]
    node: str = ""
    created: str = ""
    namespace: str = "team-b"
    annotations: dict[str, str] = {}
    image: str = "train:1"
    priority: int = 0


class DemoDeviceClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A DeviceClass over NVIDIA's devices of a type; `serves`: its extendedResourceName (KEP-5004)."""

    type: Literal["gpu", "mig"]
    serves: str | None = None


class DemoFleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample fleet. `labels`, `taints`: of every node with GPUs. `namespaces`: each with its labels; `default` is
    there anyway.
    """

    description: str
    pools: tuple[NodePool, ...]
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    pods: tuple[DemoPod, ...] = ()
    namespaces: dict[str, dict[str, str]] = {}
    runtime_classes: tuple[str, ...] = ("nvidia",)
    device_classes: dict[str, DemoDeviceClass] = {}


def fleet_names() -> tuple[str, ...]:
    """List the sample fleets."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


def read_fleet(name: str) -> DemoFleet:
    """Read a sample fleet by its name.

    Raises BadInput for a name there is no fleet of.
    """
    if name not in fleet_names():
        raise BadInput(f"demo fleet: got {name[:40]!r}, wants one of {', '.join(fleet_names())}")
    return msgspec.yaml.decode((FOLDER / f"{name}.yaml").read_bytes(), type=DemoFleet)
