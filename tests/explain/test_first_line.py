# SPDX-License-Identifier: Apache-2.0
"""The first line of an answer: the causes on the nearest nodes, with which the Event begins too."""

import json
from typing import Any

import pytest

from app.cli.source import state_of
from app.demo.sample_fleets import demo_fleet
from app.explain.explanation import Explanation
from app.explain.pending_cause import cause_of
from app.explain.pending_pod import explain
from app.values.computations import finish
from app.world.world import World, world_of
from tests.builders import policies
from tests.explain.spoilt_pods import spoilt_pods
from tests.explain.test_nearest_changes import GPU, Pool, pod
from tests.explain.test_puzzles import world_under

T4S = [
    Pool("busy-cpu", "T4", "12.4", 4, 2, 4),
    Pool("no-gpu", "T4", "12.4", 4, 4, 32),
    Pool("other", "H100", "12.4", 8, 2, 64),
]
AT_MOST_ONE = {"name": "sec", "spec": {"admission": {"maxGPUsPerPod": 1}}}


def world(*pools: Pool, **more: Any) -> World:
    return world_under({"fleet": {"description": "some", "pools": [each.document() for each in pools]}, **more})


def answer(snapshot: World, document: dict[str, Any], live: bool = False) -> Explanation:
    return finish(explain(document, snapshot, live))


def test_headline_has_what_keeps_the_pod_from_each_kind_of_the_nearest_nodes() -> None:
    """F83: of the T4 that it asks for one lacks CPUs and one a GPU; nodes of other products do not count."""
    explanation = answer(world(*T4S), pod(1, annotations={"products": "T4"}, more={"cpu": "8"}))

    assert explanation.headline == (
        "fits on none of 3 nodes; of the 2 that come nearest: "
        "Insufficient cpu: wants 8, has at most 4 free (InsufficientResource, 1 node); "
        "not enough free GPUs: wants 1 nvidia.com/gpu, has none free (InsufficientGPUs, 1 node)"
    )


@pytest.mark.parametrize(
    "document",
    [
        pod(9),
        pod(1, annotations={"products": "T4"}, more={"cpu": "8"}),
        pod(1, annotations={"cuda": "14.2"}),
        pod(1, "nvidia.com/gpus"),
    ],
    ids=["too many", "two causes", "CUDA", "misspelt"],
)
def test_event_begins_with_the_first_line_of_explain(document: dict[str, Any]) -> None:
    """F139: without the pod's name, which kubectl shows beside an Event."""
    explanation = answer(world(*T4S), document)

    assert cause_of(explanation).note.lower().startswith(f"{explanation.headline}. ".lower())


@pytest.mark.parametrize("profile", ["9g.10gb", "1g.24gb", "7g.141gb"])
def test_layout_in_change_is_no_cause_for_a_slice_that_the_product_lacks(profile: str) -> None:
    """F83: the demo changes the layout of one H100, which will have no slice of another product."""
    snapshot = world_of(state_of(demo_fleet("mixed")), policies())
    asks = pod(1, f"nvidia.com/mig-{profile}"), pod(1, "nvidia.com/mig-2g.20gb")

    absent, later = (answer(snapshot, document).primary for document in asks)

    assert absent is not None
    assert later is not None
    assert (absent.reason, later.reason) == ("MIGProfileAbsent", "MIGReconfiguring")


def test_pod_that_exists_is_judged_by_placement_alone() -> None:
    """F83: a policy that came after it does not hold it; what its creation would meet is the last line."""
    snapshot = world(Pool("full", "A100", "12.4", 4, 2, 32), policies=[AT_MOST_ONE])

    waiting, new = answer(snapshot, pod(3), live=True), answer(snapshot, pod(3))

    assert waiting.primary is not None
    assert new.primary is not None
    assert (waiting.primary.reason, new.primary.reason) == ("InsufficientGPUs", "TooManyGPUs")
    assert waiting.notes[-1].startswith("created again now, it would be refused: asks for 3 GPUs; at most 1")
    assert "policy sec" in waiting.notes[-1]


def test_pod_that_exists_is_shown_what_admission_changed_in_it() -> None:
    """F83: by its decision annotation."""
    changed = pod()
    record = {"v": 1, "actions": ["runtimeClassName set to nvidia"]}
    changed["metadata"]["annotations"]["gpu-usher.io/decision"] = json.dumps(record)

    assert answer(world(*T4S), changed, live=True).admission.actions == ("runtimeClassName set to nvidia",)


def test_first_change_repairs_what_was_spoilt() -> None:
    """F84: of pods that would run but for one thing; the answer is short, and nothing less is offered first."""
    pods = list(spoilt_pods(seed=3, number=40))

    ranks = [each.rank_of_repair for each in pods]
    assert sum(rank == 0 for rank in ranks) >= 0.8 * len(pods)
    assert sum(rank is not None and rank < 3 for rank in ranks) >= 0.95 * len(pods)
    assert [each.document for each in pods if each.lessens_first] == []
    assert sorted(len(each.lines()) for each in pods)[len(pods) // 2] <= 12


@pytest.mark.parametrize(
    ("image", "change"),
    [
        ("pytorch/pytorch:2.9.0-cuda13.0-cudnn9-runtime", "such as pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"),
        ("nvcr.io/nvidia/pytorch:25.12-py3", "such as nvcr.io/nvidia/pytorch:25.07-py3"),
        ("nvidia/cuda:13.1.0-runtime-ubuntu24.04", "use an image of nvidia/cuda built for CUDA <= 12.x"),
    ],
)
def test_image_of_the_same_repository_comes_before_another_product(image: str, change: str) -> None:
    """F84: a base image without PyTorch is no help, and the pod's author chose the product."""
    nodes = [Pool("wanted", "A100", "12.4", 8, 0, 32), Pool("newer", "H100", "13.0", 8, 0, 32)]
    document = pod(1, annotations={"products": "A100"})
    document["spec"]["containers"][0]["image"] = image

    first, second = answer(world(*nodes), document).fixes[:2]

    assert change in first.edits[0].text
    assert second.edits[0].kind == "allow-product"


def test_larger_gpu_is_called_one_and_comes_after_what_keeps_the_gpu() -> None:
    """F84: fewer CPUs keep the T4."""
    fixes = answer(world(*T4S), pod(1, annotations={"products": "T4"}, more={"cpu": "8"})).fixes

    assert [fix.edits[0].kind for fix in fixes[:2]] == ["request-less", "allow-product"]
    assert "a larger GPU, with 81559 MiB of memory" in fixes[1].edits[0].text


def test_ending_pods_of_other_namespaces_is_the_last_change() -> None:
    """F84: with whom to ask, even where all other changes take two edits."""
    full = Pool("full", "A100", "12.4", 2, 2, 8, "team=b:NoSchedule")
    other = Pool("free", "H100", "12.4", 8, 0, 8, "team=c:NoSchedule")
    document = pod(1, annotations={"products": "A100"})
    document["spec"]["tolerations"] = [{"key": "team", "operator": "Equal", "value": "b"}]

    fixes = answer(world(full, other), document).fixes

    assert [edit.kind for edit in fixes[-1].edits] == ["free-gpus"]
    assert "ask who runs namespace" in fixes[-1].edits[0].text
    assert GPU in fixes[-1].edits[0].text


def test_what_is_not_known_or_only_within_a_tolerance_is_said() -> None:
    """F83: a job that fills 16 GiB dies on a T4, and nobody compared a driver with an image of no known CUDA."""
    t4 = Pool("t4", "T4", "12.4", 1, 0, 8)

    explanation = answer(world(t4), pod(annotations={"gpu-memory": "16Gi"}))

    assert "CUDA of its image is not known: drivers were not checked; set gpu-usher.io/cuda" in explanation.needs
    assert "asked 16384 MiB per GPU, tested >= 15237: a node that fits has 15360" in explanation.notes
    known = answer(world(t4), pod(annotations={"gpu-memory": "8Gi", "cuda": "12.2"}))
    assert [note for note in (*known.needs, *known.notes) if note.startswith(("CUDA of its", "asked"))] == []


@pytest.mark.parametrize(("scheduler", "alone"), [("jupyterhub-user-scheduler", True), ("default-scheduler", False)])
def test_pod_that_admission_leaves_alone_is_told_why(scheduler: str, alone: bool) -> None:
    """F83: JupyterHub's own kube-scheduler by another name gets no toleration."""
    document = pod()
    document["spec"]["schedulerName"] = scheduler

    notes = answer(world(Pool("t4", "T4", "12.4", 1, 0, 8)), document).notes

    assert (
        any(note.startswith("admission leaves this pod as it is, since it names scheduler") for note in notes) is alone
    )


@pytest.mark.parametrize(
    ("asked", "compute", "product", "label"),
    [
        ("ada-lovelace", "8.9", "NVIDIA-L40S", "ampere"),
        ("ada", "8.9", "NVIDIA-L4", "ampere"),
        ("blackwell", "10.0", "NVIDIA-B200", "undefined"),
    ],
)
def test_wrong_label_of_the_family_is_named_and_leads_to_no_other_gpu(
    asked: str, compute: str, product: str, label: str
) -> None:
    """F84: as GPU Feature Discovery before 0.17.1 wrote it (NVIDIA/k8s-device-plugin#943, #1060)."""
    gpu = {"name": product.replace("-", " "), "memory": 46068, "compute": compute}
    one = {"gpus": 1, "gpu": gpu, "driver": "570.124.06", "cuda": "12.8", "busy": [0], "cpu": "8"}
    mislabelled = {**one, "names": ["mislabelled"], "labels": {"nvidia.com/gpu.family": label}}
    fleet = {"description": "some", "pools": [mislabelled, Pool("a100", "A100", "12.4", 8, 0, 32).document()]}
    chosen, required = pod(), pod()
    chosen["spec"]["nodeSelector"] = {"nvidia.com/gpu.family": asked}
    expression = {"key": "nvidia.com/gpu.family", "operator": "In", "values": ["hopper", asked]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    required["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    first, of_affinity = (answer(world_under({"fleet": fleet}), each).fixes[0] for each in (chosen, required))

    wrong = f", which the node's label calls {label}: the label is wrong"
    assert (first.node, first.opens, of_affinity.node, of_affinity.opens) == ("mislabelled", 1, "mislabelled", 1)
    assert first.edits[0].text == (
        f"set nodeSelector nvidia.com/gpu.product: {product} instead of nvidia.com/gpu.family: {asked}{wrong}"
    )
    assert of_affinity.edits[0].text == (
        f"require nvidia.com/gpu.product: {product} in the node affinity instead of nvidia.com/gpu.family{wrong}"
    )


def test_family_that_no_label_has_wrong_is_only_dropped_from_the_node_affinity() -> None:
    """F84: Ampere is not asked for by mistake where the node is Ada and says so."""
    gpu = {"name": "NVIDIA L4", "memory": 23034, "compute": "8.9"}
    one = {"names": ["right"], "gpus": 1, "gpu": gpu, "driver": "570.124.06", "cuda": "12.8", "busy": [0], "cpu": "8"}
    document = pod()
    expression = {"key": "nvidia.com/gpu.family", "operator": "In", "values": ["ampere"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    document["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    for label in ("ada-lovelace", "turing"):
        fleet = {"description": "some", "pools": [{**one, "labels": {"nvidia.com/gpu.family": label}}]}
        texts = [edit.text for fix in answer(world_under({"fleet": fleet}), document).fixes for edit in fix.edits]
        assert texts == ["drop nvidia.com/gpu.family from the required node affinity"]


def test_node_that_is_there_is_no_misspelt_name() -> None:
    """F84: who chose the busy node did not mean another one by its name; who mistyped a name did."""
    nodes = [Pool("h100-0", "H100", "12.4", 8, 8, 64), Pool("h100-10", "H100", "12.4", 8, 0, 64)]
    first = dict[str, str]()
    for name in ("h100-0", "h100-l0"):
        document = pod()
        document["spec"]["nodeSelector"] = {"kubernetes.io/hostname": name}
        first[name] = answer(world(*nodes), document).fixes[0].edits[0].text

    assert first == {
        "h100-0": "drop kubernetes.io/hostname: h100-0 from nodeSelector",
        "h100-l0": "set nodeSelector kubernetes.io/hostname: h100-10 instead of h100-l0",
    }


def test_fewer_gpus_are_whole_ones_first_and_shares_are_called_so() -> None:
    """F84: a time-slice is no GPU for whom asks for GPUs."""
    whole = Pool("h100", "H100", "12.4", 8, 5, 64).document()
    shared = {
        **Pool("a-shared", "A10", "12.4", 2, 0, 64).document(),
        "sharing": {"strategy": "time-slicing", "replicas": 4},
    }

    both, alone = (
        answer(world_under({"fleet": {"description": "some", "pools": pools}}), pod(9)).fixes
        for pools in ([shared, whole], [shared])
    )

    assert both[0].edits[0].text == "ask for 3 nvidia.com/gpu instead of 9"
    assert both[0].node == "h100"
    assert alone[0].edits[0].text == "ask for 8 nvidia.com/gpu instead of 9: one unit is a time-slice there"


def test_slice_that_is_not_there_is_the_nearest_slice_before_a_time_slice() -> None:
    """F84: a time-slice of a GPU with less memory than the slice is no substitute without a word."""
    document = pod(1, "nvidia.com/mig-4g.40gb")
    snapshot = world_of(state_of(demo_fleet("weekday")), policies())

    texts = [edit.text for fix in answer(snapshot, document).fixes for edit in fix.edits]

    wanted = "instead of nvidia.com/mig-4g.40gb"
    assert texts[:2] == [
        f"ask for nvidia.com/mig-3g.40gb {wanted}: a smaller slice, with 40960 MiB",
        f"ask for nvidia.com/gpu {wanted}: a time-slice, which has no memory of its own",
    ]
