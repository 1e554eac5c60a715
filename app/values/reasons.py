# SPDX-License-Identifier: Apache-2.0
"""Reasons why a pod is refused: a value with a code, a message, a remedy, and whether evicting pods could help.

The codes are the metric labels and the vocabulary of events, warnings, logs and explain (docs/reference/reasons.md).
A new code is one line here, with its stage, duration and remedy, and one test.
"""

from dataclasses import dataclass
from enum import Enum

MESSAGE_LIMIT = 100
"""Characters of a message. kube-scheduler joins the distinct messages of all nodes in one event and cuts it at 1,024
(docs/reference/control-plane.md#calls-of-the-scheduler), so that ten messages have room. A guess: few pods are refused
for more causes at once."""
ADMISSION_MESSAGE_LIMIT = 300
"""Characters of a message of admission, which a user reads alone: it quotes up to three names of 63 characters. A
guess."""


class ReasonKind(Enum):
    """Which stage refuses: a class filter (evicting pods cannot help), a free filter (it can), or admission."""

    CLASS = "class"
    FREE = "free"
    ADMISSION = "admission"


class FunnelStage(Enum):
    """The steps of the funnel, in order; the value labels the nodes that are left after the step.

    At Admission all nodes are cut, since the pod itself is refused.
    """

    Admission = "admitted"
    Selectors = "taints and selectors"
    Resources = "CPU, memory and pods"
    Volumes = "volumes"
    OtherPods = "other pods"
    Claims = "devices that are claimed"
    Product = "GPU product"
    Driver = "driver and CUDA"
    Memory = "GPU memory"
    Sharing = "sharing and MIG"
    Health = "health"
    Free = "free now"


class Duration(Enum):
    """How long a refusal lasts.

    A lasting one stays until the node or the policy is changed on purpose: a pod that runs on such a node is misplaced
    (cluster/slipped_pods.py). A reported one follows from what the node reports, such as its labels, and may be gone in
    a moment. A transient one passes while pod and node stay as they are, because resources are in use or maintenance is
    in progress.
    """

    LASTING = "lasting"
    REPORTED = "reported"
    TRANSIENT = "transient"


Traits = tuple[ReasonKind, FunnelStage, Duration, str]


def _node(stage: FunnelStage, duration: Duration, remedy: str) -> Traits:
    return ReasonKind.CLASS, stage, duration, remedy


def _free(remedy: str) -> Traits:
    return ReasonKind.FREE, FunnelStage.Free, Duration.TRANSIENT, remedy


def _admission(remedy: str, stage: FunnelStage = FunnelStage.Admission) -> Traits:
    return ReasonKind.ADMISSION, stage, Duration.REPORTED, remedy


class Code(Enum):
    """The closed list of causes for a refusal; the value of a code is (kind, stage, duration, remedy)."""

    ProductNotAllowed = _node(
        FunnelStage.Product,
        Duration.LASTING,
        "allow a product that the cluster has, in gpu-usher.io/products or the policy",
    )
    DriverTooOld = _node(
        FunnelStage.Driver, Duration.LASTING, "upgrade the node's driver, or use an image built for an older CUDA"
    )
    DriverUnknown = _node(
        FunnelStage.Driver,
        Duration.REPORTED,
        "install GPU Feature Discovery, or set unknownFacts: Accept in the policy",
    )
    GPUWithoutCUDA = _node(
        FunnelStage.Driver, Duration.LASTING, "use an image built for this vendor's GPUs, or ask for GPUs that run CUDA"
    )
    ImageRequirementUnmet = _node(
        FunnelStage.Driver,
        Duration.LASTING,
        "use a driver branch that the image names, or set NVIDIA_DISABLE_REQUIRE=1 if the image works without",
    )
    ImageForOtherMachine = _node(
        FunnelStage.Product,
        Duration.LASTING,
        "use an image that is built for the nodes' CPU architecture, or add such nodes",
    )
    ImageWithoutCodeForGPU = _node(
        FunnelStage.Product,
        Duration.LASTING,
        "use an image of a release and CUDA whose builds have code for this GPU",
    )
    ComputeCapabilityTooLow = _node(
        FunnelStage.Product, Duration.LASTING, "use a newer GPU, or an image that still supports this one"
    )
    ComputeCapabilityUnsupported = _node(
        FunnelStage.Driver, Duration.LASTING, "use an image whose CUDA toolkit can target this GPU"
    )
    GPUMemoryTooSmall = _node(
        FunnelStage.Memory, Duration.LASTING, "ask for less gpu-usher.io/gpu-memory, or add nodes with larger GPUs"
    )
    SharingNotAllowed = _node(
        FunnelStage.Sharing, Duration.LASTING, "ask for gpu-usher.io/sharing: Any, or add nodes with whole GPUs"
    )
    MIGProfileAbsent = _node(
        FunnelStage.Sharing, Duration.LASTING, "ask for a profile that a node offers, or have MIG Manager create it"
    )
    MIGInvalid = _node(
        FunnelStage.Sharing,
        Duration.REPORTED,
        "repair the node's MIG layout: one profile on all GPUs, or strategy mixed",
    )
    MIGReconfiguring = _node(
        FunnelStage.Health,
        Duration.TRANSIENT,
        "wait until mig.config.state is success, or read MIG Manager's log; remove nvidia.com/mig.config if unused",
    )
    MIGLayoutFailed = _node(
        FunnelStage.Health,
        Duration.REPORTED,
        "read MIG Manager's log for GPUs in use, or a layout not of this product; "
        "then change nvidia.com/mig.config, or restart its pod",
    )
    DriverUpgrading = _node(FunnelStage.Health, Duration.TRANSIENT, "wait for the driver upgrade to finish")
    InterconnectAbsent = _node(
        FunnelStage.Product, Duration.LASTING, "drop gpu-usher.io/interconnect, or add SXM or NVL72 nodes"
    )
    FormFactorNotAllowed = _node(
        FunnelStage.Product, Duration.LASTING, "allow another form factor in the policy, or add such nodes"
    )
    ArchitectureNotAllowed = _node(
        FunnelStage.Product, Duration.LASTING, "allow another GPU architecture, or add nodes with such GPUs"
    )
    ConfidentialComputingOff = _node(
        FunnelStage.Product, Duration.REPORTED, "set nvidia.com/cc.mode on such nodes, and read the CC manager's log"
    )
    GPUModeNotAllowed = _node(
        FunnelStage.Product, Duration.LASTING, "allow another mode of the GPU in gpu-usher.io/gpu-mode or the policy"
    )
    RuntimeHandlerAbsent = _node(
        FunnelStage.Selectors,
        Duration.REPORTED,
        "drop runtimeClassName, which CDI does not need, or have the node's container runtime configured with it",
    )
    NodeExcluded = _node(FunnelStage.Selectors, Duration.LASTING, "change the policy's node selector")
    NamespaceLimitReached = _node(
        FunnelStage.Product,
        Duration.TRANSIENT,
        "wait until other pods of the namespace end, or have the policy's namespaceLimits raised",
    )
    GhostGPUs = _node(
        FunnelStage.Health,
        Duration.REPORTED,
        "run gpu-usher doctor: it names the label that promises GPUs, and the missing driver, toolkit or device plugin",
    )
    GPUFactsMissing = _node(
        FunnelStage.Product,
        Duration.REPORTED,
        "install or repair the vendor's node labeller; gpu-usher doctor names it and the nodes",
    )
    GPUUnhealthy = _node(
        FunnelStage.Health,
        Duration.TRANSIENT,
        "check the device plugin and the source of the GPUs' errors; gpu-usher doctor names both",
    )
    NodeNotKnown = _node(FunnelStage.Selectors, Duration.REPORTED, "wait a moment: gpu-usher has not seen the node yet")
    ResourceNotOffered = _node(
        FunnelStage.Product, Duration.REPORTED, "ask for a resource that some node offers, or start the device plugin"
    )
    RequestExceedsNode = _node(FunnelStage.Free, Duration.REPORTED, "ask for fewer GPUs per pod, or add larger nodes")
    InsufficientGPUs = _free("wait for GPUs to be freed, or add nodes")
    RequestExceedsNUMANode = _node(
        FunnelStage.Free,
        Duration.REPORTED,
        "ask for fewer GPUs, or set topologyManagerPolicy best-effort in the kubelet",
    )
    InsufficientGPUsOnNUMANode = _free("wait for GPUs of one NUMA node to be freed")
    GPUMemoryBudgetExceeded = _free("declare less gpu-usher.io/gpu-memory, or wait for a share to be freed")
    OfferedByClaimOnly = _node(
        FunnelStage.Free,
        Duration.REPORTED,
        "request the GPUs by a ResourceClaim, or set extendedResourceName in the DeviceClass of the driver",
    )
    GPUHeldByClaim = _free("let either the device plugin or DRA serve the node, or wait for the pods with claims there")
    GPUHeldByDevicePlugin = _free(
        "let either the device plugin or DRA serve the node, or wait for the pods with GPUs of the plugin there"
    )
    LayoutDoesNotFit = _free("wait for slices to be freed, or ask for a smaller profile")
    ObjectTooLarge = _admission("make the object smaller, or split it")
    ResourceNameInvalid = _admission(
        "ask in the resources of a container, by the name that the device plugin gives, such as nvidia.com/gpu"
    )
    RequestsOnly = _admission("set the same amount in resources.limits")
    RequestLimitMismatch = _admission("make requests equal to limits")
    QuantityFractional = _admission("ask for a whole number, a MIG profile, or nvidia.com/gpu.shared")
    QuantityNegative = _admission("ask for zero or more")
    TooManyGPUs = _admission("ask for fewer GPUs, or have the policy's maxGPUsPerPod raised")
    ClaimNotKnown = _admission("create it first, then the pod again")
    ClaimUnrestricted = _admission("delete the claim or template and create it again: gpu-usher adds the selectors")
    SharedReplicasAskedAsGPUs = _admission("ask for one replica; several may be on the same GPU", FunnelStage.Sharing)
    MemoryRequestNotLimit = _admission("set the same amount of memory in resources.requests and resources.limits")
    AmountPerGPUOutOfBounds = _admission("change the request, or the number of GPUs")
    IdleGPUsHeld = _admission("stop pods whose GPUs are idle; gpu-usher usage lists them")
    VisibleDevicesForbidden = _admission("remove it, and request GPUs in resources.limits")
    PrivilegedGPUPod = _admission("set privileged: false")
    NodeDevicesReached = _admission("remove it, or ask for an exception in the policy")
    ReservedAnnotation = _admission("remove the annotation: gpu-usher writes it")
    InvalidAnnotation = _admission("correct the annotation, or remove it")
    NoProductLeft = _admission("widen gpu-usher.io/products or one of the policies named")
    PolicyConflict = _admission("change the annotation or one of the policies named")
    RuntimeClassMissing = _admission("create the RuntimeClass, or drop runtimeClassName from the policy")
    InvalidPolicy = _admission("fix as described; gpu-usher policy lint finds this before you apply")
    BypassesScheduling = _admission("remove spec.nodeName, and any schedulerName that the policy does not set")

    @property
    def kind(self) -> ReasonKind:
        """The stage that refuses with this code."""
        return self.value[0]

    @property
    def stage(self) -> FunnelStage:
        """The stage of the funnel at which a node falls out."""
        return self.value[1]

    @property
    def duration(self) -> Duration:
        """How long the refusal stands."""
        return self.value[2]

    @property
    def remedy(self) -> str:
        """The one thing that a user or an administrator can do about it."""
        return self.value[3]


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
    def advice(self) -> str:
        """The message and the remedy as one sentence; a message that asks `did you mean …?` names its remedy itself."""
        return self.message if self.message.endswith("?") else f"{self.message}; {self.remedy}"

    @property
    def preemptible(self) -> bool:
        """Tell whether evicting pods could help.

        The filter verb then lists the node in FailedNodes, otherwise in FailedAndUnresolvableNodes.
        """
        return self.code.kind is ReasonKind.FREE


def reason(code: Code, wrong: str, wants: str = "") -> Reason:
    """Build a reason whose message says what is wrong and what is wanted, within the limit of its kind.

    That is ADMISSION_LIMIT characters for a reason of admission, and MESSAGE_LIMIT for one against a node.
    """
    message = f"{wrong}: wants {wants}" if wants else wrong
    limit = ADMISSION_MESSAGE_LIMIT if code.kind is ReasonKind.ADMISSION else MESSAGE_LIMIT
    return Reason(code, message if len(message) <= limit else message[: limit - 1] + "…")


def join_with_or(choices: tuple[str, ...] | list[str]) -> str:
    """Join choices to a text such as `H100, H200 or L40S`."""
    if len(choices) < 2:
        return "".join(choices)
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun in the form that agrees with it: `1 node`, `2 nodes`, `0 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
