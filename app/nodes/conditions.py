# SPDX-License-Identifier: Apache-2.0
"""What others write on a node: the keys of its GPU labels, and the conditions that report a fault of its GPUs.

The labels are those of GPU Feature Discovery (GFD), MIG Manager and the GPU Operator. Of two keys for one fact the one
named OLD is deprecated, but v0.20.0 still writes it (NVIDIA/k8s-device-plugin internal/lm/nvml.go, CHANGELOG.md). A
pair holds the start of several keys, and the parts that end them. The conditions are those of
knowledge/node_conditions.yaml.
"""

import re
from calendar import timegm
from collections.abc import Iterable
from dataclasses import dataclass

from app.knowledge.dcgm import GPUCondition
from app.knowledge.reported_faults import guessed_meaning
from app.knowledge.tables import Knowledge
from app.kube.objects import NodeObject, ObjectCondition

MOST_CONDITIONS = 16
"""Conditions that are kept of one node, in the order of their types. A guess; publishers report a few at a time."""
LONGEST_CONDITION_TEXT = 256
"""Characters that are kept of a reason and of a message, which every writer of the node's status chooses."""


LONGEST_TYPE = 316
"""Characters of the type of a condition (apimachinery meta/v1 types.go ObjectCondition.type, MaxLength)."""


@dataclass(frozen=True, slots=True)
class BadCondition:
    """One condition of a node that reports a fault.

    `name` is its type and status, as kubectl wait takes them. `words` add the reason and the message of its publisher,
    each cut to LONGEST_TEXT and without control characters. `severity`, `meaning`, `publisher` and `remedy` are those
    of the table; the publisher is empty where the meaning is guessed from the type.
    """

    name: str
    words: str
    severity: GPUCondition
    meaning: str
    publisher: str
    remedy: str

    @property
    def explained(self) -> str:
        """The meaning, and whose it is."""
        return f"{self.meaning}, as {self.publisher} says" if self.publisher else self.meaning


def read_bad_conditions(conditions: Iterable[ObjectCondition], knowledge: Knowledge) -> tuple[BadCondition, ...]:
    """Read the conditions of a node's status that report a fault, by type; of equal types the last counts.

    A heartbeat does not change what is returned, as it has no times.
    """
    found: dict[str, BadCondition] = {}
    for condition in conditions:
        kind, state = condition.type, condition.status
        row = knowledge.node_conditions.get(kind) or guessed_meaning(kind[:LONGEST_TYPE], knowledge.condition_guesses)
        if row is None:
            continue
        found.pop(row.name, None)
        if state in row.bad:
            reason, message = condition.reason or "", condition.message or ""
            doubt = next((doubt for doubt in row.doubts if doubt.explains(reason, message)), None)
            name, said = f"{row.name}={state}", ": ".join(filter(None, map(_printable, (reason, message))))
            found[row.name] = BadCondition(
                name=name,
                words=f"{name} ({said})" if said else name,
                severity=GPUCondition.Ailing if doubt else row.severity,
                meaning=(doubt or row).meaning,
                publisher=row.publisher,
                remedy=(doubt or row).remedy,
            )
    return tuple(found[name] for name in sorted(found)[:MOST_CONDITIONS]) if found else ()


TAINTS_WHILE_NOT_READY = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
"""The taints of a node whose Ready condition is Unknown, or False (kubernetes pkg/controller/nodelifecycle)."""
NEVER_POSTED = "NodeStatusNeverUpdated"
"""The reason of the Ready condition where no kubelet ever wrote one (pkg/controller/nodelifecycle)."""
REGISTERING_SECONDS = 60.0
"""A Ready condition that is False since a time at most so long after the node's creation was never true: a kubelet
writes it as it registers the node. A guess."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """A node whose Ready condition is not true, so that no new pod can run there.

    `answers` is whether its kubelet still reports. `since` and `created` are times as the API server writes them, empty
    if unknown. `says` are the words of the kubelet, or of the node lifecycle controller. `never` is whether the node
    has not been Ready since its creation.
    """

    answers: bool
    since: str
    says: str
    never: bool
    created: str = ""


def read_not_ready(node: NodeObject) -> NotReady | None:
    """Read the Ready condition of a Node, or the taint that follows from it; None for a node that is Ready."""
    ready = next((one for one in node.status.conditions or () if one.type == "Ready"), None)
    created = node.metadata.creation_timestamp or ""
    if ready is None:
        taint = next((one for one in node.spec.taints or () if one.key in TAINTS_WHILE_NOT_READY), None)
        if taint is None:
            return None
        unreachable = taint.key == TAINTS_WHILE_NOT_READY[0]
        return NotReady(not unreachable, taint.time_added or "", "", not unreachable, created)
    if ready.status == "True":
        return None
    since, reason = ready.last_transition_time or "", ready.reason or ""
    begun, became = read_time(created), read_time(since)
    at_birth = begun is not None and became is not None and became - begun <= REGISTERING_SECONDS
    answers = ready.status == "False"
    says = _printable(ready.message or reason)
    return NotReady(answers, since, says, reason == NEVER_POSTED or (answers and at_birth), created)


def read_time(text: str) -> float | None:
    """Read a time as the API server writes it, in seconds since 1970; None for anything else."""
    parts = _TIME.match(text)
    return float(timegm(tuple(map(int, parts.groups())))) if parts else None


_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", re.ASCII)


def _printable(text: str) -> str:
    """Cut a text, and replace what a terminal would interpret."""
    return " ".join(
        "".join(letter if letter.isprintable() else " " for letter in text[:LONGEST_CONDITION_TEXT]).split()
    )


NVIDIA_DOMAIN = "nvidia.com/"
"""The domain of NVIDIA's labels and resources."""
ARCHITECTURE = "kubernetes.io/arch"
"""The label of the CPU architecture, such as amd64, which every kubelet writes."""
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
COUNT = "nvidia.com/gpu.count"
PRESENT = "nvidia.com/gpu.present"
REPLICAS = "nvidia.com/gpu.replicas"
SHARING = "nvidia.com/gpu.sharing-strategy"
CLIQUE = "nvidia.com/gpu.clique"
MIG_STRATEGY = "nvidia.com/mig.strategy"
MIG_CONFIG = "nvidia.com/mig.config"
MIG_STATE = "nvidia.com/mig.config.state"
MIG_CAPABLE = "nvidia.com/mig.capable"
MIG_MANAGER = "nvidia.com/gpu.deploy.mig-manager"
SLICE_LABELS = "nvidia.com/mig-"
"""The start of the keys about MIG slices: GFD puts a suffix such as `.count` or `.memory` to the slice's resource."""
UPGRADE_STATE = "nvidia.com/gpu-driver-upgrade-state"
PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
DRIVER = ("nvidia.com/cuda.driver-version", ("major", "minor", "revision"))
OLD_DRIVER = ("nvidia.com/cuda.driver", ("major", "minor", "rev"))
RUNTIME = ("nvidia.com/cuda.runtime-version", ("major", "minor"))
OLD_RUNTIME = ("nvidia.com/cuda.runtime", ("major", "minor"))
COMPUTE = ("nvidia.com/gpu.compute", ("major", "minor"))
MIG_KEYS = (MIG_STRATEGY, MIG_CONFIG, MIG_STATE, MIG_CAPABLE, MIG_MANAGER)
FAMILY = "nvidia.com/gpu.family"
CC_MODE, CC_READY = "nvidia.com/cc.mode.state", "nvidia.com/cc.ready.state"
MODE = "nvidia.com/gpu.mode"
FACT_LABELS: tuple[str, ...] = (FAMILY, CC_MODE, CC_READY, MODE)
"""The keys whose values a node's class keeps as they are, for the facts of policy/needs.py."""
SINGLE_KEYS = (
    ARCHITECTURE, PRODUCT, MEMORY, COUNT, REPLICAS, SHARING, *MIG_KEYS, UPGRADE_STATE, PLUGIN, *FACT_LABELS
)  # fmt: skip
"""The keys, without those of versions and of slices, on which a node's class depends."""
VERSIONS = (DRIVER, OLD_DRIVER, RUNTIME, OLD_RUNTIME, COMPUTE)
PAUSED_FOR_MIG, PAUSED_FOR_DRIVER = "paused-for-mig-change", "paused-for-driver-upgrade"
"""Values that MIG Manager and the driver manager write to PLUGIN while they work (NVIDIA/gpu-operator
controllers/state_manager.go)."""
