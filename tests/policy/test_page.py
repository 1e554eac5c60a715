# SPDX-License-Identifier: Apache-2.0
"""The generated page about policies: its examples load, and fields merge as it says."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.explain.policy_cases import run_case
from app.policy.annotations import ANNOTATIONS, read_annotations
from app.policy.case_document import read_case
from app.policy.compiled import PolicySet
from app.policy.fields import Merge, merge_rules
from app.policy.match import Ruling
from app.policy.schema import Spec, json_schema
from tests.builders import gpus, knowledge, pod, ruling
from tests.finished import load_policies
from tests.policy.page import MODELS, page_text

POLICIES = Path(__file__).parents[2] / "policies"
FIELDS = list(merge_rules(Spec))
HEAD = {"apiVersion": "gpu-usher.io/v1alpha1", "kind": "GPUPolicy"}
GUARDED = {"image": "nvcr.io/nvidia/pytorch:24.05-py3"}, {"image": "registry.example/ml/train:7"}


def document(name: str, priority: int, path: str, value: Any) -> str:
    """Write a policy that sets one field. The caller must avoid values that contradict one another."""
    spec: dict[str, Any] = {"priority": priority}
    inner = spec
    *parents, last = path.split(".")
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return yaml.safe_dump({**HEAD, "metadata": {"name": name}, "spec": spec})


def loaded(*documents: str) -> PolicySet:
    return load_policies({f"{number}.yaml": text for number, text in enumerate(documents)}, knowledge())


def merged(*documents: str) -> Any:
    """Return what policies require of a pod of two containers, without their names and their order."""
    containers = [gpus(1, **more) | {"name": f"c{number}"} for number, more in enumerate(GUARDED)]
    merged_ruling: Ruling = ruling(pod(*containers), loaded(*documents))
    demand = replace(merged_ruling.demand, cuda=(), preferred_cuda=(), products=(), warned=None)
    needs = (
        *merged_ruling.demand.cuda,
        *merged_ruling.demand.preferred_cuda,
    )  # every minimum is kept, so that each can be named
    highest = max((need.cuda for need in needs if need.minimum), default=None)
    cuda = highest, {need for need in needs if not need.minimum}
    enforced = replace(merged_ruling.enforced, set_by={})
    return _unordered(demand), _unordered(merged_ruling.demand.products), cuda, _unordered(enforced)


def _unordered(value: Any) -> Any:
    """Sort what is a set, such as denied products and selectors, but not scores and preferences, whose order counts."""
    if isinstance(value, (tuple, frozenset)):
        return sorted((_unordered(member) for member in value), key=repr)
    slots = getattr(type(value), "__slots__", None)
    if slots and not isinstance(value, str):
        ordered = ("preferred_products", "scores")
        return {name: getattr(value, name) if name in ordered else _unordered(getattr(value, name)) for name in slots}
    return value


def test_page_is_what_the_command_prints() -> None:
    """F74, F75: after a change, run `make generated`."""
    assert (POLICIES / "README.md").read_text("utf-8") == page_text()


@pytest.mark.parametrize(
    ("path", "examples"), [(path, shown) for path, _, shown in FIELDS], ids=[field[0] for field in FIELDS]
)
def test_field_has_examples_and_each_is_a_policy_that_loads(path: str, examples: list[Any]) -> None:
    """F75."""
    assert examples
    for example in examples:
        assert len(loaded(document("one", 5, path, example)).policies) == 1


def properties() -> Iterator[tuple[str, dict[str, Any]]]:
    for title, part in {"GPUPolicy": json_schema(), **json_schema()["$defs"]}.items():
        for name, field in part.get("properties", {}).items():
            yield f"{title}.{name}", field


def test_every_field_says_what_it_is() -> None:
    """F75: the text is in the schema for editors, in the definition and on the page."""
    plain = {"GPUPolicy.apiVersion", "GPUPolicy.kind", "GPUPolicy.metadata", "GPUPolicy.spec", "PolicyMetadata.name"}
    plain |= {"LabelExpression.operator"}

    assert {name for name, field in properties() if not field.get("description")} == plain


MERGED = [(path, how, examples) for path, how, examples in FIELDS if how is not Merge.Own and len(examples) > 1]


@pytest.mark.parametrize(("path", "how", "examples"), MERGED, ids=[field[0] for field in MERGED])
def test_two_policies_merge_a_field_as_its_page_says(path: str, how: Merge, examples: list[Any]) -> None:
    """F74: either policy may come first, and each is also tried alone (docs/reference/policy.md#merge)."""
    one, other = examples[:2]
    alone = [merged(document("a", 5, path, example)) for example in (one, other)]

    first, second = (
        merged(document("a", high, path, one), document("b", low, path, other)) for high, low in ((5, 3), (3, 5))
    )

    assert alone[0] != alone[1]
    if how is Merge.Single:
        assert [first, second] == alone
    elif how is Merge.InOrder:
        assert first != second
    elif how in (Merge.Union, Merge.Intersection):
        assert first == second
        assert first not in alone
    else:
        assert first == second
        assert first in alone


def test_every_field_of_two_values_is_in_the_test_above() -> None:
    """F74."""
    assert {path for path, how, _ in FIELDS if how is not Merge.Own} - {field[0] for field in MERGED} == {
        "placement.confidentialComputing",
        "placement.interconnect",
    }


def test_examples_of_the_page_load_as_policies() -> None:
    """F75: each example loads by itself, and all of them together as one policy."""
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page_text(), re.S)]
    fragments = [block["spec"] for block in blocks if "spec" in block]
    whole = {key: value for spec in fragments for key, value in spec.items()}

    texts = [yaml.safe_dump({**HEAD, "metadata": {"name": "one"}, "spec": spec}) for spec in (*fragments, whole)]

    assert len(fragments) >= 5
    assert [len(loaded(text).policies) for text in texts] == [1] * len(texts)
    assert {"match", "admission", "placement", "exceptions", "actions"} <= whole.keys()


def test_grammar_names_every_annotation_and_its_examples_parse() -> None:
    """F74."""
    products = knowledge().products
    readings = {
        f"{name}: {example}": read_annotations({f"gpu-usher.io/{name}": example}, products)
        for name, annotation in ANNOTATIONS.items()
        for example in annotation.examples
    }

    assert {name for name, read in readings.items() if read.invalid or read.warnings} == set()


def test_links_of_the_page_lead_somewhere() -> None:
    """F75."""
    text = page_text()
    titles = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.M)
    }

    links = re.findall(r"\]\(([^)]+)\)", text)
    lost = [link for link in links if not link.startswith("#") and not (POLICIES / link.partition("#")[0]).exists()]

    assert lost == []
    assert {link[1:] for link in links if link.startswith("#")} - titles == set()


@pytest.mark.parametrize("model", MODELS)
def test_every_model_of_the_page_says_what_it_is(model: str) -> None:
    """F75."""
    assert MODELS[model].__doc__


RECIPES = re.findall(r"^\| (.+?) \| `(.+?)`", page_text().partition("## Recipes")[2].partition("\n## ")[0], re.M)[1:]
H100, A100 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"
EXPECTED_OF_RECIPES = {
    "driver 550": "{fits: [h100], refused: {a100: DriverTooOld}}",
    "one team's products": "{fits: [a100], refused: {h100: ProductNotAllowed}}",
    "a namespace holds": "{fits: [h100, a100]}",
    "slices": "{fits: [a100], patched: {'spec.containers[0].resources.limits[nvidia.com/mig-1g.10gb]': '1'}}",
    "a pool": "{fits: [h100], refused: {a100: NodeExcluded}}",
}
"""What each recipe does with a pod of namespace team-a on two nodes: an H100 with driver 550, an A100 with 535."""


@pytest.mark.parametrize(("wanted", "spec"), RECIPES, ids=[wanted for wanted, _ in RECIPES])
def test_recipe_does_what_it_says(wanted: str, spec: str) -> None:
    """F75: each recipe is a policy without doubts, and its case holds."""
    (expected,) = [text for words, text in EXPECTED_OF_RECIPES.items() if wanted.startswith(words)]
    document = {**HEAD, "metadata": {"name": "one"}, "spec": yaml.safe_load(spec)}
    policy_set = loaded(yaml.safe_dump(document))
    case = read_case("case.yaml", case_of_recipe(expected, "rightSizing" in spec))

    assert [(policy.doubts, policy.unknown_products) for policy in policy_set.policies] == [((), ())]
    assert list(run_case(case, policy_set, knowledge())) == []


def case_of_recipe(expected: str, slices: bool) -> str:
    annotations = "{gpu-usher.io/gpu-memory: 9Gi, gpu-usher.io/workload-class: inference}" if slices else "{}"
    offered = "nvidia.com/gpu: 0, nvidia.com/mig-1g.10gb: 7" if slices else "nvidia.com/gpu: 8"
    return f"""
pod:
  metadata: {{name: p, namespace: team-a, annotations: {annotations}}}
  spec: {{containers: [{{name: main, image: 'train:1', resources: {{limits: {{nvidia.com/gpu: '1'}}}}}}]}}
nodes:
  h100:
    labels: {{nvidia.com/gpu.product: {H100}, nvidia.com/cuda.driver-version.full: 550.54.15, pool: main}}
    allocatable: {{nvidia.com/gpu: {0 if slices else 8}}}
  a100:
    labels: {{nvidia.com/gpu.product: {A100}, nvidia.com/cuda.driver-version.full: 535.104.05, pool: spot}}
    allocatable: {{{offered}}}
expect: {expected}
"""


def test_every_recipe_has_its_case() -> None:
    """F75."""
    assert len(RECIPES) == len(EXPECTED_OF_RECIPES)
