# SPDX-License-Identifier: Apache-2.0
"""Reasons why a pod is refused: a value with a code, a message, a remedy, and whether evicting pods could help.

The codes are the metric labels and the vocabulary of events, warnings, logs and explain (docs/reference/reasons.md).
A new code is one line here, with its remedy, and one test.
"""

from dataclasses import dataclass
from enum import Enum

MESSAGE_LIMIT = 100
"""Characters of a message. kube-scheduler cuts an event at 1,024 in all
(docs/reference/control-plane.md#calls-of-the-scheduler)."""


class ReasonKind(Enum):
    """Which stage refuses: a class filter (evicting pods cannot help), a free filter (it can), or admission."""

    CLASS = "class"
    FREE = "free"
    ADMISSION = "admission"


class Code(Enum):
    """The closed list of causes for a refusal; the value of a code is (kind, remedy)."""

    ProductNotAllowed = (
        ReasonKind.CLASS,
        "allow one of this fleet's products in gpu-usher.io/products or the policy",
    )
    DriverTooOld = ReasonKind.CLASS, "upgrade the node's driver, or use an image built for an older CUDA"
    DriverUnknown = ReasonKind.CLASS, "install GPU Feature Discovery, or set unknownFacts: Accept in the policy"
    ImageRequirementUnmet = (
        ReasonKind.CLASS,
        "use a driver branch the image names, or set NVIDIA_DISABLE_REQUIRE=1 if you know better",
    )
    ComputeCapabilityTooLow = ReasonKind.CLASS, "use a newer GPU, or an image that still supports this one"
    ComputeCapabilityUnsupported = ReasonKind.CLASS, "use an image whose CUDA toolkit can target this GPU"
    GPUMemoryTooSmall = ReasonKind.CLASS, "ask for less gpu-usher.io/gpu-memory, or add nodes with larger GPUs"
    SharingNotAllowed = ReasonKind.CLASS, "ask for gpu-usher.io/sharing: Any, or add nodes with whole GPUs"
    MIGProfileAbsent = ReasonKind.CLASS, "ask for a profile that a node offers, or have MIG Manager create it"
    MIGInvalid = ReasonKind.CLASS, "repair the node's MIG layout: one profile on all GPUs, or strategy mixed"
    MIGReconfiguring = ReasonKind.CLASS, "wait for MIG Manager to reach success, or look at its log"
    DriverUpgrading = ReasonKind.CLASS, "wait for the driver upgrade to finish"
    InterconnectAbsent = ReasonKind.CLASS, "drop gpu-usher.io/interconnect, or add SXM or NVL72 nodes"
    FormFactorNotAllowed = ReasonKind.CLASS, "allow another form factor in the policy, or add such nodes"
    NodeExcluded = ReasonKind.CLASS, "change the policy's node selector"
    GhostGPUs = ReasonKind.CLASS, "look at the device plugin: the labels promise GPUs that allocatable lacks"
    GPUFactsMissing = (
        ReasonKind.CLASS,
        "install GPU Feature Discovery so that nodes say what they have; gpu-usher doctor names those that cannot",
    )
    GPUUnhealthy = (
        ReasonKind.CLASS,
        "look at the device plugin and at the node's XID errors; gpu-usher doctor names both",
    )
    NodeNotKnown = ReasonKind.CLASS, "wait a moment: the node is newer than our view"
    ResourceNotOffered = ReasonKind.CLASS, "ask for a resource that some node offers, or start the device plugin"
    RequestExceedsNode = ReasonKind.CLASS, "ask for fewer GPUs per pod, or add larger nodes"
    InsufficientGPUs = ReasonKind.FREE, "wait for GPUs to be freed, or add nodes"
    GPUMemoryBudgetExceeded = (
        ReasonKind.FREE,
        "declare less gpu-usher.io/gpu-memory, or wait for a share to be freed",
    )
    LayoutDoesNotFit = ReasonKind.FREE, "wait for slices to be freed, or ask for a smaller profile"
    ObjectTooLarge = ReasonKind.ADMISSION, "make it smaller, or split it: no more of an object is read"
    RequestsOnly = ReasonKind.ADMISSION, "set the same amount in resources.limits"
    RequestLimitMismatch = ReasonKind.ADMISSION, "make requests equal to limits"
    QuantityFractional = ReasonKind.ADMISSION, "ask for a whole number, a MIG profile, or nvidia.com/gpu.shared"
    QuantityNegative = ReasonKind.ADMISSION, "ask for zero or more"
    TooManyGPUs = ReasonKind.ADMISSION, "ask for fewer GPUs, or have the policy's maxGPUsPerPod raised"
    SharedReplicasAskedAsGPUs = ReasonKind.ADMISSION, "ask for one replica: more are not more GPU"
    VisibleDevicesForbidden = ReasonKind.ADMISSION, "remove NVIDIA_VISIBLE_DEVICES and ask for the GPU in limits"
    PrivilegedGPUPod = ReasonKind.ADMISSION, "drop privileged: true"
    NodeDevicesReached = (
        ReasonKind.ADMISSION,
        "drop privileged: true and such hostPath volumes, or have the pod excepted in the policy",
    )
    ReservedAnnotation = ReasonKind.ADMISSION, "remove the annotation: gpu-usher writes it"
    InvalidAnnotation = ReasonKind.ADMISSION, "write the annotation as policies/README.md says"
    NoProductLeft = ReasonKind.ADMISSION, "widen gpu-usher.io/products or one of the policies named"
    PolicyConflict = ReasonKind.ADMISSION, "change the annotation or one of the policies named"
    RuntimeClassMissing = ReasonKind.ADMISSION, "create the RuntimeClass, or drop runtimeClassName from the policy"
    InvalidPolicy = ReasonKind.ADMISSION, "mend it as said; gpu-usher lint finds the same before you apply"
    BypassesScheduling = ReasonKind.ADMISSION, "remove spec.nodeName, and schedulerName unless the policy sets it"

    @property
    def kind(self) -> ReasonKind:
        """The stage that refuses with this code."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """The one thing that a user or an administrator can do about it."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a pod is refused, by a node or at admission.

    `message` may name what the pod wants, but no value of a node: kube-scheduler groups nodes with equal messages.
    """

    code: Code
    message: str

    @property
    def remedy(self) -> str:
        """The one thing that a user or an administrator can do about it."""
        return self.code.remedy

    @property
    def preemptible(self) -> bool:
        """Tell whether evicting pods could help.

        The filter verb then lists the node in FailedNodes, otherwise in FailedAndUnresolvableNodes.
        """
        return self.code.kind is ReasonKind.FREE


def reason(code: Code, wrong: str, wants: str = "") -> Reason:
    """Build a reason whose message says what is wrong and what is wanted, within MESSAGE_LIMIT characters."""
    message = f"{wrong}: wants {wants}" if wants else wrong
    return Reason(code, message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…")


def join_with_or(choices: tuple[str, ...] | list[str]) -> str:
    """Join choices to a text such as `H100, H200 or L40S`."""
    if len(choices) < 2:
        return "".join(choices)
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
