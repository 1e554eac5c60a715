# SPDX-License-Identifier: Apache-2.0
"""Limits of a Pod: how much of one is read, since anybody may create one and a review's cost grows with it.

Each is far above any pod that runs. Together they keep a review under 50 ms of CPU (tests/api/test_largest.py).
"""

from collections.abc import Mapping, Sequence

from app.values.errors import MalformedPod, OversizedPod

MOST_CONTAINERS = 256
"""In all lists together. Guess, far above any pod that runs; a review takes 45 µs for each (measured)."""
MOST_LABELS = 1_024
"""Guess: Kubernetes names no limit; pods have some ten, and rulings are remembered by them."""
MOST_RESOURCES = 128
"""Different ones in a pod: no node offers as many. Their reviews grow with the square; at 20,000 one took a minute."""
MOST_AMOUNTS = 4_096
"""Of all containers together; guess, four for each of the most containers."""
LABELS_CHARACTERS = MOST_LABELS * (317 + 63)
"""Of all keys and values: a key has 317 at most, a value 63 (Kubernetes' labels syntax)."""
MOST_CLAIMS = 256
"""ResourceClaims of a pod, and uses of them by a container; guess, as many as the extended resources."""
MOST_EXTENDED = 256
"""Amounts of extended resources, which have a slash in their name, of all containers together. A review takes 70 µs for
each (measured); guess, four times what the 56 MIG slices of a node with eight GPUs would be asked one by one."""
MOST_VARIABLES = 512
"""NVIDIA_* variables of all containers together: a review takes 15 µs for each (measured). NVIDIA's images set ten."""
VARIABLES_CHARACTERS = 1 << 15
"""Of all NVIDIA_* variables together, because demands that hold them are remembered; the longest requirement list that
an NVIDIA image carries has 2,000."""
MOST_CLAUSES = 512
"""Comparisons in all NVIDIA_REQUIRE_* variables together, each of which is judged for each kind of node; CUDA images of
today carry about 100."""
MOST_CONSTRAINTS = 256
"""Keys of nodeSelector, and terms, spread constraints and host ports of a kind, of a pod that is explained: each is
listed for each node that it keeps the pod off. Guess; pods have a few."""
LONGEST_NAME = 253
"""Characters of a name (k8s.io/apimachinery pkg/util/validation DNS1123SubdomainMaxLength)."""
LONGEST_IMAGE = 1_024
"""Characters of an image; a repository's name has at most 255 and a tag 128 (OCI distribution specification)."""
MOST_ANNOTATIONS = 64
"""Of ours on a pod; there are nine to write (policy/annotations.py)."""
ANNOTATIONS_BYTES = 256 << 10
"""Of all annotations of an object (k8s.io/apimachinery pkg/api/validation TotalAnnotationSizeLimitB)."""


def check_text(text: str, longest: int, where: str) -> str:
    """Give back a text that has few characters in any object that runs.

    Raises OversizedPod.
    """
    if len(text) > longest:
        raise OversizedPod(f"{where}: got {len(text)} characters, wants at most {longest}")
    return text


def check_constraints(count: int, where: str) -> None:
    """Bound what keeps a pod off nodes.

    Raises OversizedPod.
    """
    if count > MOST_CONSTRAINTS:
        raise OversizedPod(f"{where}: got {count}, wants at most {MOST_CONSTRAINTS}")


def check_labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Give back the labels of a pod.

    Raises OversizedPod.
    """
    size = sum(len(key) + len(value) for key, value in labels.items())
    if size > LABELS_CHARACTERS:
        raise OversizedPod(f"metadata.labels: got {size} characters, wants at most {LABELS_CHARACTERS}")
    if len(labels) > MOST_LABELS:
        raise OversizedPod(f"metadata.labels: got {len(labels)}, wants at most {MOST_LABELS}")
    return labels


def check_annotations(annotations: Mapping[str, str], prefix: str) -> Mapping[str, str]:
    """Give back the annotations of a pod. `prefix`: of ours.

    Raises MalformedPod for more than the API server takes, and OversizedPod for more of ours than there are.
    """
    size = sum(len(key) + len(value) for key, value in annotations.items())
    if size > ANNOTATIONS_BYTES:
        raise MalformedPod(f"metadata.annotations: got {size} bytes, wants at most {ANNOTATIONS_BYTES}")
    ours = sum(key.startswith(prefix) for key in annotations)
    if ours > MOST_ANNOTATIONS:
        raise OversizedPod(f"metadata.annotations: got {ours} of {prefix}, wants at most {MOST_ANNOTATIONS}")
    return annotations


def check_variables(variables: Sequence[tuple[str, str | None]]) -> None:
    """Bound the NVIDIA_* variables of a pod.

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
