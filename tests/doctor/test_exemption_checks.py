# SPDX-License-Identifier: Apache-2.0
"""The doctor reports ways around gpu-usher: exempt names that anyone may use, exempting labels, unknown GPU names."""

import pytest

from app.admission.match_conditions import match_conditions
from app.admission.reviewed_pod import EXEMPT_LABELS
from app.doctor.cluster_checks import examine_cluster
from app.doctor.fleet_checks import FindingLevel
from tests.builders import knowledge
from tests.doctor.healthy_cluster import (
    GPU,
    MUTATING,
    VALIDATING,
    A,
    Break,
    Object,
    P,
    add,
    cluster,
    levels_by_check,
    namespace,
    put,
)

IGNORED = [namespace("team-a", **{"gpu-usher.io/ignore": "true"})]
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"


def serving(resource: str, driver: str = "gpu.nvidia.com") -> Break:
    """Make a DeviceClass that serves an extended resource."""
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    spec = {"extendedResourceName": resource, "selectors": selectors}
    return put("DeviceClass", {"metadata": {"name": "c"}, "spec": spec})


def in_match_conditions(resource: str) -> Break:
    """Add the resource to the match conditions, as `gpu-usher schema --match-conditions --resource` writes them."""

    def change(objects: dict[str, list[Object]]) -> None:
        serving(resource)(objects)
        for kind in (MUTATING, VALIDATING):
            objects[kind][0]["webhooks"][0]["matchConditions"] = match_conditions(knowledge(), [resource])

    return change


def operands(api_version: str, kind: str, **labels: str) -> Break:
    """Make a namespace with a DaemonSet that an object of this kind controls."""
    owner = {"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": True}
    daemon_set = {"metadata": {"name": "d", "namespace": "nvidia", "ownerReferences": [owner]}, "spec": {}}
    return lambda objects: [
        add("Namespace", namespace("nvidia", **labels))(objects),
        add("DaemonSet", daemon_set)(objects),
    ]


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        pytest.param(
            put("Namespace", *IGNORED),
            {"ExemptsTooMuch": A, "ExemptByLabel": A},
            id="F21: GPU pods in an exempt namespace",
        ),
        pytest.param(
            lambda objects: [put("Namespace", *IGNORED)(objects), put("Pod")(objects)],
            {"ExemptByLabel": A},
            id="an exempt one without",
        ),
        pytest.param(put(POLICY), {"ExemptionsUnguarded": P}, id="F21: exempt names to squat"),
        pytest.param(put(BINDING), {"ExemptionsUnguarded": P}, id="F21: the policy on them without a binding"),
        pytest.param(
            lambda objects: objects[POLICY][0]["spec"]["validations"][0].update(expression="true"),
            {"ExemptionsUnguarded": P},
            id="F21: a policy that lets everybody",
        ),
        pytest.param(lambda objects: objects.pop(POLICY), {}, id="a policy that could not be read"),
        pytest.param(
            add("Namespace", namespace("nvidia-device-plugin")),
            {"ExemptWithoutOperands": A},
            id="F21: an exempt name without operands",
        ),
        pytest.param(add("Namespace", namespace("gpu-operator")), {}, id="an exempt name with operands"),
        *(
            pytest.param(operands(group, kind), {"OperatorNotExempt": P}, id=f"operands of a {kind}, not exempt")
            for group, kind in (
                ("nvidia.com/v1", "ClusterPolicy"),
                ("nvidia.com/v1alpha1", "NVIDIADriver"),
                ("amd.com/v1alpha1", "DeviceConfig"),
                ("deviceplugin.intel.com/v1", "GpuDevicePlugin"),
            )
        ),
        pytest.param(
            operands("nvidia.com/v1", "ClusterPolicy", **{EXEMPT_LABELS[0]: "true"}),
            {"ExemptByLabel": A},
            id="operands, exempt by label",
        ),
        pytest.param(operands("apps/v1", "Deployment"), {}, id="a DaemonSet of another owner"),
        pytest.param(
            serving("example.com/gpu"), {"ResourceNotReached": P}, id="GPUs under a name of the cluster's own"
        ),
        pytest.param(in_match_conditions("example.com/gpu"), {}, id="the same, named in matchConditions"),
        pytest.param(serving("example.com/nic", "nic.example.com"), {}, id="another device's own name"),
        pytest.param(serving(GPU), {}, id="DRA in the place of the device plugin"),
    ],
)
def test_way_around_gpu_usher_is_named(broken: Break, expected: dict[str, FindingLevel]) -> None:
    """F21, S13."""
    assert levels_by_check(cluster(broken)) == expected


def test_exempt_namespace_is_named_with_who_put_the_label() -> None:
    """F21: the client is the field manager that the API server has recorded."""
    owned = namespace("team-a", **{"gpu-usher.io/ignore": "true"})
    fields: Object = {"f:metadata": {"f:labels": {"f:gpu-usher.io/ignore": {}}}}
    owned["metadata"]["managedFields"] = [{"manager": "kubectl-label", "time": "2026-01-08", "fieldsV1": fields}]

    findings = [
        finding for finding in examine_cluster(cluster(put("Namespace", owned))) if finding.check == "ExemptByLabel"
    ]

    assert [(finding.objects, "kubectl-label (2026-01-08)" in finding.what) for finding in findings] == [
        (("Namespace team-a",), True)
    ]


def test_names_that_can_be_squatted_are_named() -> None:
    """F21."""
    (finding,) = (
        finding for finding in examine_cluster(cluster(put(POLICY))) if finding.check == "ExemptionsUnguarded"
    )

    assert "nvidia-device-plugin" in finding.what
    assert "gpu-usher," not in finding.what
