# SPDX-License-Identifier: Apache-2.0
"""Who places a pod, whether its scheduler has looked at it, and what it got on its node."""

from dataclasses import replace
from typing import Any

import pytest

from app.explain.explanation import Explanation
from app.explain.pending_cause import NOT_LOOKED_AT, PendingCause, cause_of, told_of_scheduler
from app.explain.pending_pod import explain
from app.kube.existing_pods import existing_pods_of
from app.kube.pending_pods import read_pending_pod, unseen_by
from app.kube.pod_object import pod_object
from app.values.computations import finish
from app.world.state import State
from app.world.world import World, world_of
from tests.builders import container, gpus, knowledge, node_document, pod, policies, policy, shipped

GPU = "nvidia.com/gpu"
SHARED = {f"{GPU}.sharing-strategy": "time-slicing", f"{GPU}.replicas": "4", f"{GPU}.count": "1"}
SCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
LEFT = "default-scheduler places this pod"


def cluster(*documents: dict[str, Any], **more: Any) -> World:
    """Return a cluster of these nodes, or of one with whole GPUs; `more` replaces fields of the snapshot."""
    state = State(knowledge())
    for document in documents or (node_document("h100"),):
        state.put_node(document)
    return replace(world_of(state, more.pop("policies", shipped())), **more)


def stored(document: dict[str, Any], scheduler: str = "volcano", conditions: Any = ()) -> dict[str, Any]:
    """Write a pod as an API server stores it, for a scheduler."""
    document["metadata"]["creationTimestamp"] = "2026-11-25T21:03:11Z"
    document["spec"]["schedulerName"] = scheduler
    return {**document, "status": {"phase": "Pending", "qosClass": "BestEffort", "conditions": list(conditions)}}


def notes(document: dict[str, Any], snapshot: World | None = None, **more: Any) -> str:
    """Return all notes of the explanation of a pod."""
    return "\n".join(explanation(document, snapshot, **more).notes)


def explanation(document: dict[str, Any], snapshot: World | None = None, **more: Any) -> Explanation:
    return finish(explain(document, snapshot or cluster(), **more))


def test_pod_for_a_scheduler_that_has_not_looked_at_it_is_told_so() -> None:
    """F83: nothing else tells that, since the pod fits."""
    told = notes(stored(pod()), live=True)

    assert (
        "the pod names scheduler volcano, which has not tried to schedule it since it was created at"
        " 2026-11-25T21:03:11Z: it has"
        " no condition PodScheduled; check that volcano runs, or correct schedulerName"
    ) in told


@pytest.mark.parametrize(
    ("document", "events"),
    [
        pytest.param(stored(pod(), conditions=[SCHEDULED]), [], id="a condition"),
        pytest.param(stored(pod(nodeName="h100")), [], id="bound"),
        pytest.param(stored(pod()), [{"source": {"component": "volcano"}}], id="an Event of core/v1"),
        pytest.param(stored(pod()), [{"reportingController": "volcano"}], id="an Event of events/v1"),
        pytest.param(pod(schedulerName="volcano"), [], id="not stored by an API server"),
    ],
)
def test_pod_that_was_looked_at_or_is_not_there_yet_is_told_nothing(document: dict[str, Any], events: Any) -> None:
    """F83."""
    assert "not looked at" not in notes(document, live=True, events=events)


def test_event_tells_of_the_scheduler_before_what_else_keeps_the_pod() -> None:
    """F139: no change helps before that scheduler runs."""
    fits = cause_of(explanation(stored(pod()), live=True))
    told = told_of_scheduler(fits, "volcano")

    assert (fits.reason, told.reason) == ("", NOT_LOOKED_AT)
    assert told.note == (
        "the pod names scheduler volcano, which has not tried to schedule it: it has no condition"
        " PodScheduled; check that volcano"
        " runs, or correct schedulerName. It fits on 1 node now."
    )
    assert told_of_scheduler(fits, "") == fits
    refused = PendingCause("DriverTooOld", "CUDA driver too old", 1, 0, "")
    told_refused = told_of_scheduler(refused, "volcano")
    assert (told_refused.reason, told_refused.fix) == (NOT_LOOKED_AT, "")
    assert told_refused.message.endswith(f"Once it does, {refused.message}")


def test_waiting_pod_keeps_the_scheduler_that_has_not_looked_at_it() -> None:
    """F139."""
    unseen, seen = stored(pod()), stored(pod(), conditions=[SCHEDULED])

    assert [unseen_by(pod_object(unseen)), unseen_by(pod_object(seen)), unseen_by(pod_object({}))] == [
        "volcano",
        "",
        "",
    ]
    waiting = read_pending_pod(pod_object(unseen), knowledge())
    assert waiting is not None
    assert waiting.unseen_by == "volcano"
    assert waiting == read_pending_pod(pod_object(seen), knowledge())  # so that it is not read again


def test_order_of_nodes_is_said_to_be_ours_where_another_scheduler_places_the_pod() -> None:
    """F83: nobody knows whether default-scheduler asks gpu-usher."""
    assert LEFT in notes(pod())


@pytest.mark.parametrize(
    ("document", "snapshot"),
    [
        pytest.param(pod(schedulerName="gpu-usher-scheduler"), cluster(), id="by its name"),
        pytest.param(pod(), cluster(asking=frozenset({"default-scheduler"})), id="it has asked"),
        pytest.param(pod(), cluster(managed_resources={"default-scheduler": None}), id="by its configuration"),
        pytest.param(
            pod(schedulerName="ours"),
            cluster(policies=policies(policy("p", "admission: {schedulerName: ours}"))),
            id="by a policy",
        ),
        pytest.param(pod(), cluster(node_document("none", offers={})), id="no node fits, so that none is shown"),
        pytest.param(stored(pod(nodeName="h100")), cluster(), id="it was placed"),
        pytest.param(pod(container()), cluster(), id="no GPU"),
    ],
)
def test_order_of_nodes_needs_no_word_where_the_scheduler_asks_us(document: Any, snapshot: World) -> None:
    """F83."""
    assert "places this pod" not in notes(document, snapshot, live="nodeName" in document["spec"])


def test_running_pod_is_told_what_it_has_and_why_it_may_be_a_share() -> None:
    """F83."""
    shared = node_document("a10", product="NVIDIA-A10-SHARED", offers={GPU: 4}, labels=SHARED)

    told = notes(stored(pod(nodeName="a10")), cluster(shared), live=True)

    assert told == (
        "it has 1 x a time-slice of NVIDIA-A10 on a10; its needs leave out no other node with nvidia.com/gpu; nothing "
        "asks for a whole GPU: set gpu-usher.io/sharing: Exclusive to get one"
    )


@pytest.mark.parametrize(
    ("annotations", "others", "why"),
    [
        ({"products": "H100"}, {"product": "NVIDIA-A10"}, "GPU product not allowed: wants H100 (1 node)"),
        ({"cuda": "12.4"}, {"driver": "470.82.01"}, "CUDA driver too old: wants >= "),
        (
            {"gpu-memory": "40Gi"},
            {"product": "NVIDIA-A10"},
            "GPU memory too small: wants >= 40960 MiB per GPU (1 node)",
        ),
    ],
)
def test_running_pod_is_told_which_need_left_out_other_nodes(
    annotations: dict[str, str], others: dict[str, Any], why: str
) -> None:
    """F83: the need that decided, whichever it is."""
    fleet = cluster(
        node_document("h100"), node_document("other", **others), node_document("cpu", None, None, offers={})
    )

    told = notes(stored(pod(annotations=annotations, nodeName="h100")), fleet, live=True)

    assert told.startswith("it has 1 x a whole GPU of NVIDIA-H100-80GB-HBM3 on h100; its needs leave out others: ")
    assert why in told


@pytest.mark.parametrize(
    ("document", "told"),
    [
        pytest.param(pod(container()), True, id="none"),
        pytest.param(pod(container({"cpu": 1})), True, id="only CPU"),
        pytest.param(pod(container({"nvidia.com/gpus": 1})), False, id="a misspelt one, which has a warning"),
        pytest.param(pod(), False, id="one"),
        pytest.param(pod(gpus(1, "nvidia.com/GH100_X")), False, id="one for a virtual machine"),
    ],
)
def test_pod_without_a_gpu_is_told_how_to_ask_for_one(document: dict[str, Any], told: bool) -> None:
    """F83."""
    words = "it asks for no GPU; if it needs one, add resources.limits nvidia.com/gpu: 1 to a container"
    assert (words in notes(document)) is told


def claiming(entry: dict[str, str], made: bool = False) -> dict[str, Any]:
    """Write a stored pod with one entry of resourceClaims, and the claim that was made for it."""
    document = stored(pod(), "default-scheduler")
    document["spec"]["resourceClaims"] = [{"name": "gpu", **entry}]
    statuses = [{"name": "gpu", "resourceClaimName": "a-gpu-x"}] if made else []
    return {**document, "status": {**document["status"], "resourceClaimStatuses": statuses}}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"resourceClaimName": "mine"}, "before ResourceClaim team-a/mine exists, which is not known here; create it"),
        ({"resourceClaimTemplateName": "of"}, "of ResourceClaimTemplate team-a/of, which is not known here; create it"),
    ],
)
def test_pod_whose_claim_is_not_there_waits_for_it_and_not_for_a_scheduler(entry: dict[str, str], words: str) -> None:
    """F83: kube-scheduler writes no condition of such a pod."""
    document = claiming(entry)
    told = notes(document, live=True)

    assert words in told
    assert "has not looked at it" not in told
    assert unseen_by(pod_object(document)) == ""


def test_pod_whose_claim_was_made_waits_for_its_scheduler() -> None:
    """F83."""
    assert unseen_by(pod_object(claiming({"resourceClaimTemplateName": "of"}, made=True))) == "default-scheduler"


@pytest.mark.parametrize("message", ['persistentvolumeclaim "data" not found', "node(s) had volume node affinity"])
def test_what_a_scheduler_said_of_a_pod_that_fits_here_is_repeated(message: str) -> None:
    """F83: kube-scheduler judges more than is judged here, such as volumes."""
    said = {**SCHEDULED, "message": f"0/1 nodes are available: {message}."}

    assert f"the last answer of volcano was: 0/1 nodes are available: {message}." in notes(
        stored(pod(), conditions=[said]), live=True
    )


def test_what_a_scheduler_said_of_a_pod_that_fits_nowhere_is_not_repeated() -> None:
    """F83: the causes are told in full then."""
    said = {**SCHEDULED, "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}

    assert "the last answer" not in notes(stored(pod(gpus(9)), conditions=[said]), live=True)


def test_value_of_a_selector_that_is_nearest_to_what_was_written_comes_first() -> None:
    """F83."""
    products = ("NVIDIA-A10", "NVIDIA-H100-80GB-HBM3", "Tesla-T4")
    nodes = [node_document(name.lower(), product=name) for name in products]
    document = pod()
    document["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": "H100"}

    first = explanation(document, cluster(*nodes)).fixes[0]

    assert first.edits[0].text == "set nodeSelector nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3 instead of H100"


HASHES = {"ReplicaSet": "pod-template-hash", "LeaderWorkerSet": "leaderworkerset.sigs.k8s.io/template-revision-hash"}
"""The label of a pod with the hash of its template, by the kind of its workload; else that of StatefulSets."""


def of_llm(name: str, template: str, count: int = 2, kind: str = "ReplicaSet", **more: Any) -> dict[str, Any]:
    """Write a pod of a template of a workload llm, which is a Deployment if the owner is a ReplicaSet."""
    spec: dict[str, Any] = {**more.pop("spec", {}), **({"nodeName": "l4"} if more.pop("bound", False) else {})}
    document = pod(gpus(count), **spec)
    owner = f"llm-{template}" if kind == "ReplicaSet" else "llm"
    owner_kind = "StatefulSet" if kind == "LeaderWorkerSet" else kind
    reference = {"apiVersion": "apps/v1", "kind": owner_kind, "name": owner, "uid": template, "controller": True}
    labels = {HASHES.get(kind, "controller-revision-hash"): template}
    document["metadata"] |= {"name": name, "uid": name, "labels": labels, "ownerReferences": [reference], **more}
    return document


OLD = of_llm("old", "a", bound=True)
ENDING = of_llm("old", "a", bound=True, deletionTimestamp="2026-11-28T09:00:00Z")


@pytest.mark.parametrize(
    ("waiting", "others", "told"),
    [
        pytest.param(of_llm("new", "b"), [OLD], True, id="its former pod holds the GPUs"),
        pytest.param(of_llm("new", "b", 4), [OLD, of_llm("older", "a", bound=True)], True, id="two do"),
        pytest.param(of_llm("new", "b", 3), [OLD, pod(gpus(2), nodeName="l4")], False, id="there are too few anyway"),
        pytest.param(of_llm("new", "b", spec={"nodeSelector": {"pool": "b"}}), [OLD], False, id="another pool"),
        pytest.param(of_llm("next", "a"), [OLD], False, id="a further replica of the same template"),
        pytest.param(of_llm("new", "b"), [ENDING], False, id="the former pod ends already"),
        pytest.param(
            of_llm("llm-0", "b", kind="StatefulSet"),
            [of_llm("llm-1", "a", kind="StatefulSet", bound=True)],
            False,
            id="a StatefulSet, which ends a pod first",
        ),
        pytest.param(
            of_llm("llm-x", "b", kind="DaemonSet"),
            [of_llm("llm-y", "a", kind="DaemonSet", bound=True)],
            False,
            id="a DaemonSet, the same",
        ),
        pytest.param(
            of_llm("llm-0", "b", kind="LeaderWorkerSet"),
            [of_llm("llm-1", "a", kind="LeaderWorkerSet", bound=True)],
            False,
            id="a LeaderWorkerSet, whose leaders are of a StatefulSet",
        ),
    ],
)
def test_update_that_waits_for_its_own_former_pod_is_told_with_the_cure(
    waiting: dict[str, Any], others: list[dict[str, Any]], told: bool
) -> None:
    """F83: a Deployment makes the new pod first (maxSurge); with Recreate it makes none while a former one is there."""
    state = State(knowledge())
    held = sum(int(one["spec"]["containers"][0]["resources"]["limits"][GPU]) for one in others)
    state.put_node(node_document("l4", offers={GPU: held}, labels={"nvidia.com/gpu.count": str(held)}))
    for one in others:
        state.put_pod(one)
    world = world_of(state, shipped(), existing_pods=existing_pods_of(others))

    text = notes(stored(waiting, conditions=[SCHEDULED]), world, live=True)

    assert told == ("old on l4 holds GPUs and is a pod of the same Deployment: an update ends that pod only" in text)
    assert told == ("maxSurge: 0 with maxUnavailable: 1, or strategy Recreate, ends it first" in text)
