# SPDX-License-Identifier: Apache-2.0
"""Limits on the size of a Pod that is read, as any user may create one.

Each limit is far above any pod that runs. Together they keep a review under 50 ms of CPU (tests/api/test_largest.py).
"""

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
