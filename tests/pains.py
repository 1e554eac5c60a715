# SPDX-License-Identifier: Apache-2.0
"""Complaints of people who share GPUs, by number, and what makes each impossible with gpu-usher.

Tests name the number in their docstrings ("P12"); `python -m tests.pains` writes tests/results/pains.md from there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests import docstrings

RESULTS = docstrings.TESTS / "results" / "pains.md"
NAMED = re.compile(r"\bP([1-9]\d?)\b")


@dataclass(frozen=True, slots=True)
class Pain:
    """One complaint, and why it cannot be made about gpu-usher; `seen` is where it was made, as repository#number.

    `open` is the part of the answer that is missing, and why; "" where nothing is missing.
    """

    number: int
    what: str
    answer: str
    seen: str
    open: str = ""


PAINS = (
    Pain(1, "an A10 was asked for and an A100 given", "products match by whole tokens", "HAMi#295"),
    Pain(2, "H20 taken for H200", "no product's name matches another's", "HAMi-core#137"),
    Pain(3, "a typing error in a GPU's name goes unnoticed", "a warning names what was meant", "HAMi#707"),
    Pain(
        4,
        "a GPU is free and the pod goes on waiting",
        "needs are affinity, which wakes pods up; what eviction can change is told from what it cannot; a second look",
        "HAMi#1368, kubernetes#122019",
    ),
    Pain(
        5,
        "the nodes that fit are not in the scheduler's sample",
        "affinity is looked at before the sample; the share of nodes is checked",
        "kubernetes#122057",
    ),
    Pain(6, "sending whole nodes spoils the in-tree scores", "names only; the other is found", "kubernetes#141781"),
    Pain(
        7,
        "pods are evicted where the new one could never run",
        "such nodes are unresolvable, and preempt drops them",
        "kubernetes#92866, HAMi#1494",
    ),
    Pain(8, "a binding that timed out is tried for ever", "we do not bind", "kubernetes#96579"),
    Pain(9, "a lock on a node is never released", "nothing is written to the API, so there is no lock", "HAMi#810"),
    Pain(10, "dozens of pods take half an hour", "no API call while a request is answered", "HAMi#1367"),
    Pain(
        11,
        "a GPU pod slips past the webhook and nobody notices",
        "slipped pods are counted and named by doctor; affinity serves any scheduler",
        "HAMi#812",
        "no Event is written on a running pod: only those that wait are told",
    ),
    Pain(12, "MIG slices offered by name are not known", "every nvidia.com/mig-* is", "HAMi#2564"),
    Pain(13, "slices are placed by count and do not fit", "geometry decides", "HAMi#2403"),
    Pain(
        14,
        "small slices leave no room for large ones",
        "a slice goes where it takes the least room from those to come (tests/results/mig-churn.md)",
        "HAMi#2831, KAI#194",
    ),
    Pain(15, "nodes with a half-made MIG layout attract pods", "they are refused by name", "gpu-operator#479"),
    Pain(
        16,
        "the autoscaler does not know what the pod needs",
        "needs are affinity in the provisioner's own labels; plan node-template says what a node must be; "
        "doctor looks at NodePools",
        "HAMi#1099, autoscaler#5708",
    ),
    Pain(17, "nobody can tell how long scheduling takes", "a histogram and alerts for each verb", "HAMi#2458"),
    Pain(18, "a follower answers, or a new leader is not ready", "replicas are equal; no leader", "HAMi#1954"),
    Pain(19, "users write the allocator's annotations", "our own are rewritten, whoever schedules", "HAMi#3041"),
    Pain(20, "two requests at once end the process", "one loop; what is shared does not change", "HAMi#1269"),
    Pain(21, "one GPU is promised to two pods", "filter gives nothing away; memory on its way counts", "HAMi#1417"),
    Pain(22, "a full node passes the filter", "every filter has a slow twin that agrees", "HAMi#538"),
    Pain(23, "the refusal does not say why", "codes, with what is wanted", "HAMi#1527"),
    Pain(
        24, "each pod costs the whole cluster's size", "verdicts are kept, and renewed where nodes change", "HAMi#3021"
    ),
    Pain(25, "a pod made again under its name is mistaken", "pods are told apart by UID", "gpushare#201"),
    Pain(26, "unlike GPUs are counted as if alike", "facts are never averaged", "gpushare#188"),
    Pain(
        27,
        "the extender is too slow for its time limit",
        "budgets are measured, late answers told, the limit checked",
        "gpushare#128",
    ),
    Pain(
        28,
        "the control plane is a cloud's and cannot be changed",
        "admission alone does it; or a second scheduler",
        "gpushare#29",
    ),
    Pain(29, "a failed binding leaves a pod between two nodes", "we do not bind", "gpushare#199"),
    Pain(
        30, "the image's CUDA is too new for the driver", "the need is read off the image and kept", "gpu-operator#415"
    ),
    Pain(31, "the scheduler knows no GPU model or driver", "filter and affinity do", "kubernetes#25557"),
    Pain(32, "no code in the image for this GPU's architecture", "compute capability has a range", "BMInf#29"),
    Pain(33, "zero GPUs make a GPU pod", "zero is a CPU pod", "OSMO#937, kubernetes#125426"),
    Pain(
        34,
        "no GPU in the container for want of a runtime class",
        "set where it exists, else told",
        "k8s-device-plugin#477",
    ),
    Pain(35, "a toleration was forgotten", "it is copied from the nodes that could serve", "hawk#1262, AKS#1449"),
    Pain(36, "requests without limits are refused", "repaired, and said", "kthena#576, kubernetes#54917"),
    Pain(37, "a label was renamed and selectors broke", "old and new names are read", "nvidia-ci#554"),
    Pain(38, "a node is labelled for GPUs that it has not", "a ghost, refused and named", "skypilot#3318"),
    Pain(39, "CPU pods fill the GPU nodes", "a guard keeps them off; doctor names bare nodes", "skypilot#5357"),
    Pain(40, "a pod that asked for none sees every GPU", "they are hidden from it", "neutree#96"),
    Pain(41, "pods queue at a broken GPU", "what is withdrawn or ill does not count", "k8s-device-plugin#234"),
    Pain(
        42,
        "a driver upgrade hangs, or takes pods down",
        "nodes under upgrade are refused, those that wait score lower; plan driver says whom it would cost what",
        "gpu-operator#416",
    ),
    Pain(
        43,
        "a webhook that is down holds up the cluster, and itself",
        "GPU pods alone are asked about, our own namespace never; short time limits; doctor compares",
        "kyverno#16177, gatekeeper#3183",
    ),
    Pain(
        44,
        "an expired certificate stops admission",
        "renewed early and taken live; told by alert and doctor",
        "percona#2548",
    ),
    Pain(
        45,
        "nobody says why a pod is Pending",
        "explain gives each node's reason and the smallest changes that help, each proven",
        "kubernetes#4583, KAI#2058",
    ),
    Pain(
        46,
        "more is given away than the kubelet has",
        "what is on its way counts; what is bound decides",
        "volcano#1782",
    ),
    Pain(
        47,
        "GPUs are left in pieces that nobody can use",
        "each choice is scored by the GPU that it leaves unusable for pods to come (tests/results/placement.md)",
        "volcano#3948",
    ),
    Pain(48, "copies of the cluster for every pod", "one index; what changed is renewed", "volcano#5086, KAI#315"),
    Pain(
        49,
        "a pod that can never run starves the others",
        "equal answers, told apart by whether they can change",
        "KAI#2075",
    ),
    Pain(
        50,
        "the cluster's own CA key is used",
        "a CA of our own; its key is mounted nowhere",
        "a vendor's scheduler, abandoned",
    ),
)


def numbers(docstring: str) -> frozenset[int]:
    """Read the numbers of the complaints that a docstring names."""
    return frozenset(map(int, NAMED.findall(docstring)))


def proofs() -> Mapping[str, frozenset[int]]:
    """Map each test that proves an answer to the numbers of its complaints."""
    return docstrings.proofs(NAMED, numbers)


def table() -> str:
    """Write the table, with one row per complaint."""
    proven = proofs()
    rows = [
        "| " + " | ".join((f"P{pain.number}", pain.what, pain.seen, pain.answer, pain.open, _cell(pain, proven))) + " |"
        for pain in PAINS
    ]
    head = "# What cannot happen here\n\n`python -m tests.pains` wrote this, from the docstrings of the tests.\n\n"
    columns = "| # | complaint | seen | why not here | what is missing | tests |\n|---|---|---|---|---|---|\n"
    return head + columns + "\n".join(rows) + "\n"


def _cell(pain: Pain, proven: Mapping[str, frozenset[int]]) -> str:
    return "<br>".join(docstrings.shown(name) for name, numbers_named in proven.items() if pain.number in numbers_named)


if __name__ == "__main__":
    RESULTS.write_text(table(), "utf-8")
