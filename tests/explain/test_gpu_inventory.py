# SPDX-License-Identifier: Apache-2.0
"""The inventory against a slow twin that counts the objects themselves, as a table for people and as data."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from app.cli.inventory import follow
from app.cli.verbs import app
from app.demo.notation import fleet_names
from app.demo.sample_fleets import demo_fleet
from app.explain.gpu_inventory import Inventory, take_inventory
from app.values.errors import BadInput
from tests.builders import gpus, knowledge, node_document, pod, state_of
from tests.cluster.fake_apiserver import FakeApi, served, until

RUN = CliRunner()
GPU = "nvidia.com/gpu"
PATHS = (
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/namespaces",
    "/apis/node.k8s.io/v1/runtimeclasses",
    "/api/v1/namespaces/gpu-usher/configmaps",
)


def taken(objects: list[dict[str, Any]]) -> Inventory:
    """Return the inventory of objects."""
    state = state_of(objects)
    usages = {name: state.allocations.bound(name) for name in state.nodes}
    return take_inventory(state.nodes, usages, knowledge().products, state.devices.dra.current)


def bound(name: str, namespace: str, node: str, amount: int, resource: str = GPU, phase: str = "Running") -> Any:
    made = pod(gpus(amount, resource), nodeName=node)
    made["metadata"] |= {"name": name, "uid": name, "namespace": namespace}
    return {**made, "status": {"phase": phase}}


def test_kinds_are_summed_with_what_is_free_and_who_holds_it() -> None:
    """F89."""
    objects = [
        node_document("h-0"),
        node_document("h-1", offers={GPU: 6}, capacity={GPU: 8}),
        node_document("t-0", "Tesla-T4", "470.57.02", {GPU: 4}),
        node_document("cpu", None, None, {}),
        bound("a", "red", "h-0", 3),
        bound("b", "blue", "h-1", 2),
        bound("c", "red", "t-0", 1),
        bound("done", "red", "h-0", 4, phase="Succeeded"),
    ]

    inventory = taken(objects)

    h100, t4 = inventory.kinds
    assert (h100.product, h100.driver, h100.nodes, h100.units, h100.free) == ("H100-80GB-HBM3", "570.124.06", 2, 14, 9)
    assert (h100.unhealthy, [(usage.namespace, usage.units) for usage in h100.held]) == (2, [("red", 3), ("blue", 2)])
    assert (t4.driver, t4.units, t4.free) == ("470.57.02", 4, 3)
    assert (inventory.total.nodes, inventory.total.gpu_nodes, inventory.total.units, inventory.total.free) == (
        4,
        3,
        18,
        12,
    )


def test_slices_are_counted_by_profile() -> None:
    """F89, F39."""
    slice_ = "nvidia.com/mig-1g.10gb"

    inventory = taken([node_document("m", offers={GPU: 2, slice_: 14}), bound("a", "red", "m", 3, slice_)])

    assert [(slices.profile, slices.all, slices.free) for slices in inventory.kinds[0].slices] == [("1g.10gb", 14, 11)]
    assert (inventory.total.units, inventory.total.held[0].units) == (2, 3)


@pytest.mark.parametrize("name", fleet_names())
def test_every_sample_fleet_adds_up(name: str) -> None:
    """F89: the numbers equal a sum over the objects, node by node and pod by pod."""
    objects = demo_fleet(name)
    offered = [
        int(amount)
        for document in objects
        if document["kind"] == "Node"
        for key, amount in document["status"]["allocatable"].items()
        if knowledge().families.of(key) and "/mig-" not in key
    ]
    requested = [
        int(amount)
        for document in objects
        if document["kind"] == "Pod" and "nodeName" in document["spec"]
        for key, amount in document["spec"]["containers"][0]["resources"].get("limits", {}).items()
        if knowledge().families.of(key)
    ]

    inventory = taken(objects)

    assert name in ("dra", "gpucluster") or inventory.total.units == sum(offered)
    assert inventory.total.gpus <= inventory.total.units
    held = sum(usage.units for usage in inventory.total.held)
    assert held == sum(requested) or (name in ("dra", "gpucluster") and held > sum(requested))
    assert inventory.total.free == sum(kind.free for kind in inventory.kinds) <= inventory.total.units


def test_output_is_a_table_or_data() -> None:
    """F89."""
    text, plain, yamled = (
        RUN.invoke(app, ["inventory", "--demo-fleet", "mixed", "-o", kind]) for kind in ("text", "json", "yaml")
    )

    assert (text.exit_code, plain.exit_code) == (0, 0), text.output
    assert "H100-80GB-HBM3" in text.output
    assert json.loads(plain.output) == yaml.safe_load(yamled.output)
    assert json.loads(plain.output)["total"]["gpu_nodes"] == 21


def test_files_are_read_together(tmp_path: Path) -> None:
    """F86: one file has the nodes, and another the pods."""
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": [node_document("h-0")]}))
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump(bound("a", "red", "h-0", 3)))
    files = [word for name in ("nodes.json", "pods.yaml") for word in ("--snapshot", str(tmp_path / name))]

    assert json.loads(RUN.invoke(app, ["inventory", *files, "-o", "json"]).output)["kinds"][0]["free"] == 5


@pytest.mark.parametrize("arguments", [[], ["--watch", "--demo-fleet", "mixed"]], ids=["no fleet", "watch without one"])
def test_what_cannot_be_done_is_bad_input(arguments: list[str]) -> None:
    result = RUN.invoke(app, ["inventory", *arguments], env={"KUBECONFIG": "/no/such"})

    assert isinstance(result.exception, BadInput)
    assert "cluster" in str(result.exception)


def test_live_table_follows_what_pods_hold() -> None:
    """F89: with --watch the table is drawn again when a pod is bound."""
    api = {path: FakeApi() for path in PATHS}
    api["/api/v1/nodes"].put(node_document("h-0"))
    seen = io.StringIO()

    async def watch() -> None:
        async with served(api) as server:
            watching = asyncio.create_task(follow(server, Console(file=seen, width=120, force_terminal=True), 0.01))
            await until("first table", lambda: "8 " in seen.getvalue())
            api["/api/v1/pods"].put(bound("a", "red", "h-0", 3))
            await until("second table", lambda: "red 3" in seen.getvalue())
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(watch())

    assert "red 3" in seen.getvalue()


def test_product_that_is_in_no_table_is_named_as_its_label_names_it() -> None:
    """F92: without vendor and suffix, as others are."""
    rows = taken([node_document(product="NVIDIA-Quux-X9000-SHARED")]).kinds

    assert [row.product for row in rows] == ["Quux-X9000"]
