# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaimTemplate for a device-plugin pod: its DeviceClass, its CEL, and what it cannot express (S13).

e2e/test_dra.py shows on a real scheduler that the CEL means what filter means.
"""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.admission.claim_template import MOST_SELECTORS
from app.explain.explanation import dra_equivalent
from app.knowledge.cuda_compatibility import AcceptedCompatibility
from app.policy.demand import Demand
from app.policy.schema_placement import SharingWish
from tests.builders import demand, gpus, knowledge, pod

ATTRIBUTES = "device.attributes['gpu.nvidia.com']"
PRODUCT = f"{ATTRIBUTES}.productName.lowerAscii().replace(' ', '-')"
BARE = "p.matches('^(nvidia|tesla)-') ? p.substring(p.indexOf('-') + 1) : p"
REQUIRE = [{"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.4"}]


def grammar_of(family: str) -> str:
    """Return the pattern of the products of a family that the table has no row of, as RE2 reads it."""
    expression = knowledge().products.pattern(family).expression
    assert expression is not None
    return expression.pattern.replace("\\-", "-").replace("\\.", "[.]")


def requests(pod_demand: Demand) -> list[Any]:
    """Return the requests of the template."""
    template = dra_equivalent(pod_demand, knowledge())["template"]
    claim_requests: list[Any] = template["spec"]["spec"]["devices"]["requests"] if template else []
    return claim_requests


def cel(pod_demand: Demand) -> list[str]:
    """Return the CEL expressions of the only request."""
    (request,) = requests(pod_demand)
    return [selector["cel"]["expression"] for selector in request["exactly"].get("selectors", [])]


def unsaid(pod_demand: Demand) -> list[str]:
    sentences: list[str] = dra_equivalent(pod_demand, knowledge())["not_expressible"]
    return sentences


def annotated(**annotations: str) -> Demand:
    return demand(pod(annotations={key.replace("_", "-"): value for key, value in annotations.items()}))


@pytest.mark.parametrize(
    ("resource", "name", "device_class"),
    [
        ("nvidia.com/gpu", "gpu", "gpu.nvidia.com"),
        ("nvidia.com/gpu.shared", "gpu-shared", "gpu.nvidia.com"),
        ("nvidia.com/mig-1g.10gb.me", "mig-1g-10gb-me", "mig.nvidia.com"),
        ("amd.com/gpu", "gpu", "gpu.amd.com"),
        ("gpu.intel.com/i915", "i915", "gpu.intel.com"),
    ],
)
def test_resource_is_a_request_of_its_class(resource: str, name: str, device_class: str) -> None:
    """S13, S12."""
    (request,) = requests(demand(pod(gpus(2, resource))))

    exact = request["exactly"]
    assert (request["name"], exact["deviceClassName"], exact["allocationMode"]) == (name, device_class, "ExactCount")
    assert exact["count"] == 2


def test_first_beta_version_has_the_fields_of_a_request_beside_its_name() -> None:
    """S13: Kubernetes 1.32 serves resource.k8s.io/v1beta1 alone."""
    pod_demand = annotated(products="H100")
    templates = {
        version: dra_equivalent(pod_demand, knowledge(), version=version)["template"]
        for version in ("v1", "v1beta2", "v1beta1")
    }

    (v1,), (v1beta2,), (v1beta1,) = (made["spec"]["spec"]["devices"]["requests"] for made in templates.values())
    assert v1 == v1beta2
    assert v1beta1 == {"name": v1["name"], **v1["exactly"]}
    assert [made["apiVersion"] for made in templates.values()] == [f"resource.k8s.io/{name}" for name in templates]


def test_two_resources_are_two_requests_with_names_of_their_own() -> None:
    claim_requests = requests(demand(pod(gpus(1, "amd.com/gpu"), gpus(2))))

    assert [(request["name"], request["exactly"]["count"]) for request in claim_requests] == [
        ("amd-com-gpu", 1),
        ("nvidia-com-gpu", 2),
    ]


@pytest.mark.parametrize(
    ("pod_demand", "expected"),
    [
        (demand(pod()), []),
        (
            annotated(products="H200"),
            [
                f"{PRODUCT}.matches('^(nvidia-|tesla-)?(h200|h200-nvl)$') || "
                f"cel.bind(p, {PRODUCT}, cel.bind(n, {BARE}, n.matches('{grammar_of('H200')}')))"
            ],
        ),
        (annotated(products="!H200-NVL"), [f"!({PRODUCT}.matches('^(nvidia-|tesla-)?(h200-nvl)$'))"]),
        (
            annotated(products="NVIDIA-A100-SXM4-*"),
            [f"cel.bind(p, {PRODUCT}, cel.bind(n, {BARE}, n.matches('^a100-sxm4-[^-]+(?:-[^-]+)*$')))"],
        ),
        (
            annotated(gpu_memory="80Gi"),
            [
                "!has(device.capacity['gpu.nvidia.com'].memory) || "
                "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('76186Mi')) >= 0"
            ],
        ),
        (
            replace(annotated(gpu_memory="1Mi"), refuse_unknown=True),
            [
                "has(device.capacity['gpu.nvidia.com'].memory) && "
                "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('1Mi')) >= 0"
            ],
        ),
        (annotated(compute_capability="9"), [f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('9.0.0')) >= 0"]),
        (annotated(mig_profile="1g.10gb"), [f"{ATTRIBUTES}.profile.replace('+', '.') in ['1g.10gb']"]),
        (
            demand(pod(gpus(1, "nvidia.com/mig-1g.10gb.shared"))),
            [f"{ATTRIBUTES}.profile.replace('+', '.') in ['1g.10gb']"],
        ),
    ],
    ids=["nothing", "family", "not", "glob", "memory", "memory known", "capability", "profile", "shared slice"],
)
def test_need_is_a_selector(pod_demand: Demand, expected: list[str]) -> None:
    """S13: memory has the tolerance of filter (docs/reference/sharing-and-memory.md#memory)."""
    assert cel(pod_demand) == expected


def test_driver_is_written_as_the_dra_driver_publishes_it() -> None:
    """The DRA driver publishes 570.124.06 as 570.124.6, since semantic versions have no leading zeros."""
    expressions = cel(demand(pod(gpus(1, image="nvidia/cuda:13.0.0-base-ubuntu24.04"))))

    assert expressions[0].startswith(f"{ATTRIBUTES}.driverVersion.compareTo(semver('580.0.0')) >= 0")
    assert not re.search(r"semver\('[^']*\.0\d", " ".join(expressions))


def test_capabilities_that_the_toolkit_serves_no_longer_are_ranges() -> None:
    """CUDA 12.4 no longer serves Kepler; a GPU newer than the toolkit may run PTX, and is not refused."""
    expressions = cel(demand(pod(gpus(1, image="nvcr.io/nvidia/pytorch:24.05-py3"))))

    capability = f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver"
    assert expressions[-1] == f"{capability}('3.7.0')) > 0"


def test_needs_of_two_containers_that_are_one_need_are_said_once() -> None:
    image = "nvcr.io/nvidia/pytorch:24.05-py3"

    expressions = cel(demand(pod(gpus(1, image=image), gpus(1, image=image))))

    assert len(expressions) == len(set(expressions))


@pytest.mark.parametrize(
    ("accept", "drivers"),
    [
        (AcceptedCompatibility.Native, 1),
        (AcceptedCompatibility.MinorVersion, 1),
        (AcceptedCompatibility.ForwardCompatible, 0),
    ],
)
def test_own_requirement_vouches_for_the_driver_where_forward_compatibility_will_do(
    accept: AcceptedCompatibility, drivers: int
) -> None:
    """A fulfilled requirement is at least forward compatible (judge_driver in knowledge/cuda.py)."""
    pod_demand = replace(demand(pod(gpus(1, env=REQUIRE))), accept=accept)

    expressions = [expression for expression in cel(pod_demand) if "driverVersion" in expression]

    assert len(expressions) == drivers


def test_more_needs_than_a_request_may_have_selectors_are_joined() -> None:
    patterns = [(knowledge().products.pattern(f"NVIDIA-*-{number}"),) for number in range(40)]

    expressions = cel(replace(demand(pod()), products=tuple(patterns)))

    assert len(expressions) == MOST_SELECTORS
    assert expressions[-1].count(" && (cel.bind") == 40 - MOST_SELECTORS


def test_larger_slices_will_do_where_that_is_asked() -> None:
    (expression,) = cel(annotated(mig_profile=">=3g.40gb"))

    profiles = set(re.findall(r"\dg\.\d+gb", expression))
    assert {"3g.40gb", "4g.40gb", "7g.80gb"} <= profiles
    assert not {"1g.10gb", "2g.20gb", "3g.20gb"} & profiles


def test_profile_wish_beside_a_named_slice_is_ignored_as_by_filter() -> None:
    """See docs/reference/sharing-and-memory.md#mig-at-least."""
    pod_demand = replace(demand(pod(gpus(1, "nvidia.com/mig-1g.10gb"), gpus(1))), mig_profile=("7g.80gb", False))

    assert [request["exactly"]["deviceClassName"] for request in requests(pod_demand)] == [
        "gpu.nvidia.com",
        "mig.nvidia.com",
    ]


@pytest.mark.parametrize(
    ("pod_demand", "words"),
    [
        (demand(pod(gpus(20), gpus(20, "amd.com/gpu"))), "40 devices: "),
        (annotated(interconnect="NVLink"), "NVLink: "),
        (annotated(sharing="Shared"), "a share of a GPU: "),
        (demand(pod(gpus(1, "nvidia.com/gpu.shared"))), "a share of a GPU: "),
        (annotated(mig_profile=">=1g.10gb"), "a whole GPU in place of a larger slice: "),
        (demand(pod(gpus(1, env=REQUIRE))), "NVIDIA_REQUIRE_*: "),
        (demand(pod(gpus(1, "amd.com/gpu"), annotations={"gpu-memory": "40Gi"})), "needs of amd.com/gpu: "),
        (Demand(resources=(("x.io/gpu", 2),)), "2 x x.io/gpu: "),
        (replace(demand(pod()), preferred_products=(knowledge().products.pattern("H100"),)), "preferences: "),
    ],
    ids=["too many", "NVLink", "share", "shared resource", "larger", "requirement", "AMD", "no class", "preference"],
)
def test_what_a_claim_cannot_say_is_listed(pod_demand: Demand, words: str) -> None:
    """S13."""
    assert [sentence for sentence in unsaid(pod_demand) if sentence.startswith(words)]


@pytest.mark.parametrize(
    "pod_demand", [annotated(products="H100", gpu_memory="40Gi"), demand(pod())], ids=["needs", "plain"]
)
def test_what_a_claim_says_whole_leaves_nothing_unsaid(pod_demand: Demand) -> None:
    assert unsaid(pod_demand) == []


@pytest.mark.parametrize("pod_demand", [Demand(), Demand(resources=(("x.io/gpu", 1),))], ids=["nothing", "no class"])
def test_without_a_class_there_is_no_claim(pod_demand: Demand) -> None:
    answer = dra_equivalent(pod_demand, knowledge())

    assert (answer["template"], answer["pod"], answer["yaml"]) == (None, None, [])


def test_pod_refers_to_the_template_by_its_name() -> None:
    answer = dra_equivalent(demand(pod()), knowledge(), "training")

    (claim,) = answer["pod"]["resourceClaims"]
    (container,) = answer["pod"]["containers"]
    assert claim["resourceClaimTemplateName"] == answer["template"]["metadata"]["name"] == "training"
    assert container["resources"]["claims"] == [{"name": claim["name"]}]


RESOURCES = st.one_of(
    st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"]),
    st.text(max_size=30).map("nvidia.com/mig-".__add__),
)
DEMANDS = st.builds(
    Demand,
    resources=st.lists(st.tuples(RESOURCES, st.integers(1, 16)), max_size=3, unique_by=lambda pair: pair[0]).map(tuple),
    others=st.tuples(
        st.tuples(st.just("memory_mib"), st.integers(0, 200_000)),
        st.tuples(st.just("compute_capability"), st.none() | st.tuples(st.integers(5, 12), st.integers(0, 9))),
    ),
    mig_profile=st.none() | st.tuples(st.sampled_from(["1g.5gb", "3g.40gb"]), st.booleans()),
    sharing=st.sampled_from(SharingWish),
)


@given(DEMANDS)
@settings(max_examples=200, deadline=None)
def test_text_for_people_is_the_template_and_no_string_gets_out_of_its_quotes(pod_demand: Demand) -> None:
    """Anybody can choose a resource's name, which must not end the quoted string."""
    answer = dra_equivalent(pod_demand, knowledge())

    assert (yaml.safe_load("\n".join(answer["yaml"])) if answer["yaml"] else None) == answer["template"]
    for request in requests(pod_demand):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", request["name"])
        for selector in request["exactly"].get("selectors", []):
            bare = re.sub(r"'(?:[^'\\]|\\['\\])*'", "", selector["cel"]["expression"])
            assert re.fullmatch(r"[A-Za-z.\[\](),!|&<>=:?+ 0-9]*", bare), selector
