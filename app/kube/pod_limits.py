# SPDX-License-Identifier: Apache-2.0
"""Limits on the size of a Pod that is read, as any user may create one, and the types of its members that are read.

Each limit is far above any pod that runs. Together they keep a review under 50 ms of CPU (tests/api/test_largest.py).

The API server refuses a Pod whose members have other types, but a file or a request never passed it. The
decoder skips all other members. Amounts are checked where they are parsed.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.values.errors import OversizedPod

MOST_CONTAINERS = 256
"""Containers of all kinds together. A guess above any pod that runs; each takes 45 µs of a review (measured)."""
MOST_LABELS = 1_024
"""Labels of a pod. A guess: Kubernetes has no limit, and pods have about ten. Keys of ruling caches contain them."""
MOST_RESOURCES = 128
"""Different resources in a pod; no node offers as many. A review's time grows with the square: 20,000 took a minute."""
MOST_AMOUNTS = 4_096
"""Requested amounts in all containers together. A guess: sixteen for each of MOST_CONTAINERS."""
LABELS_CHARACTERS = MOST_LABELS * (317 + 63)
"""Characters of all label keys and values together; a key has at most 317, a value 63 (Kubernetes labels syntax)."""
MOST_CLAIMS = 256
"""ResourceClaims of a pod, and references to them in one container. A guess, equal to MOST_EXTENDED."""
MOST_EXTENDED = 256
"""Amounts of extended resources, whose names have a slash, in all containers together. Each takes 70 µs of a review
(measured). A guess: four times the 56 MIG slices of a node with eight GPUs, each in its own container."""
MOST_VARIABLES = 512
"""NVIDIA_* variables in all containers together. Each takes 15 µs of a review (measured); NVIDIA's images set ten."""
VARIABLES_CHARACTERS = 1 << 15
"""Characters of all NVIDIA_* variables together, because caches hold demands that contain them. The longest list of
requirements in an NVIDIA image has 2,000."""
MOST_CLAUSES = 512
"""Comparisons in all NVIDIA_REQUIRE_* variables together, since each is evaluated for each node class. Current CUDA
images carry about 100."""
MOST_CONSTRAINTS = 256
"""Constraints of one kind (nodeSelector keys, affinity terms, spread constraints, host ports) of a pod that is
explained, since each is listed for each node from which it excludes the pod. A guess; pods have a few."""
LONGEST_NAME = 253
"""Characters of an object's name (k8s.io/apimachinery pkg/util/validation DNS1123SubdomainMaxLength)."""
LONGEST_IMAGE = 1_024
"""Characters of an image reference; a repository has at most 255, a tag 128 (OCI distribution specification)."""
MOST_ANNOTATIONS = 64
"""Annotations with our prefix on a pod; nine are defined (policy/annotations.py)."""
ANNOTATIONS_BYTES = 256 << 10
"""Bytes of all annotations of an object (k8s.io/apimachinery pkg/api/validation TotalAnnotationSizeLimitB)."""


def check_constraints(count: int, where: str) -> None:
    """Check the number of constraints of one kind, which `where` names in the message.

    Raises OversizedPod.
    """
    if count > MOST_CONSTRAINTS:
        raise OversizedPod(f"{where}: got {count}, wants at most {MOST_CONSTRAINTS}")


def _record(**members: Any) -> Any:
    """Declare an object by its members that are read, each of which may be absent or null."""
    return msgspec.defstruct("Record", [(name, kind | None, None) for name, kind in members.items()])


def _items(kind: Any, most: int | None = None) -> Any:
    return Annotated[list[kind], Meta(max_length=most)]


ANY, TEXTS, TEXT_BY_NAME = dict[str, Any], list[str], dict[str, str]
REQUIREMENTS = _items(_record(key=str, operator=str, values=TEXTS))
SELECTOR = _record(matchLabels=TEXT_BY_NAME, matchExpressions=REQUIREMENTS)
NODE_TERM = _record(matchExpressions=REQUIREMENTS, matchFields=REQUIREMENTS)
NODE_AFFINITY = _record(
    requiredDuringSchedulingIgnoredDuringExecution=_record(nodeSelectorTerms=_items(NODE_TERM)),
    preferredDuringSchedulingIgnoredDuringExecution=_items(_record(weight=int, preference=NODE_TERM)),
)
TERM = _record(topologyKey=str, labelSelector=SELECTOR, namespaces=TEXTS, namespaceSelector=SELECTOR,
               matchLabelKeys=TEXTS, mismatchLabelKeys=TEXTS)  # fmt: skip
OTHER_PODS = _record(
    requiredDuringSchedulingIgnoredDuringExecution=_items(TERM),
    preferredDuringSchedulingIgnoredDuringExecution=_items(_record(weight=int, podAffinityTerm=TERM)),
)
AFFINITY = _record(nodeAffinity=NODE_AFFINITY, podAffinity=OTHER_PODS, podAntiAffinity=OTHER_PODS)
SPREAD = _record(maxSkew=int, minDomains=int, topologyKey=str, whenUnsatisfiable=str, labelSelector=SELECTOR,
                 matchLabelKeys=TEXTS)  # fmt: skip
TOLERATION = _record(key=str, operator=str, value=str, effect=str)
PORT = _record(hostPort=int, hostIP=str, protocol=str)
CLAIMED = _record(name=str, resourceClaimName=str, resourceClaimTemplateName=str,
                  source=_record(resourceClaimName=str, resourceClaimTemplateName=str))  # fmt: skip
NAME, IMAGE = (Annotated[str, Meta(max_length=longest)] for longest in (LONGEST_NAME, LONGEST_IMAGE))
RESOURCES = _record(limits=ANY, requests=ANY, claims=_items(_record(name=str, request=str), MOST_CLAIMS))
CONTAINER = _record(name=NAME, image=IMAGE, ports=_items(PORT), restartPolicy=str, resources=RESOURCES,
                    env=_items(_record(name=str, value=str, valueFrom=Any)), volumeMounts=_items(ANY),
                    securityContext=_record(privileged=bool))  # fmt: skip
VOLUME = _record(name=str, persistentVolumeClaim=_record(claimName=str), hostPath=TEXT_BY_NAME,
                 projected=_record(sources=_items(ANY)))  # fmt: skip
STATE = _record(waiting=_record(reason=str, message=str), terminated=_record(reason=str, message=str, exitCode=int))
CONTAINER_STATUS = _record(
    name=str, state=STATE, lastState=STATE, restartCount=int,
    allocatedResourcesStatus=_items(_record(name=str, resources=_items(_record(resourceID=str, health=str)))),
)  # fmt: skip
OWNERS = _items(_record(kind=str, name=str, uid=str, controller=bool))
METADATA = _record(name=NAME, generateName=NAME, namespace=NAME, uid=NAME, labels=TEXT_BY_NAME,
                   annotations=TEXT_BY_NAME, ownerReferences=OWNERS)  # fmt: skip
SPEC = _record(
    affinity=AFFINITY, topologySpreadConstraints=_items(SPREAD), tolerations=_items(TOLERATION),
    nodeSelector=TEXT_BY_NAME, containers=_items(CONTAINER), initContainers=_items(CONTAINER),
    ephemeralContainers=_items(CONTAINER), volumes=_items(VOLUME), resources=RESOURCES, overhead=ANY,
    schedulingGates=_items(_record(name=str)), resourceClaims=_items(CLAIMED, MOST_CLAIMS), priority=int,
    priorityClassName=str, nodeName=str, schedulerName=NAME, runtimeClassName=str,
    schedulingGroup=_record(podGroupName=NAME),
)  # fmt: skip
STATUS = _record(
    phase=str, reason=str, message=str, conditions=_items(_record(type=str, status=str, reason=str, message=str)),
    containerStatuses=_items(CONTAINER_STATUS), nominatedNodeName=NAME, initContainerStatuses=_items(CONTAINER_STATUS),
    resourceClaimStatuses=_items(ANY),
    extendedResourceClaimStatus=_record(resourceClaimName=str, requestMappings=_items(ANY)),
)  # fmt: skip
POD = _record(metadata=METADATA, spec=SPEC, status=STATUS)
"""A Pod (core/v1); one with a member of another type is refused. Source of all: the API reference of Kubernetes."""
