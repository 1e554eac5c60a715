# SPDX-License-Identifier: Apache-2.0
"""When a GPU pod gets a RuntimeClass: by what the nodes that could serve it show of their container runtime."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.reviewed_pod import PodForm
from app.cluster.snapshot import fill
from app.kube.objects import RuntimeClass, Scheduling
from app.nodes.model import Node
from app.nodes.reading import read_node
from app.world.fleet_facts import FleetFacts
from app.world.state import State
from tests.admission.mutated import admit, rules
from tests.builders import fleet, gpus, knowledge, node_document, pod

PLAIN, TOOLKIT = ("", "runc"), ("", "nvidia", "nvidia-cdi", "nvidia-legacy", "runc")
NVIDIA = {"nvidia": RuntimeClass("nvidia")}
AUTO, NAMED = "runtimeClassName: Auto", "runtimeClassName: nvidia"
GKE = {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}
AKS = {"kubernetes.azure.com/accelerator": "nvidia"}
OPENSHIFT = {"node.openshift.io/os_id": "rhcos"}
OPERATOR = {"nvidia.com/gpu.deploy.container-toolkit": "true"}


def node(handlers: tuple[str, ...] | None = None, name: str = "n", **more: Any) -> Node:
    """Read a GPU node with these runtime handlers; None for one that lists none."""
    document = node_document(name, **more)
    if handlers is not None:
        document["status"]["runtimeHandlers"] = [{"name": handler} if handler else {} for handler in handlers]
    return read_node(document, knowledge())


def facts(*nodes: Node, classes: Mapping[str, RuntimeClass] | None = None) -> FleetFacts:
    """Return the facts of nodes and RuntimeClasses, by default of nvidia alone."""
    return replace(fleet(*nodes), runtime_classes=NVIDIA if classes is None else classes)


def class_of(document: dict[str, Any], fleet_facts: FleetFacts, words: str = AUTO) -> str | None:
    """Give the runtime class of the pod that is admitted."""
    result = admit(document, rules(words), fleet_facts)
    name: str | None = apply(document, result.operations)["spec"].get("runtimeClassName")
    return name


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param([node()], "nvidia", id="handlers not known"),
        pytest.param([node(())], "nvidia", id="an empty list says nothing"),
        pytest.param([node(TOOLKIT)], "nvidia", id="all have it"),
        pytest.param([node(TOOLKIT), node(None, "m")], "nvidia", id="some have it, of others it is not known"),
        pytest.param([node(PLAIN)], None, id="none has it"),
        pytest.param([node(PLAIN), node(TOOLKIT, "m")], None, id="some have it, others not"),
        pytest.param([node(PLAIN), node(None, "m")], None, id="one lacks it, of others it is not known"),
        pytest.param([node(TOOLKIT), node(PLAIN, "c", offers={})], "nvidia", id="a node that does not fit lacks it"),
        pytest.param([node(PLAIN, offers={"nvidia.com/mig-1g.10gb": 1})], None, id="none fits now"),
        pytest.param([], "nvidia", id="no GPU node yet"),
        pytest.param([node(labels=GKE)], None, id="GKE"),
        pytest.param([node(TOOLKIT, labels=GKE)], None, id="GKE, with a handler"),
        pytest.param([node(labels=GKE | OPERATOR)], "nvidia", id="GKE with the GPU Operator's toolkit"),
        pytest.param([node(labels=AKS)], None, id="AKS"),
        pytest.param([node(labels=AKS | OPERATOR)], "nvidia", id="AKS with the GPU Operator's toolkit"),
        pytest.param(
            [node(("", "nvidia-container-runtime"), labels=AKS | OPERATOR)], None, id="AKS before its toolkit"
        ),
        pytest.param([node(labels=OPENSHIFT | OPERATOR)], None, id="OpenShift"),
        pytest.param([node(labels=GKE), node(None, "m")], None, id="one of unknown handlers needs none"),
        pytest.param([node(TOOLKIT, labels=GKE), node(TOOLKIT, "m")], "nvidia", id="all have it, and one needs none"),
    ],
)
def test_auto_sets_the_class_only_where_no_node_that_fits_could_break(nodes: list[Node], expected: str | None) -> None:
    """F5, F6."""
    assert class_of(pod(gpus(1)), facts(*nodes)) == expected


@pytest.mark.parametrize(
    ("classes", "handlers", "expected"),
    [
        pytest.param({"gpu": RuntimeClass("nvidia")}, TOOLKIT, "gpu", id="another name for the toolkit's handler"),
        pytest.param({"nvidia": RuntimeClass("nvidia-container-runtime")}, TOOLKIT, None, id="another handler"),
        pytest.param(
            {"nvidia": RuntimeClass("old"), "gpu": RuntimeClass("nvidia")}, TOOLKIT, "gpu", id="the one that starts"
        ),
        pytest.param({**NVIDIA, "gpu": RuntimeClass("nvidia")}, TOOLKIT, "nvidia", id="rather the handler's own name"),
        pytest.param({"kata": RuntimeClass("kata")}, ("", "kata"), None, id="no class of a toolkit"),
        pytest.param({"nvidia-cdi": RuntimeClass("nvidia-cdi")}, TOOLKIT, None, id="not by a name that begins alike"),
    ],
)
def test_classes_are_compared_by_their_handler(
    classes: dict[str, RuntimeClass], handlers: tuple[str, ...], expected: str | None
) -> None:
    """F6: a RuntimeClass may have another name than its handler."""
    assert class_of(pod(gpus(1)), facts(node(handlers), classes=classes)) == expected


@pytest.mark.parametrize("resource", ["amd.com/gpu", "gpu.intel.com/i915"])
def test_vendor_without_a_runtime_handler_gets_no_class_from_auto(resource: str) -> None:
    """F5."""
    classes = {"nvidia": RuntimeClass("nvidia"), "amd": RuntimeClass("amd"), "intel": RuntimeClass("intel")}
    served = node(("", "amd", "intel", "nvidia"), product=None, driver=None, offers={resource: 8})

    assert class_of(pod(gpus(1, resource)), facts(served, classes=classes)) is None


@pytest.mark.parametrize("words", [AUTO, NAMED, NAMED + ", override: true"])
def test_class_is_left_out_and_told_where_no_node_that_fits_has_its_handler(words: str) -> None:
    """F6: an administrator who names the class is warned; Auto only records it."""
    result = admit(pod(gpus(1)), rules(words), facts(node(PLAIN)))

    told = "runtimeClassName not set: no node that fits has handler nvidia of RuntimeClass nvidia"
    assert told in result.record
    assert (told in result.warnings) is (words != AUTO)


def test_class_that_a_policy_names_is_set_in_a_mixed_fleet_with_a_warning() -> None:
    """F5."""
    document, mixed = pod(gpus(1)), facts(node(PLAIN), node(TOOLKIT, "m"))

    result = admit(document, rules(NAMED), mixed)

    assert apply(document, result.operations)["spec"]["runtimeClassName"] == "nvidia"
    assert result.warnings == ("RuntimeClass nvidia: some nodes that fit lack its handler nvidia",)


def test_auto_never_replaces_a_class_that_the_pod_names() -> None:
    """F5."""
    assert class_of(pod(gpus(1), runtimeClassName="kata"), facts(node(TOOLKIT)), AUTO + ", override: true") == "kata"


@pytest.mark.parametrize(("selector", "expected"), [({}, None), ({"pool": "gpu"}, "nvidia"), ({"pool": "cpu"}, None)])
def test_auto_sets_no_class_that_would_keep_the_pod_off_nodes(selector: Any, expected: str | None) -> None:
    """F5: unless the pod selects the same nodes itself."""
    classes = {"nvidia": RuntimeClass("nvidia", Scheduling({"pool": "gpu"}))}

    assert class_of(pod(gpus(1), nodeSelector=selector), facts(node(TOOLKIT), classes=classes)) == expected


@pytest.mark.parametrize("form", [PodForm.Pod, PodForm.Template])
@pytest.mark.parametrize("name", ["nvidia", "kata"])
def test_pod_that_names_a_class_without_handler_is_warned(name: str, form: PodForm) -> None:
    """F6: whatever the class is for; the kubelet would not start the pod."""
    classes = {"nvidia": RuntimeClass("nvidia"), "kata": RuntimeClass("kata")}
    lacking, having = facts(node(PLAIN), classes=classes), facts(node(PLAIN), node((name,), "m"), classes=classes)

    document = pod(gpus(1), runtimeClassName=name)

    told = f"no node that fits has runtime handler {name} of RuntimeClass {name}: the pod would not start"
    assert told in admit(document, rules("bypass: Leave"), lacking, form).warnings
    assert told not in admit(document, rules("bypass: Leave"), having, form).warnings


@pytest.mark.parametrize("words", [AUTO, NAMED])
def test_pod_whose_resource_dra_serves_gets_no_class(words: str) -> None:
    """F5, S13: a DRA driver hands devices over by CDI."""
    served = node(TOOLKIT, offers={})
    served = replace(served, node_class=replace(served.node_class, dra_resources=frozenset({"nvidia.com/gpu"})))

    assert class_of(pod(gpus(1)), facts(served), words) is None


def test_handlers_come_with_snapshots_and_change_with_the_node() -> None:
    """F6: a node of which the toolkit comes up later."""
    state = State(knowledge())
    document = node_document()
    document["status"]["runtimeHandlers"] = [{"name": ""}, {"name": "runc", "features": {}}]
    runtime_class = {"kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    fill(state, [document, runtime_class])

    before = admit(pod(gpus(1)), rules(AUTO), state.fleet())
    document["status"]["runtimeHandlers"].append({"name": "nvidia"})
    state.put_node(document)
    after = admit(pod(gpus(1)), rules(AUTO), state.fleet())

    assert not any("set to nvidia" in action for action in before.record)
    assert "runtimeClassName set to nvidia" in after.record


@pytest.mark.parametrize(("product", "expected"), [("NVIDIA-A10", "nvidia"), ("Tesla-T4", None)])
def test_nodes_that_the_pods_node_selector_excludes_do_not_count(product: str, expected: str | None) -> None:
    """F5: as far as the selector is on a label that node affinity may name."""
    mixed = facts(node(TOOLKIT, product="NVIDIA-A10"), node(PLAIN, "m", product="Tesla-T4"))

    assert class_of(pod(gpus(1), nodeSelector={"nvidia.com/gpu.product": product}), mixed) == expected
