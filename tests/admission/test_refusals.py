# SPDX-License-Identifier: Apache-2.0
"""Every refusal of admission as its reader sees it: one line, whole, with the policy that wants it and what to do."""

import re
from typing import Any

import pytest

from app.admission.review import ReviewResult, mutate
from app.admission.reviewed_pod import DENIAL_LIMIT, denial_message
from app.policy.compiled import PolicySet
from app.values.reasons import Code, ReasonKind, reason
from tests.builders import container, fleet, gpus, node, pod, policies, policy, setting

GPU = "nvidia.com/gpu"
MOST = "admission: {maxGPUsPerPod: 2}"
GUARDS = "admission: {visibleDevices: Deny, privileged: Deny, bypass: Deny, sharedReplicas: Deny, schedulerName: ours}"
AMOUNTS = "admission: {extendedResources: {requestsOnly: Deny, mismatch: Deny, fractional: Deny}}"
SHARED = {
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.count": "1",
}
OURS: dict[str, Any] = {"schedulerName": "ours"}
ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
TRAINIG = {"workload-class": "trainig"}
CLASSES = "training, inference, batch-inference or notebook"

REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a name without a domain": (
        MOST,
        pod(container({"gpu": 1})),
        "container main names resource gpu, which the API server refuses; did you mean nvidia.com/gpu or amd.com/gpu?",
    ),
    "less than none": (
        MOST,
        pod(gpus("-1")),
        "container main asks for a negative amount of nvidia.com/gpu; ask for zero or more",
    ),
    "a fraction": (
        AMOUNTS,
        pod(gpus("500m")),
        "container main asks for a fraction of nvidia.com/gpu, which Kubernetes gives only as a whole number; ask for a"
        " whole number, a MIG profile, or nvidia.com/gpu.shared",
    ),
    "requests alone": (
        AMOUNTS,
        pod(container(None, {GPU: 1})),
        "container main has nvidia.com/gpu in requests but not in limits (policy mine); set the same amount in"
        " resources.limits",
    ),
    "two amounts": (
        AMOUNTS,
        pod(container({GPU: 2}, {GPU: 1})),
        "container main requests another amount of nvidia.com/gpu than its limit (policy mine); make requests equal to"
        " limits",
    ),
    "too many": (
        MOST,
        pod(gpus(4)),
        "asks for 4 GPUs; at most 2 per pod are allowed (policy mine); ask for fewer GPUs, or have the policy's"
        " maxGPUsPerPod raised",
    ),
    "memory below its limit": (
        "admission: {memoryRequests: Deny}",
        pod(container({GPU: 1, "memory": "2Gi"}, {GPU: 1, "memory": "1Gi"})),
        "container main requests less memory than its limit (policy mine); set the same amount of memory in"
        " resources.requests and resources.limits",
    ),
    "little CPU for each GPU": (
        'admission: {perGPU: {minCPU: "4"}}',
        pod(container({GPU: 2, "cpu": "2"})),
        "requests less cpu than 4 for each of 2 GPUs (policy mine); change the request, or the number of GPUs",
    ),
    "a variable": (
        GUARDS,
        pod(container(env=ALL), **OURS),
        "container main sets NVIDIA_VISIBLE_DEVICES but requests no GPU (policy mine); remove it, and request GPUs in"
        " resources.limits",
    ),
    "a variable beside a GPU": (
        GUARDS,
        pod(gpus(1, env=ALL), **OURS),
        "container main sets NVIDIA_VISIBLE_DEVICES beside the GPU that it requests (policy mine);"
        " remove it, and request"
        " GPUs in resources.limits",
    ),
    "a device file": (
        GUARDS,
        pod(gpus(1), volumes=[{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}], **OURS),
        "a volume has hostPath /dev/nvidia0, which reaches GPUs that the pod did not request (policy mine); "
        "remove it, and request GPUs in resources.limits",
    ),
    "all device files": (
        GUARDS,
        pod(gpus(1), volumes=[{"name": "v", "hostPath": {"path": "/dev"}}], **OURS),
        "a volume has hostPath /dev, which reaches every GPU of the node (policy mine); remove it, or ask"
        " for an exception in"
        " the policy",
    ),
    "privileged": (
        GUARDS,
        pod(gpus(1, securityContext={"privileged": True}), **OURS),
        "container main is privileged, which lets it use every GPU of its node (policy mine); set privileged: false",
    ),
    "privileged without a GPU": (
        GUARDS,
        pod(container(securityContext={"privileged": True}), **OURS),
        "container main has privileged: true, by which it can use every GPU of its node (policy"
        " mine); remove it, or ask"
        " for an exception in the policy",
    ),
    "a node of its own": (
        GUARDS,
        pod(gpus(1), nodeName="n", **OURS),
        "spec.nodeName is set, so that no scheduler checks the node (policy mine); remove spec.nodeName, and any"
        " schedulerName that the policy does not set",
    ),
    "another scheduler": (
        GUARDS,
        pod(gpus(1), schedulerName="theirs"),
        "names scheduler theirs, where ours is wanted (policy mine); remove spec.nodeName, and any"
        " schedulerName that the"
        " policy does not set",
    ),
    "two replicas": (
        GUARDS,
        pod(gpus(2), **OURS),
        "container main asks for 2 replicas of shared GPUs (policy mine); ask for one replica;"
        " several may be on the same GPU",
    ),
    "a class that is none": (
        MOST,
        pod(annotations=TRAINIG),
        f"gpu-usher.io/workload-class does not parse: got 'trainig', wants {CLASSES}; did you mean training?",
    ),
    "no class at all": (
        MOST,
        pod(annotations={"workload-class": "xyzzy"}),
        f"gpu-usher.io/workload-class does not parse: got 'xyzzy', wants {CLASSES}; correct the"
        " annotation, or remove it",
    ),
    "bytes": (
        MOST,
        pod(annotations={"gpu-memory": "40"}),
        "gpu-usher.io/gpu-memory does not parse: memory: got '40', which is in bytes, did you mean 40Gi?",
    ),
    "no product": (
        "placement: {products: {allow: [H100]}}",
        pod(annotations={"products": "A100"}),
        "the pod's annotation and policy mine together allow no GPU product; widen gpu-usher.io/products or one of the"
        " policies named",
    ),
    "whole and shared": (
        "placement: {sharing: Exclusive}",
        pod(annotations={"sharing": "Shared"}),
        "policy mine wants sharing Exclusive, and the pod's annotation wants Shared; change the"
        " annotation or one of the"
        " policies named",
    ),
}


def admitted(document: dict[str, Any], policy_set: PolicySet) -> ReviewResult:
    """Mutate a pod on a fleet of one node, whose GPUs are shared."""
    shared = node(product="NVIDIA-A10-SHARED", offers={GPU: 4}, labels=SHARED)
    return mutate(document, "team-a", {}, setting(policy_set, fleet(shared)))


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_whole_and_names_the_policy_and_the_remedy(name: str) -> None:
    """F8, F19."""
    spec, document, expected = REFUSALS[name]

    result = admitted(document, policies(policy("mine", spec)))

    assert f"gpu-usher: {expected}" == denial_message(result.reasons)


def test_refusals_are_told_of_every_code_of_admission_that_a_pod_alone_can_have() -> None:
    """F8: the others need a large object, an idle namespace, a policy as object, or are only warnings."""
    told = {
        refusal.code
        for spec, document, _ in REFUSALS.values()
        for refusal in admitted(document, policies(policy("mine", spec))).reasons
    }

    others = {
        "ClaimNotKnown",
        "ClaimUnrestricted",
        "ObjectTooLarge",
        "IdleGPUsHeld",
        "ReservedAnnotation",
        "RuntimeClassMissing",
        "InvalidPolicy",
    }
    assert {code for code in Code if code.kind is ReasonKind.ADMISSION and code.name not in others} == told


def test_two_reasons_are_numbered_and_what_has_no_room_is_counted() -> None:
    """F8, ADM-28: no reason loses its remedy."""
    two = ReviewResult(True, reasons=(reason(Code.PrivilegedGPUPod, "is privileged"), reason(Code.TooManyGPUs, "9")))
    many = ReviewResult(
        True, reasons=tuple(reason(Code.PrivilegedGPUPod, f"{number} {'x' * 90}") for number in range(40))
    )

    assert denial_message(two.reasons) == (
        "gpu-usher: (1) is privileged; set privileged: false (2) 9; ask for fewer GPUs, or have the"
        " policy's maxGPUsPerPod"
        " raised"
    )
    message = denial_message(many.reasons)
    assert len(message) <= DENIAL_LIMIT
    assert re.search(r"set privileged: false and \d\d more reasons$", message)


def test_no_remedy_names_a_file_that_its_reader_does_not_have() -> None:
    """F8: a path of the repository, or a page of it."""
    assert [code.name for code in Code if re.search(r"\.md|\.py|\.yaml|/docs|policies/", code.remedy)] == []


def test_warning_of_a_policy_has_the_remedy_too() -> None:
    """F19."""
    result = admitted(pod(gpus(4)), policies(policy("mine", f"action: Warn, {MOST}")))

    assert (
        "asks for 4 GPUs; at most 2 per pod are allowed (policy mine); ask for fewer GPUs, or have the policy's"
        " maxGPUsPerPod raised (warning only)"
    ) in result.warnings
