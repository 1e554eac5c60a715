# SPDX-License-Identifier: Apache-2.0
"""Admission of ephemeral containers that are added to a running pod (F14, F18).

See docs/reference/admission.md#reviewed-objects.
"""

from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import ReviewResult, mutate
from app.admission.reviewed_pod import PodForm
from app.policy.compiled import PolicySet
from app.values.reasons import Code
from tests.admission.mutated import rules
from tests.builders import container, fleet, gpus, node, pod, setting, shipped

FLEET = fleet(node(), classes=["nvidia"])
VISIBLE = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
REQUESTS_ONLY = container(None, {"nvidia.com/gpu": "2"}, env=[VISIBLE])


def admit(document: dict[str, Any], policy_set: PolicySet, existing: tuple[str, ...] = ()) -> ReviewResult:
    """Mutate a running pod of team-a that gets ephemeral containers; it had those of `existing` before."""
    where = replace(setting(policy_set, FLEET), form=PodForm.Ephemeral, existing_ephemeral=frozenset(existing))
    return mutate(document, "team-a", {}, where)


def debugged(*ephemeral: dict[str, Any], main: dict[str, Any] | None = None) -> dict[str, Any]:
    """Make a running pod to which ephemeral containers are added."""
    return pod(main or REQUESTS_ONLY, ephemeralContainers=list(ephemeral))


def debugger(name: str = "debugger", **more: Any) -> dict[str, Any]:
    """Make an ephemeral container."""
    return {"name": name, "image": "busybox", **more}


@pytest.mark.parametrize("mode", ["Deny", "Strip", "Void", "Leave"])
def test_guard_looks_at_new_ephemeral_containers_only(mode: str) -> None:
    """Nothing else of a running pod can change (docs/reference/admission.md#reviewed-objects)."""
    document = debugged(debugger("old", env=[VISIBLE]), debugger(env=[VISIBLE]))
    guard = rules(f"visibleDevices: {mode}")

    verdict = admit(document, guard, existing=("old",))
    spec = apply(document, verdict.operations)["spec"]

    expected: dict[str, Any] = {"Deny": [VISIBLE], "Strip": [], "Void": [VOID], "Leave": [VISIBLE]}
    assert verdict.allowed is (mode != "Deny")
    assert spec["ephemeralContainers"] == [debugger("old", env=[VISIBLE]), debugger(env=expected[mode])]
    assert spec["containers"] == document["spec"]["containers"]


def test_ephemeral_container_is_hidden_from_gpus_under_void() -> None:
    """The ephemeral container's image may set NVIDIA_VISIBLE_DEVICES to `all`."""
    document = debugged(debugger())
    void = rules("visibleDevices: Void")

    after = apply(document, admit(document, void).operations)

    assert after["spec"]["ephemeralContainers"] == [debugger(env=[VOID])]
    assert after["metadata"] == document["metadata"]
    assert not admit(after, void).operations


@pytest.mark.parametrize(
    "document",
    [
        debugged(debugger(), main=gpus("500m")),
        debugged(debugger(), main=gpus(1, securityContext={"privileged": True})),
        debugged(),
        pod(gpus(1), nodeName="n", ephemeralContainers=None, annotations={"cuda": "new"}),
    ],
    ids=["fraction", "privileged pod", "none", "null, bypass and annotation"],
)
def test_running_pod_is_judged_by_the_guard_alone(document: dict[str, Any]) -> None:
    strict = rules("visibleDevices: Deny, privileged: Deny, bypass: Deny, maxGPUsPerPod: 0")

    verdict = admit(document, strict)

    assert verdict.allowed
    assert not verdict.operations


def test_privileged_debugger_is_refused_beside_any_pod() -> None:
    """F14: a privileged container sees every GPU of the node, whatever the pod requests."""
    document = debugged(debugger(securityContext={"privileged": True}))

    verdict = admit(document, rules("privileged: Deny"))

    assert [reason.code for reason in verdict.reasons] == [Code.NodeDevicesReached]


def test_ephemeral_review_does_not_repeat_what_was_said_of_the_pod() -> None:
    document = pod(gpus(1), annotations={"typo": "x"}, ephemeralContainers=[debugger()])

    assert not admit(document, shipped()).warnings
