# SPDX-License-Identifier: Apache-2.0
"""An operator's own facts over the shipped tables, row by row (F81), and clouds' labels on nodes without GFD."""

from pathlib import Path

import pytest

from app.cluster.files import read_knowledge
from app.knowledge.dcgm import Severity
from app.nodes.model import Sharing
from app.policy.cuda_needs import minimum_need
from app.values.errors import KnowledgeError
from app.values.versions import parse_version
from tests.builders import knowledge, node


def own(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text, "utf-8")
    return folder


def test_own_product_is_known_beside_the_shipped_ones(tmp_path: Path) -> None:
    """F81."""
    row = "{product: NVIDIA-X1, family: X1, compute_capability: '14.0', memory_mib: 1024, nvlink: true}"

    products = read_knowledge(own(tmp_path, gpu_products=f"products: [{row}]")).products

    assert products.names_any(products.pattern("X1"))
    assert len(products.by_form) == len(knowledge().products.by_form) + 1


def test_own_row_changes_only_what_it_names(tmp_path: Path) -> None:
    """F81."""
    products = read_knowledge(own(tmp_path, gpu_products="products: [{product: Tesla-T4, memory_mib: 15109}]")).products

    row = products.find("Tesla-T4")
    assert row is not None
    assert (row.memory_mib, row.family) == (15109, "T4")


def test_row_can_be_taken_away(tmp_path: Path) -> None:
    """F81."""
    products = read_knowledge(own(tmp_path, gpu_products="products: [{product: Tesla-T4, remove: true}]")).products

    assert products.find("Tesla-T4") is None


def test_own_image_family_is_asked_before_the_shipped_ones(tmp_path: Path) -> None:
    """F11, F81."""
    row = "{images: [registry.example/*], tag_regex: '^(?P<cuda>[0-9.]+)$', cuda: tag}"

    inferred = read_knowledge(own(tmp_path, image_cuda=f"image_families: [{row}]")).images.infer(
        "registry.example/a/b:12.4"
    )

    assert inferred is not None
    assert (inferred.cuda, inferred.required) == ((12, 4), True)


def test_own_image_family_leaves_the_shipped_ones(tmp_path: Path) -> None:
    """F11, F81: several families read CUDA from their tags, and a new row is no synonym of theirs."""
    row = "{images: [registry.example/*], tag_regex: '^(?P<cuda>[0-9.]+)$', cuda: tag}"

    images = read_knowledge(own(tmp_path, image_cuda=f"image_families: [{row}]")).images

    assert len(images.families) == 1 + len(knowledge().images.families)
    assert images.infer("nvidia/cuda:12.4.1-base") == knowledge().images.infer("nvidia/cuda:12.4.1-base")


def test_own_toolkit_row_moves_the_native_driver(tmp_path: Path) -> None:
    """F34, F81; a version above all rows is said to be one."""
    text = "toolkits: [{toolkit: 14.0 GA, cuda: '14.0', min_driver_linux: 700.10.01}]"

    tables = read_knowledge(own(tmp_path, cuda_driver=text))
    known, unknown = (minimum_need(parse_version(cuda), "", tables) for cuda in ("14.0", "14.2"))

    assert known.native == (700, 10, 1)
    assert (known.evidence, unknown.evidence) == ("", "; no known driver has more than CUDA 14.0")


def test_own_resource_family_makes_its_pods_gpu_pods(tmp_path: Path) -> None:
    """S12."""
    row = "{name: acme, resources: [acme.com/npu], prefixes: [], whole: acme.com/npu, taint_keys: [acme.com/npu]}"

    families = read_knowledge(own(tmp_path, families=f"families: [{row}]")).families

    assert families.of("acme.com/npu") is not None
    assert [family.name for family in families.all] == ["acme", "nvidia", "amd", "intel", "habana"]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpus", "a: 1", "gpus.yaml: no such table, wants one of gpu_products.yaml"),
        ("gpu_products", "products: {}", "gpu_products.yaml: products: got dict, wants a list"),
        ("gpu_products", "products: [{product: X}]", "fact tables: KeyError"),
        ("gpu_products", "products: [", "gpu_products.yaml: "),
        (
            "image_cuda",
            "image_families: [{images: ['me/*'], tag_regex: '(.*)', cuda: tag, carries_require: true}]",
            "image_cuda.yaml: image_families: got the field carries_require, wants one of ",
        ),
        ("cuda_driver", "toolkits: [{toolkit: x, cuda: new, min_driver_linux: '1'}]", "fact tables: VersionError"),
    ],
)
def test_table_that_does_not_fit_names_the_file_or_the_fault(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(KnowledgeError) as raised:
        read_knowledge(own(tmp_path, **{name: text}))

    assert str(raised.value).startswith(words)


def test_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(KnowledgeError, match="wants a directory of fact tables"):
        read_knowledge(tmp_path / "none")


@pytest.mark.parametrize(
    ("labels", "product", "sharing"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "l4", Sharing.Exclusive),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-v100"}, None, Sharing.Exclusive),
        ({"karpenter.k8s.aws/instance-gpu-name": "h100"}, "h100-80gb-hbm3", Sharing.Unknown),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
                "cloud.google.com/gke-gpu-sharing-strategy": "time-sharing",
            },
            "t4",
            Sharing.TimeSlicing,
        ),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
                "cloud.google.com/gke-gpu-partition-size": "1g.10gb",
            },
            "h100-80gb-hbm3",
            Sharing.MIG,
        ),
    ],
)
def test_cloud_labels_tell_what_gfd_has_not(labels: dict[str, str], product: str | None, sharing: Sharing) -> None:
    """S3: GPU Feature Discovery's own label counts first, and the cloud's label where that is missing."""
    node_class = node(product=None, labels=labels).node_class

    assert (product, sharing) == (node_class.product, node_class.sharing)
    assert node(product="NVIDIA-A10", labels=labels).node_class.product == "a10"


@pytest.mark.parametrize(
    ("code", "severity"), [(13, Severity.Application), (48, Severity.DrainNow), (94, Severity.ResetWhenIdle)]
)
def test_xids_have_a_class(code: int, severity: Severity) -> None:
    assert severity is knowledge().xids[code].severity
