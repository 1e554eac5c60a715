# SPDX-License-Identifier: Apache-2.0
"""Policies as GPUPolicy objects, edited by kubectl on a real API server (F131)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.kubectl import KubectlResult, Object
from tests.e2e.stage import (
    DEPLOY,
    Service,
    eventually,
    install_webhooks,
    serving,
)

COMPONENT = DEPLOY / "components" / "crd"
DEFINITION = [f"-f={COMPONENT / name}" for name in ("gpupolicies.yaml", "rbac.yaml", "webhook.yaml")]


@pytest.fixture(scope="module")
def service(plane: ControlPlane) -> Iterator[Service]:
    """The service, ready before GPUPolicy is installed, and the definition installed while it runs."""
    with serving(plane) as running:
        install_webhooks(plane, running)
        assert "gpupolicies" not in running.health()["caches"]
        result = plane.kubectl("apply", *DEFINITION)
        assert result.code == 0, result.err
        eventually("the definition is found", lambda: follows_policies(running))
        yield running


def follows_policies(service: Service) -> bool:
    """Tell whether GPUPolicy objects are listed and watched; the service must be ready all the while."""
    assert service.ready()
    cache = service.health()["caches"].get("gpupolicies", {})
    return bool(cache.get("synced")) and "error" not in cache


def gpu_policy(name: str, **spec: Any) -> Object:
    """Write a GPUPolicy."""
    return {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": name}, "spec": spec}


def apply(plane: ControlPlane, document: Object) -> KubectlResult:
    """Apply an object as `kubectl apply -f -` does."""
    return plane.kubectl("apply", "-f", "-", stdin=json.dumps(document))


@pytest.mark.usefixtures("service")
def test_get_shows_what_a_policy_is_for(plane: ControlPlane) -> None:
    """F74: the columns show priority and action also where the policy leaves them out."""
    apply(plane, gpu_policy("shown", description="for the reader"))

    header, row = plane.kubectl("get", "gpol", "shown").out.splitlines()

    assert header.split() == ["NAME", "PRIORITY", "ACTION", "ACCEPTED", "REASON", "DESCRIPTION", "AGE"]
    assert row.split()[:-1] == ["shown", "0", "Enforce", "for", "the", "reader"]
    plane.kubectl("delete", "gpol", "shown")


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({"admission": {"maxGPUPerPod": 2}}, 'unknown field "spec.admission.maxGPUPerPod"', id="field"),
        pytest.param({"actions": {"product": "Warn"}}, 'unknown field "spec.actions.product"', id="rule"),
        pytest.param({"action": "Shout"}, 'spec.action: Unsupported value: "Shout"', id="word"),
        pytest.param({"priority": -1}, "spec.priority: Invalid value: -1", id="bound"),
        pytest.param({"placement": {"gpuMemory": 40}}, "spec.placement.gpuMemory: Invalid value", id="type"),
        pytest.param({"placement": {"scores": [{"weight": 5}]}}, "spec.placement.scores[0].name: Required value",
                     id="missing"),
    ],
)  # fmt: skip
def test_mistake_is_refused_by_the_api_server_with_its_path(
    plane: ControlPlane, spec: dict[str, Any], words: str
) -> None:
    """F75, F131: the schema alone refuses it, before our webhook is called."""
    result = apply(plane, gpu_policy("mistaken", **spec))

    assert result.code != 0
    assert words in result.err


@pytest.mark.usefixtures("service")
def test_shipped_policies_are_accepted_as_they_are(plane: ControlPlane) -> None:
    """F74: `kubectl apply -f policies/` accepts them."""
    result = plane.kubectl("apply", "--dry-run=server", "-f", str(DEPLOY.parent / "policies"))

    assert result.code == 0, result.err
    assert "gpupolicy.gpu-usher.io/training created" in result.out
