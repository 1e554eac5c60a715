# SPDX-License-Identifier: Apache-2.0
"""F84: random small fleets, each with a pod that one known change would help; explain finds and proves it.

The proof is independent: the patch of a change is applied to the Pod document by a JSON Patch library, and the pod is
explained anew.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.explain.edits import KINDS
from app.explain.explanation import Explanation
from app.explain.pending_pod import explain
from app.values.computations import finish
from tests.explain.test_puzzles import world_under

Document = dict[str, Any]
GPU = "nvidia.com/gpu"
MODELS = {
    "A10": ("NVIDIA A10", 23028, "8.6"),
    "A100": ("NVIDIA A100-SXM4-80GB", 81920, "8.0"),
    "H100": ("NVIDIA H100 80GB HBM3", 81559, "9.0"),
    "H200": ("NVIDIA H200", 143771, "9.0"),
    "T4": ("Tesla T4", 15360, "7.5"),
}
DRIVERS = {"12.2": "535.104.05", "12.4": "550.54.15", "12.8": "570.124.06", "13.0": "580.95.05"}
WRONG_NAMES = ("gpu", "gpus", "nvidia/gpu", "nvidia.com/gpus", "nvidia.com/GPU", "alpha.kubernetes.io/nvidia-gpu",
               "nvidia.com/gup", "requests.nvidia.com/gpu")  # fmt: skip


@dataclass(frozen=True)
class Pool:
    """One node of a model with a driver; `busy` of its GPUs are held."""

    name: str
    model: str
    cuda: str
    gpus: int
    busy: int
    cpu: int
    taint: str = ""

    @property
    def free(self) -> int:
        return self.gpus - self.busy

    def document(self) -> Document:
        name, memory, compute = MODELS[self.model]
        gpu = {"name": name, "memory": memory, "compute": compute}
        return {"names": [self.name], "gpus": self.gpus, "gpu": gpu, "driver": DRIVERS[self.cuda], "cuda": self.cuda,
                "busy": [self.busy], "cpu": str(self.cpu), "taints": [self.taint] if self.taint else []}  # fmt: skip


@st.composite
def pools(draw: st.DrawFn, least_free: int = 1) -> list[Pool]:
    """Draw two to six nodes, each with a free GPU at least."""

    def one(index: int) -> Pool:
        gpus = draw(st.integers(least_free, 8))
        busy = draw(st.integers(0, gpus - least_free))
        model, cuda = draw(st.sampled_from(sorted(MODELS))), draw(st.sampled_from(sorted(DRIVERS)))
        return Pool(f"node-{index}", model, cuda, gpus, busy, draw(st.integers(8, 64)))

    return [one(index) for index in range(draw(st.integers(2, 6)))]


def pod(
    gpus: int = 1,
    resource: str = GPU,
    annotations: Mapping[str, str] | None = None,
    second: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Document:
    """Write a Pod whose first container requests GPUs and more; `second` are the limits of another container."""
    containers = [{"name": "main", "image": "train:1", "resources": {"limits": {resource: str(gpus), **(more or {})}}}]
    if second is not None:
        containers.append({"name": "helper", "image": "train:1", "resources": {"limits": dict(second)}})
    ours = {f"gpu-usher.io/{key}": value for key, value in (annotations or {}).items()}
    metadata = {"name": "p", "namespace": "team-a", "uid": "p", "annotations": ours}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def answer(nodes: list[Pool], document: Document, live: bool = False) -> Explanation:
    """Explain a pod on nodes."""
    fleet = {"description": "random", "pools": [node.document() for node in nodes]}
    return finish(explain(document, world_under({"fleet": fleet}), live))


def check(nodes: list[Pool], document: Document, kind: str, *words: str) -> None:
    """Check that the smallest change is of a kind and has words, and that every change does what it says."""
    explanation = answer(nodes, document)
    assert explanation.fits == 0
    assert explanation.fixes, explanation.tried
    first = explanation.fixes[0]
    assert [edit.kind for edit in first.edits] == [kind], (nodes, explanation.fixes)
    assert all(word in first.edits[0].text for word in words), (words, first, nodes)
    for fix in explanation.fixes:
        if {edit.of for edit in fix.edits} == {"pod"}:
            patched = jsonpatch.apply_patch(document, [dict(operation) for operation in fix.patch])
            assert answer(nodes, patched).fits == fix.opens > 0, fix
            text = " ".join(edit.text for edit in fix.edits)
            assert not [value for value in leaves(fix.patch) if value not in text + str(document)], (text, fix.patch)


def leaves(patch: Any) -> Iterator[str]:
    """List the values that a patch writes, those of lists one by one, but for the words that every toleration has."""
    for operation in patch:
        for value in _leaves(operation.get("value", "")):
            yield from value.split(",")


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)
    elif isinstance(value, list):
        for one in value:
            yield from _leaves(one)
    elif str(value) not in ("Equal", "Exists", "train:1", "main", "helper"):
        yield str(value)


@settings(max_examples=25, deadline=None)
@given(pools(), st.sampled_from(WRONG_NAMES), st.booleans())
def test_misspelt_resource_is_corrected(nodes: list[Pool], name: str, two: bool) -> None:
    """F84: also a name that the API server refuses, and one of former versions of Kubernetes."""
    document = pod(1, name, second={"cpu": "1"} if two else None)

    check(nodes, document, "correct-resource", GPU, name, *(["container main"] if two else []))


@settings(max_examples=20, deadline=None)
@given(pools(), st.integers(1, 5))
def test_as_many_gpus_as_some_node_has_free_are_proposed(nodes: list[Pool], more: int) -> None:
    """F84: the largest number that fits, whichever node has it."""
    most = max(node.gpus for node in nodes)
    free = max(node.free for node in nodes)

    check(nodes, pod(most + more), "ask-fewer", f"ask for {free} {GPU} instead of {most + more}")


@settings(max_examples=25, deadline=None)
@given(pools())
def test_the_largest_memory_there_is_is_proposed(nodes: list[Pool]) -> None:
    """F84, H17: not that of the node with the most free GPUs."""
    most = max(MODELS[node.model][1] for node in nodes)

    check(nodes, pod(1, annotations={"gpu-memory": "400Gi"}), "lower-need", f"gpu-memory: {most}Mi instead of 400Gi")


@settings(max_examples=25, deadline=None)
@given(pools())
def test_the_highest_cuda_that_runs_somewhere_is_proposed(nodes: list[Pool]) -> None:
    """F84, H17."""
    most = max((node.cuda for node in nodes), key=float)

    check(nodes, pod(1, annotations={"cuda": "14.2"}), "lower-need", f"cuda: {most} instead of 14.2")


@settings(max_examples=15, deadline=None)
@given(pools(), st.sampled_from(["H100X", "H1OO"]))
def test_misspelt_product_is_corrected_before_another_is_allowed(nodes: list[Pool], name: str) -> None:
    """F84, H17."""
    nodes = [*nodes, Pool("right", "H100", "12.4", 8, 0, 32)]

    check(nodes, pod(1, annotations={"products": name}), "correct-product", f"H100 instead of {name}")


@settings(max_examples=15, deadline=None)
@given(pools(), st.sampled_from(["rdma/hca", "vpc.amazonaws.com/efa", "hugepages-2Mi", "example.com/nic"]))
def test_resource_that_no_node_has_is_left_out(nodes: list[Pool], name: str) -> None:
    """F84: beside GPUs that are there."""
    check(nodes, pod(1, more={name: "2"}), "drop-resource", f"request no {name}")


@settings(max_examples=20, deadline=None)
@given(pools(), st.booleans())
def test_as_much_cpu_as_some_node_has_left_is_proposed(nodes: list[Pool], two: bool) -> None:
    """F84: with several containers each is named with its amount."""
    document = pod(1, more={"cpu": "80"}, second={"cpu": "40"} if two else None)
    explanation = answer(nodes, document)
    proposed = [int(re.findall(r"request (\d+)", fix.edits[0].text)[0]) for fix in explanation.fixes]

    assert proposed[0] == max(proposed)
    check(nodes, document, "request-less", *(["in container main", "in container helper"] if two else []))


@pytest.mark.parametrize(
    ("key", "tolerated"),
    [
        ("team", True),
        ("node.kubernetes.io/not-ready", False),
        ("node.kubernetes.io/unreachable", False),
        ("nvidia.com/gpu-health-xid", False),
        ("AggregatedNodeHealth", False),
        ("karpenter.sh/disrupted", False),
        ("node.cilium.io/agent-not-ready", False),
        ("healthcare-team", True),
        ("ebs.csi.aws.com/agent-not-ready", False),
        ("startup-taint.cluster-autoscaler.kubernetes.io/driver", False),
        ("status-taint.cluster-autoscaler.kubernetes.io/broken", False),
        ("node.cluster.x-k8s.io/uninitialized", False),
        ("cloud.google.com/impending-node-termination", False),
        ("aws-node-termination-handler/spot-itn", False),
        ("remediator.kubernetes.azure.com/unschedulable", False),
        ("node.gardener.cloud/critical-components-not-ready", False),
        ("readiness.k8s.io/nvidia-gpu", False),
        ("amd-dcm", False),
        ("kubernetes.azure.com/scalesetpriority", True),
        ("cloud.google.com/gke-spot", True),
    ],
)
def test_taint_that_says_that_a_node_is_faulty_is_never_tolerated(key: str, tolerated: bool) -> None:
    """F84: another team's taint may be; also none where a second change is needed."""
    nodes = [Pool("one", "A10", "12.4", 2, 0, 32, f"{key}=true:NoSchedule")]

    assert any(edit.kind == "tolerate" for fix in answer(nodes, pod()).fixes for edit in fix.edits) is tolerated
    text = f"{answer(nodes, pod()).no_change} {answer(nodes, pod()).primary}"
    assert ("add the toleration" in text) is tolerated
    two_needed = answer(nodes, pod(4))
    assert any(edit.kind == "tolerate" for fix in two_needed.fixes for edit in fix.edits) is tolerated


def test_taint_that_admission_tolerates_by_itself_is_no_cause_where_the_product_does_not_suit() -> None:
    """F83: neither of a new pod nor of one that waits; where the node suits, a pod that lacks it waits for it."""
    nodes = [Pool("one", "A10", "12.4", 2, 0, 32, "sku=gpu:NoSchedule")]
    wanting = pod(annotations={"products": "H100"})

    for live in (False, True):
        explanation = answer(nodes, wanting, live)
        assert explanation.primary is not None
        assert explanation.primary.reason == "ProductNotAllowed"
        assert [step.cut for step in explanation.funnel if step.stage == "taints and selectors"] == [0]
    waiting = answer(nodes, pod(), live=True)
    assert waiting.primary is not None
    assert waiting.primary.reason == "UntoleratedTaint"


def test_no_change_is_said_with_those_that_were_tried() -> None:
    """F84."""
    explanation = answer([Pool("one", "A10", "12.4", 1, 1, 32, "node.kubernetes.io/not-ready:NoExecute")], pod(9))

    assert explanation.fixes == ()
    assert explanation.no_change.startswith("no small change helps (tried: ending pods") or explanation.tried == ()


def test_change_that_overcommits_a_shared_gpu_says_so() -> None:
    """F84, A19: less declared memory comes before none."""
    gpu = {"name": "NVIDIA A10", "memory": 23028, "compute": "8.6"}
    sharing = {"strategy": "time-slicing", "replicas": 4}
    shared = {"names": ["n"], "gpus": 1, "gpu": gpu, "driver": "550.54.15", "cuda": "12.4", "sharing": sharing}
    holder = {"name": "eve", "asks": {GPU: "1"}, "node": "n", "annotations": {"gpu-usher.io/gpu-memory": "16Gi"}}
    world = world_under({"fleet": {"description": "shared", "pools": [shared], "pods": [holder]}})

    explanation = finish(explain(pod(annotations={"gpu-memory": "12Gi"}), world))

    kinds = [fix.edits[0].kind for fix in explanation.fixes]
    assert kinds[0] == "lower-need"
    assert "without a limit" in explanation.fixes[kinds.index("drop-need")].edits[0].text


def test_every_kind_of_edit_has_words() -> None:
    """F84: for the sentence that names what was tried."""
    source = "".join(path.read_text("utf-8") for path in Path("app/explain").glob("edits*.py"))
    source += Path("app/explain/counterfactual.py").read_text("utf-8")
    kinds = set(re.findall(r'Edit\(\s*"([a-z-]+)"', source)) | {"drop-pod-affinity", "drop-pod-anti-affinity"}

    assert kinds == set(KINDS)


@pytest.mark.parametrize(("asked", "whole"), [("0.5", 1), ("1.5", 2), ("500m", 1)])
def test_fraction_becomes_the_next_whole_number(asked: str, whole: int) -> None:
    """F84: Kubernetes gives extended resources only as whole numbers."""
    document = pod()
    document["spec"]["containers"][0]["resources"] = {"limits": {GPU: asked}}

    [fix] = answer([Pool("one", "A10", "12.4", 2, 0, 32)], document).fixes[:1]

    assert fix.edits[0].text == f"ask for {whole} {GPU}, a whole number"
