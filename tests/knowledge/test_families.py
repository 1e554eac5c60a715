# SPDX-License-Identifier: Apache-2.0
"""Resource families: which resource names ask for a GPU, and which namespaces run the vendors' own pods."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.knowledge.gpu_resources import load_families
from tests.builders import knowledge
from tests.docstrings import ROOT

FAMILIES = knowledge().families
NAMES_RESOURCES = ("app/cli/serve.py", "app/demo/", "app/nodes/conditions.py", "tests/bench/simulate/")
"""Modules and rooms that may name a vendor's resource: an example pod of --help, fleets of NVIDIA GPUs, and the keys of
node labels, which GPU Feature Discovery makes of resource names."""


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("nvidia.com/gpu", "nvidia"),
        ("nvidia.com/gpu.shared", "nvidia"),
        ("nvidia.com/mig-1g.5gb", "nvidia"),
        ("nvidia.com/mig-1g.10gb.me", "nvidia"),
        ("nvidia.com/mig-1g.10gb.shared", "nvidia"),
        ("nvidia.com/mig-9g.999gb", "nvidia"),
        ("amd.com/gpu", "amd"),
        ("amd.com/cpx_nps4", "amd"),
        ("amd.com/dpx_nps2", "amd"),
        ("amd.com/gpu_vf", None),
        ("habana.ai/gaudi", "habana"),
        ("gpu.intel.com/i915", "intel"),
        ("gpu.intel.com/xe", "intel"),
        ("cpu", None),
        ("memory", None),
        ("gpu", None),
        ("nvidia.com/gpumem", None),
        ("nvidia.com/gpucores", None),
        ("nvidia.com/mig", None),
        ("nvidia.com/GPU", None),
        ("requests.nvidia.com/gpu", None),
        ("example.com/nvidia.com/gpu", None),
        ("amd.com/gpu.shared", None),
        ("gpu.intel.com/i915_monitoring", None),
        ("", None),
        ("/", None),
    ],
)
def test_resource_is_of_its_family_or_of_none(resource: str, expected: str | None) -> None:
    """S1, S12."""
    family = FAMILIES.of(resource)

    assert expected == (family.name if family else None)


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("nvidia.com/mig-1g.5gb", ("nvidia.com/gpu", "nvidia.com/gpu")),
        ("nvidia.com/gpu.shared", ("nvidia.com/gpu", "nvidia.com/gpu")),
        ("amd.com/gpu", ("amd.com/gpu", "amd.com/gpu")),
    ],
)
def test_slices_and_shares_stand_behind_the_taint_of_the_whole_gpu(resource: str, expected: tuple[str, str]) -> None:
    """F4."""
    family = FAMILIES.of(resource)

    assert family is not None
    assert expected == (family.whole, family.taint_keys[0])


@pytest.mark.parametrize("family", FAMILIES.all, ids=[family.name for family in FAMILIES.all])
def test_whole_gpu_is_a_resource_of_its_own_family(family: object) -> None:
    own_families = [
        candidate
        for candidate in FAMILIES.all
        if candidate.has(candidate.whole) and FAMILIES.of(candidate.whole) is candidate
    ]

    assert family in own_families


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ("gpu-operator", True),
        ("nvidia-gpu-operator", True),
        ("nvidia-device-plugin", True),
        ("nvidia-dra-driver-gpu", True),
        ("gpu-usher", True),
        ("kube-system", True),
        ("kube-public", True),
        ("kube-node-lease", True),
        ("kube-", False),
        ("kube-evil", False),
        ("kube-system-2", False),
        ("kube", False),
        ("kubeflow", False),
        ("gpu-operator-2", False),
        ("my-gpu-operator", False),
        ("default", False),
        ("", False),
    ],
)
def test_infrastructure_is_exempt_by_its_exact_namespace(namespace: str, expected: bool) -> None:
    """F21: Infrastructure is exempt (docs/reference/admission.md#exemptions)."""
    assert expected is FAMILIES.is_infrastructure(namespace)


@pytest.mark.parametrize("name", ["kube-*", "*", "", "Gpu", "a b"])
def test_exempt_namespace_is_an_exact_name(name: str) -> None:
    """F21: whoever may create namespaces could use a prefix."""
    with pytest.raises(ValueError, match="wants the exact name"):
        load_families([], [name])


def own_row(**more: Any) -> dict[str, Any]:
    """Write a family's row as an operator may."""
    row = {"name": "x", "resources": ["x.io/gpu"], "prefixes": [], "whole": "x.io/gpu", "taint_keys": []}
    return {**row, **more}


def test_family_of_an_operator_is_data() -> None:
    """S12: nothing in the code names a vendor's resource."""
    row = {"name": "x", "resources": ["x.io/gpu"], "prefixes": ["x.io/part-"], "whole": "x.io/gpu", "taint_keys": []}

    families = load_families([row], [])

    assert [
        family.name if (family := families.of(name)) else None for name in ("x.io/gpu", "x.io/part-3", "nvidia.com/gpu")
    ] == ["x", "x", None]


@pytest.mark.parametrize(
    ("device_class", "expected"),
    [
        ("gpu.nvidia.com", "nvidia"),
        ("mig.nvidia.com", "nvidia"),
        ("gpu.amd.com", "amd"),
        ("gpu.intel.com", "intel"),
        ("vfio.gpu.nvidia.com", None),
        ("compute-domain-default-channel.nvidia.com", None),
        ("nvidia.com/gpu", None),
        ("gpu.example.com", None),
        ("", None),
    ],
)
def test_device_class_is_of_its_family_or_of_none(device_class: str, expected: str | None) -> None:
    """S13: a channel of a ComputeDomain is no GPU, and no container uses a device that is passed through to a VM."""
    family = FAMILIES.of_device_class(device_class)

    assert expected == (family.name if family else None)


def test_family_without_prefixes_and_device_classes_has_its_resources_alone() -> None:
    families = load_families([own_row()], [])

    assert families.of("x.io/gpu2") is None
    assert families.all[0].device_classes == ()
    assert families.of_device_class("") is None


def code_strings(path: Path) -> Iterator[tuple[int, str]]:
    """List the line and the text of each string in a module, without docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_no_code_names_a_resource_of_a_vendor() -> None:
    """S12: a decision reads the row of `families.yaml`, so that an operator's own row counts as a shipped one does."""
    named = [
        f"{name}:{line}: {text!r} is of a row of families.yaml: read it by knowledge.families"
        for path in sorted((ROOT / "app").rglob("*.py"))
        if not (name := str(path.relative_to(ROOT))).startswith(NAMES_RESOURCES)
        for line, text in code_strings(path)
        if FAMILIES.of(text)
    ]

    assert named == []


def test_family_with_mig_is_the_one_whose_row_has_a_prefix_of_slices() -> None:
    row = {"name": "x", "resources": ["x.io/gpu"], "prefixes": ["x.io/mig-"], "whole": "x.io/gpu", "taint_keys": []}

    families = load_families([{**row, "mig_prefix": "x.io/mig-"}], [])

    assert (families.mig_gpu, families.mig_prefix) == ("x.io/gpu", "x.io/mig-")
    assert (FAMILIES.mig_gpu, FAMILIES.mig_prefix) == ("nvidia.com/gpu", "nvidia.com/mig-")


@pytest.mark.parametrize(
    ("prefixes", "mig_prefix"),
    [
        pytest.param(["x.io/mig-"], "", id="MIG resources without mig_prefix"),
        pytest.param(["x.io/mig-"], "y.io/mig-", id="MIG resources of another domain"),
        pytest.param(["x.io/slice-"], "x.io/slice-", id="another form"),
    ],
)
def test_prefix_of_slices_is_a_domain_and_mig(prefixes: list[str], mig_prefix: str) -> None:
    """`profile_of` reads the profile from the form of the name."""
    row = {"name": "x", "resources": ["x.io/gpu"], "prefixes": prefixes, "whole": "x.io/gpu", "taint_keys": []}

    with pytest.raises(ValueError, match="family x: "):
        load_families([{**row, "mig_prefix": mig_prefix}], [])


def test_one_family_alone_has_mig() -> None:
    """The tables of MIG profiles name no vendor."""
    rows = [own_row(name=name, resources=[], whole="", mig_prefix=f"{name}.io/mig-") for name in ("x", "y")]

    with pytest.raises(ValueError, match="family y: "):
        load_families(rows, [])


def test_resources_out_of_scope_are_of_no_family() -> None:
    """S12: a row says why nothing counts them, so that none may be counted all the same."""
    rows = yaml.safe_load((ROOT / "app" / "knowledge" / "families.yaml").read_text("utf-8"))["out_of_scope"]
    names = [name for row in rows for name in row["names"]]

    assert names
    assert [name for name in names if FAMILIES.of(name) or FAMILIES.elsewhere(name)] == []
    assert all(row["why"] and row["source"] for row in rows)
