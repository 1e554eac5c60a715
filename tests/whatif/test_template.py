# SPDX-License-Identifier: Apache-2.0
"""Templates of new nodes: a node made from the tags serves the pod, one with a product that is not named does not."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.verbs import app
from app.nodes.reading import read_node
from app.placement.engine import judge
from app.values.errors import BadInput
from app.whatif.node_template import TAG, NodeTemplate, node_template
from tests.builders import demand, gpus, knowledge, node, pod
from tests.oracles.node_affinity import eligible

RUN = CliRunner()
GPU = "nvidia.com/gpu"
PODS: dict[str, dict[str, Any]] = {
    "any": pod(),
    "large": pod(gpus(4), annotations={"gpu-memory": "60Gi"}),
    "small": pod(annotations={"gpu-memory": "45Gi"}),
    "named": pod(annotations={"products": "A100"}),
    "cuda": pod(gpus(1, image="nvcr.io/nvidia/pytorch:24.05-py3")),
    "slice": pod(gpus(1, "nvidia.com/mig-3g.40gb")),
    "nvlink": pod(gpus(8), annotations={"nvlink": "true"}),
}


def node_from_template(template: NodeTemplate) -> dict[str, Any]:
    """Write the node that the Cluster Autoscaler expects from the template's tags."""
    labels, resources = (
        {key.removeprefix(f"{TAG}/{what}/"): value for key, value in template.tags.items() if f"/{what}/" in key}
        for what in ("label", "resources")
    )
    return {"metadata": {"name": "new", "labels": labels}, "status": {"allocatable": resources}}


@pytest.mark.parametrize("name", PODS)
def test_node_of_the_tags_serves_the_pod(name: str) -> None:
    """F124, P16: the node is read as GPU Feature Discovery would label it, with a driver of its image."""
    pod_demand = demand(PODS[name])
    template = node_template(pod_demand, PODS[name], knowledge())

    document = node_from_template(template)
    document["metadata"]["labels"] |= {"nvidia.com/cuda.driver-version.full": "580.95.05"}

    assert judge(pod_demand, read_node(document, knowledge()), True) is None


@pytest.mark.parametrize("name", [name for name in PODS if name != "slice"])
def test_products_are_those_on_which_a_real_node_would_do(name: str) -> None:
    """F124: each product is compared with a node built for it; products with unknown facts are not advised."""
    pod_demand = demand(PODS[name])
    sure = {row.label for row in knowledge().products.by_form.values() if row.memory_mib}

    template = node_template(pod_demand, PODS[name], knowledge())

    fits = {
        label
        for label in sure
        if judge(pod_demand, node(product=label, driver="580.95.05", labels=_facts(label)), True) is None
    }
    assert {name for name in template.products if name in sure} <= fits
    assert template.products


def _facts(label: str) -> dict[str, str]:
    row = knowledge().products.find(label)
    return {"nvidia.com/gpu.memory": str(row.memory_mib)} if row else {}


def test_karpenter_gets_names_count_and_memory_where_a_name_means_two_sizes() -> None:
    """F124, S8: a100 is 40 GB or 80 GB."""
    template = node_template(demand(PODS["large"]), PODS["large"], knowledge())

    requirements = template.node_pool["Karpenter"]["spec"]["template"]["spec"]["requirements"]
    assert requirements == [
        {"key": "karpenter.k8s.aws/instance-gpu-name", "operator": "In",
         "values": ["a100", "b200", "b300", "h100", "h200", "rtx-pro-server-6000"]},
        {"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "Gt", "values": ["3"]},
        {"key": "karpenter.k8s.aws/instance-gpu-memory", "operator": "Gt", "values": ["40960"]},
    ]  # fmt: skip


def test_memory_does_not_shut_out_smaller_gpus_that_will_do() -> None:
    """F124: l40s has less memory than the large a100 and more than the small one."""
    template = node_template(demand(PODS["small"]), PODS["small"], knowledge())

    names, memory = template.node_pool["Karpenter"]["spec"]["template"]["spec"]["requirements"]
    assert {"a100", "h100"} <= set(names["values"])
    assert int(memory["values"][0]) == 40960


def run(file: Path, document: Any, *more: str) -> Any:
    file.write_text(yaml.safe_dump(document), "utf-8")
    return RUN.invoke(app, ["plan", "node-template", "-f", str(file), *more])


def test_node_affinity_that_admission_adds_is_met_by_the_template(tmp_path: Path) -> None:
    """F124, F136: otherwise the autoscaler would find no node group for the pod."""
    made = PODS["cuda"] | {"spec": {**PODS["cuda"]["spec"], "nodeSelector": {"pool": "ml"}}}

    answer = json.loads(run(tmp_path / "p.yaml", made, "-o", "json").stdout)
    patched = RUN.invoke(app, ["mutate", "-f", str(tmp_path / "p.yaml"), "--demo", "-o", "json"])

    labels = {
        key.removeprefix(f"{TAG}/label/"): value
        for key, value in answer["tags"].items()
        if key.startswith(f"{TAG}/label/")
    }
    admitted = json.loads(patched.stdout)["objects"][0]["object"]
    assert admitted["spec"]["affinity"]["nodeAffinity"]
    assert labels["pool"] == "ml"
    assert eligible(admitted, labels, "new")


def test_workload_stands_for_its_pods_and_tolerated_taints_are_said(tmp_path: Path) -> None:
    """F124: given a fleet, admission adds the tolerations of its taints."""
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    made |= {"spec": {"template": {"spec": {"containers": [gpus(2)]}}}}

    answer = yaml.safe_load(run(tmp_path / "p.yaml", made, "--demo-fleet", "mixed").stdout)

    assert answer["resources"] == {GPU: 2}
    assert answer["taints"] == ["nvidia.com/gpu=present:NoSchedule"]
    assert answer["tags"][f"{TAG}/taint/nvidia.com/gpu"] == "present:NoSchedule"


def test_template_of_a_workload_that_asks_for_gpus_is_meant(tmp_path: Path) -> None:
    """F124: of a RayCluster the workers; of two templates with GPUs it is not known which."""
    worker = {"template": {"spec": {"containers": [gpus(2)]}}}
    spec = {"headGroupSpec": {"template": {"spec": {"containers": [{"name": "head", "image": "x"}]}}}}
    made = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "r"}}

    answer = run(tmp_path / "p.yaml", {**made, "spec": {**spec, "workerGroupSpecs": [worker]}})
    twice = run(tmp_path / "p.yaml", {**made, "spec": {**spec, "workerGroupSpecs": [worker, worker]}})

    assert yaml.safe_load(answer.stdout)["resources"] == {GPU: 2}
    assert isinstance(twice.exception, BadInput)
    assert "got 2 Pods and pod templates that ask for GPUs, wants one" in str(twice.exception)


def test_pod_that_no_product_suits_fails(tmp_path: Path) -> None:
    result = run(tmp_path / "p.yaml", pod(annotations={"gpu-memory": "900Gi"}))

    assert result.exit_code == 1
    assert "no known GPU product fits" in result.output


@pytest.mark.parametrize("document", [{"kind": "Service"}, pod({"name": "c", "image": "x"})], ids=["service", "no GPU"])
def test_what_asks_for_no_gpu_is_bad_input(tmp_path: Path, document: Any) -> None:
    assert isinstance(run(tmp_path / "p.yaml", document).exception, BadInput)
