# SPDX-License-Identifier: Apache-2.0
"""Nodes with labels from NVIDIA's own components, read against a table made from GFD's rules (README.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.doctor.fleet_checks import examine
from app.explain.gpu_inventory import take_inventory
from app.nodes.model import Node
from app.nodes.reading import read_node
from app.values.versions import show_driver, show_version
from tests.builders import knowledge
from tests.doctor.healthy_cluster import examined

HERE = Path(__file__).parent
WORLDS: dict[str, dict[str, Any]] = {world["name"]: world for world in json.loads((HERE / "worlds.json").read_text())}
UNITS = {
    "whole": "a whole GPU",
    "time-slice": "a time-slice",
    "MPS": "an MPS share",
    "slice": "a MIG slice",
    "part": "a part of a GPU",
    "unsure": "a GPU or share",
}


def table() -> list[dict[str, str]]:
    """Read expected.txt, one node a row, with `-` for nothing."""
    head, *rows = (
        [cell.strip() for cell in line.split("|")] for line in (HERE / "expected.txt").read_text().split("\n")
    )
    return [dict(zip(head, row, strict=True)) for row in rows if len(row) > 1]


def node_of(world: dict[str, Any]) -> Node:
    """Make the node that the kubelet and GPU Feature Discovery would write, with a taint on it."""
    resources = {name: str(sum(states.values())) for name, states in world["resources"].items()}
    document = {
        "metadata": {"name": world["name"], "labels": world["labels"]},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources},
    }
    return read_node(document, knowledge())


def listed(pairs: Any) -> str:
    return " ".join(f"{name}:{count}" for name, count in sorted(pairs)) or "-"


def read(node: Node) -> dict[str, str]:
    """Write what the service reads from a node in the table's words."""
    node_class = node.node_class
    kind = take_inventory({node.name: node}, {}, knowledge().products).kinds[0]
    (unit,) = (word for word, text in UNITS.items() if text == kind.unit)
    return {
        "world": node.name,
        "product": node_class.product or "unknown",
        "memory": str(node_class.memory_mib or "unknown"),
        "driver": show_driver(node_class.driver or ()),
        "CUDA": show_version(node_class.cuda or ()),
        "unit": unit,
        "strategy": node_class.mig_strategy or "-",
        "profile": node_class.mig_profile or "-",
        "GPUs": str(kind.gpus),
        "units": str(kind.units),
        "slices": listed((kind_of_slice.profile, kind_of_slice.all) for kind_of_slice in kind.slices),
        "slice memory": listed(node_class.slice_memory),
        "doctor": " ".join(finding.check for finding in examine(examined(node))) or "-",
    }


@pytest.mark.parametrize("expected", table(), ids=lambda row: row["world"])
def test_node_is_read_as_gfd_means_it(expected: dict[str, str]) -> None:
    """F67, F73, F89: product, memory, driver, CUDA, sharing, MIG, counts and the doctor's findings are right."""
    row = read(node_of(WORLDS[expected["world"]]))

    assert expected == row


def test_every_recorded_node_is_in_the_table() -> None:
    assert (44, sorted(WORLDS)) == (len(table()), sorted(row["world"] for row in table()))
