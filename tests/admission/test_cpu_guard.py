# SPDX-License-Identifier: Apache-2.0
"""CPU pods are kept off GPU nodes in namespaces that opt in (component cpu-guard, F47)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate, validate
from app.admission.reviewed_pod import PodForm, ReviewContext
from app.kube.pods import DECISION
from app.values.errors import BadInput
from app.world.state import State
from tests.builders import container, gpus, knowledge, pod, setting
from tests.oracles.node_affinity import REQUIRED, eligible

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
PRESENT = {"nvidia.com/gpu.present": "true"}
NO_GPU = {"key": "nvidia.com/gpu.present", "operator": "DoesNotExist"}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}


def admit(document: dict[str, Any], how: str | None = "required", context: ReviewContext | None = None) -> ReviewResult:
    """Mutate a Pod of a namespace with this value of the label, or without the label."""
    labels: Mapping[str, str] = {} if how is None else {"gpu-usher.io/cpu-guard": how}
    return mutate(document, "team-a", labels, context or setting())


def after(document: dict[str, Any], how: str | None = "required") -> dict[str, Any]:
    """Return the Pod after admission, which a second review leaves unchanged."""
    changed: dict[str, Any] = apply(document, admit(document, how).operations)
    assert not admit(changed, how).operations
    return changed


def cpu(**spec: Any) -> dict[str, Any]:
    """Make a pod without GPUs."""
    return pod(container({"cpu": "1"}), **spec)


def node_affinity(kind: str, value: Any) -> dict[str, Any]:
    """Write one part of an affinity."""
    return {"nodeAffinity": {kind: value}}


def test_required_guard_excludes_nodes_with_gpus_and_no_others() -> None:
    """P39."""
    admitted = after(cpu())

    assert not eligible(admitted, PRESENT, "n")
    assert eligible(admitted, {}, "n")


def test_preferred_guard_excludes_no_node() -> None:
    admitted = after(cpu(), "preferred")

    assert eligible(admitted, PRESENT, "n")
    preference = {"weight": 100, "preference": {"matchExpressions": [NO_GPU]}}
    assert admitted["spec"]["affinity"] == node_affinity(PREFERRED, [preference])


@pytest.mark.parametrize(
    ("terms", "zones"),
    [
        pytest.param([{"matchExpressions": [ZONE]}], ["a"], id="into the user's term"),
        pytest.param(
            [{"matchExpressions": [ZONE]}, {"matchExpressions": [ZONE | {"values": ["b"]}]}], ["a", "b"], id="both"
        ),
        pytest.param([{"matchExpressions": [ZONE]}, {}], ["a"], id="an empty term selects nothing, still"),
        pytest.param([], [], id="no terms select nothing, still"),
    ],
)
def test_guard_is_anded_with_what_the_user_requires(terms: list[dict[str, Any]], zones: list[str]) -> None:
    document = cpu(affinity=node_affinity(REQUIRED, {"nodeSelectorTerms": terms}))

    admitted = after(document)

    assert zones == [zone for zone in "abc" if eligible(admitted, {"zone": zone}, "n")]
    assert not any(eligible(admitted, {"zone": zone, **PRESENT}, "n") for zone in "abc")


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(cpu(), id="no affinity"),
        pytest.param(cpu(affinity=None), id="null affinity"),
        pytest.param(cpu(affinity={"nodeAffinity": None}), id="null node affinity"),
        pytest.param(cpu(affinity={"podAffinity": {}}), id="affinity to pods"),
        pytest.param(pod(gpus(0)), id="zero GPUs"),
        pytest.param(cpu(initContainers=[container()]), id="init containers"),
        pytest.param(cpu(schedulerName="volcano"), id="another scheduler's pod"),
        pytest.param(cpu(runtimeClassName="nvidia"), id="a GPU's runtime class, no GPU"),
        pytest.param({"spec": {"containers": [container()]}}, id="no metadata"),
    ],
)
@pytest.mark.parametrize("how", ["required", "preferred"])
def test_every_pod_that_asks_for_no_gpu_is_guarded(document: dict[str, Any], how: str) -> None:
    assert NO_GPU["key"] in str(after(document, how)["spec"]["affinity"])


@pytest.mark.parametrize(
    "owners",
    [[{"kind": "DaemonSet"}], [{"kind": "Job"}, {"kind": "DaemonSet"}]],
    ids=["its owner", "one of its owners"],
)
def test_pod_of_a_daemon_set_is_for_its_node(owners: list[dict[str, str]]) -> None:
    document = cpu()
    document["metadata"]["ownerReferences"] = owners

    assert document == after(document)


@pytest.mark.parametrize(
    ("document", "how"),
    [
        pytest.param(cpu(nodeName="n"), "required", id="has its node"),
        pytest.param(cpu(), None, id="namespace not opted in"),
        pytest.param(cpu(), "", id="empty label"),
        pytest.param(cpu(), "Required", id="another letter case"),
        pytest.param(cpu(), "true", id="another word"),
        pytest.param(pod(gpus(1, "amd.com/gpu")), "required", id="asks for another vendor's GPU"),
    ],
)
def test_guard_lets_alone(document: dict[str, Any], how: str | None) -> None:
    assert NO_GPU["key"] not in str(after(document, how))


@pytest.mark.parametrize("owners", [None, [], [{"kind": "ReplicaSet"}], [{}]])
def test_pods_of_other_owners_are_guarded(owners: Any) -> None:
    document = cpu()
    document["metadata"]["ownerReferences"] = owners

    assert not eligible(after(document), PRESENT, "n")


def test_pods_own_label_neither_guards_nor_frees() -> None:
    """F21: only the namespace's label decides."""
    document = cpu()
    document["metadata"]["labels"] = {"gpu-usher.io/cpu-guard": "required"}

    assert document == after(document, None)


@pytest.mark.parametrize("name", ["infrastructure", "ignore"])
def test_exempt_namespace_is_not_guarded(name: str) -> None:
    labels = {"gpu-usher.io/cpu-guard": "required", f"gpu-usher.io/{name}": "true"}

    assert not mutate(cpu(), "team-a", labels, setting()).operations


def test_what_was_done_is_on_record() -> None:
    """F25: the decision annotation has the guard's action."""
    assert "required node affinity added: no GPU node" in after(cpu())["metadata"]["annotations"][DECISION]


def test_template_is_left_to_its_pods() -> None:
    assert not admit(cpu(), "required", replace(setting(), form=PodForm.Template)).operations


def test_validation_asks_nothing_of_a_pod_that_was_not_guarded() -> None:
    """The guard's webhook may have been down, since its failure policy is Ignore."""
    verdict = validate(cpu(), "team-a", {"gpu-usher.io/cpu-guard": "required"}, setting())

    assert verdict.allowed
    assert not verdict.concerned


@pytest.mark.parametrize("known", [True, False], ids=["a GPU", "not known yet"])
def test_pod_that_claims_a_gpu_or_perhaps_one_is_not_guarded(known: bool) -> None:
    """A claim's template is often created just before the pod, and matchConditions leave out pods with claims, too."""
    state, template = State(knowledge()), {"requests": [{"name": "gpu", "deviceClassName": "gpu.nvidia.com"}]}
    if known:
        metadata = {"name": "g", "namespace": "team-a"}
        state.devices.put_claim_template({"metadata": metadata, "spec": {"spec": {"devices": template}}})
    context = setting(state=state)
    document = cpu(resourceClaims=[{"name": "g", "resourceClaimTemplateName": "g"}])

    assert not any("affinity" in operation.path for operation in admit(document, "required", context).operations)


def test_owners_of_another_shape_are_bad_input() -> None:
    document = cpu()
    document["metadata"]["ownerReferences"] = 5

    with pytest.raises(BadInput):
        admit(document)
