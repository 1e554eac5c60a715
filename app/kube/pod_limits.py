# SPDX-License-Identifier: Apache-2.0
"""Limits on the size of a Pod that is read, because any user may create one and the cost of a review grows with it.

Each limit is far above any pod that runs. Together they keep a review under 50 ms of CPU (tests/api/test_largest.py).
"""

from collections.abc import Mapping, Sequence

from app.values.errors import MalformedPod, OversizedPod

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


def check_text(text: str, longest: int, where: str) -> str:
    """Return the text, which `where` names in the message, unchanged.

    Raises OversizedPod if it has more than `longest` characters.
    """
    if len(text) > longest:
        raise OversizedPod(f"{where}: got {len(text)} characters, wants at most {longest}")
    return text


def check_constraints(count: int, where: str) -> None:
    """Check the number of constraints of one kind, which `where` names in the message.

    Raises OversizedPod.
    """
    if count > MOST_CONSTRAINTS:
        raise OversizedPod(f"{where}: got {count}, wants at most {MOST_CONSTRAINTS}")


def check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Check the number and the size of a pod's labels, and return them unchanged.

    Raises OversizedPod.
    """
    size = sum(len(key) + len(value) for key, value in labels.items())
    if size > LABELS_CHARACTERS:
        raise OversizedPod(f"metadata.labels: got {size} characters, wants at most {LABELS_CHARACTERS}")
    if len(labels) > MOST_LABELS:
        raise OversizedPod(f"metadata.labels: got {len(labels)}, wants at most {MOST_LABELS}")
    return labels


def check_annotations(annotations: Mapping[str, str], prefix: str) -> Mapping[str, str]:
    """Check the size of a pod's annotations, and return them unchanged; `prefix` is that of our own annotations.

    Raises MalformedPod for more bytes than the API server accepts, and OversizedPod for too many of our own.
    """
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > ANNOTATIONS_BYTES:
        raise MalformedPod(f"metadata.annotations: got {size} bytes, wants at most {ANNOTATIONS_BYTES}")
    ours = sum(key.startswith(prefix) for key in annotations)
    if ours > MOST_ANNOTATIONS:
        raise OversizedPod(f"metadata.annotations: got {ours} of {prefix}, wants at most {MOST_ANNOTATIONS}")
    return annotations


def check_variables(variables: Sequence[tuple[str, str | None]]) -> None:
    """Check the number and the size of a pod's NVIDIA_* variables, given as (name, value) of all containers.

    Raises OversizedPod.
    """
    characters = sum(len(name) + len(value or "") for name, value in variables)
    if len(variables) > MOST_VARIABLES or characters > VARIABLES_CHARACTERS:
        most = f"{MOST_VARIABLES} of {VARIABLES_CHARACTERS} characters in all"
        raise OversizedPod(f"NVIDIA_* variables: got {len(variables)} of {characters}, wants at most {most}")
    required = [value or "" for name, value in variables if name.startswith("NVIDIA_REQUIRE_")]
    clauses = sum(value.count(",") + len(value.split()) for value in required)
    if clauses > MOST_CLAUSES:
        raise OversizedPod(f"NVIDIA_REQUIRE_*: got {clauses} comparisons, wants at most {MOST_CLAUSES}")
