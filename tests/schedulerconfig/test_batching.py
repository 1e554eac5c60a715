# SPDX-License-Identifier: Apache-2.0
"""What a configuration means for opportunistic batching, as computeBatchablePlugins and SignPod of 1.36 and 1.37."""

import json
from typing import Any

import pytest
import yaml

from app.schedulerconfig.verify import batchable_profiles, batching_line, describe_batching
from app.schedulerconfig.write import OWN_NAME, Target, write
from tests.schedulerconfig.checked import verify
from tests.schedulerconfig.test_write import plan

SPREADING = "PodTopologySpread"
LIST: list[dict[str, Any]] = [{"name": SPREADING, "args": {"defaultingType": "List"}}]
ELSEWHERE = {"urlPrefix": "https://other.example/", "filterVerb": "filter", "nodeCacheCapable": True}


def configuration(target: Target = "default", *others: dict[str, Any], **profile: Any) -> str:
    """Write the configuration for a target with more in its first profile, and the extenders of others."""
    document = yaml.safe_load(write(plan(target, resources=("nvidia.com/gpu",))))
    document["profiles"][0].update(profile)
    document["extenders"] += others
    return yaml.safe_dump(document, sort_keys=False)


def points(**members: list[str]) -> dict[str, Any]:
    """Write a profile's plugins: `score_disabled=["*"]` disables all at score."""
    plugins: dict[str, Any] = {}
    for name, plugin_names in members.items():
        point, _, member = name.partition("_")
        plugins.setdefault(point, {})[member] = [{"name": plugin} for plugin in plugin_names]
    return {"plugins": plugins}


AT_EVERY_POINT = {f"{point}_disabled": [SPREADING] for point in ("preFilter", "filter", "preScore", "score")}


@pytest.mark.parametrize(
    ("profile", "batchable"),
    [
        ({}, False),
        ({"pluginConfig": LIST}, True),
        ({"pluginConfig": [{"name": SPREADING, "args": {"defaultingType": "System"}}]}, False),
        ({"pluginConfig": [{"name": SPREADING}]}, False),
        ({"pluginConfig": [{"name": "NodeAffinity", "args": {"defaultingType": "List"}}]}, False),
        (
            {
                "pluginConfig": [
                    {"name": SPREADING, "args": {"defaultingType": "List", "defaultConstraints": [{"maxSkew": 1}]}}
                ]
            },
            False,
        ),
        (points(multiPoint_disabled=[SPREADING]), True),
        (points(multiPoint_disabled=["*"]), True),
        (points(multiPoint_disabled=["*"], multiPoint_enabled=[SPREADING]), False),
        (points(multiPoint_disabled=["*"], filter_enabled=[SPREADING]), False),
        (points(score_disabled=["*"]), False),
        (points(**AT_EVERY_POINT), True),
    ],
)
def test_profile_is_batched_where_no_default_constraints_apply_to_its_pods(
    profile: dict[str, Any], batchable: bool
) -> None:
    """F88."""
    value = yaml.safe_load(configuration(**profile))

    assert (batchable_profiles(value) != ()) is batchable
    assert describe_batching(value).startswith("opportunistic batching: " + ("off" if batchable else "no profile"))


def test_loss_of_the_clusters_own_scheduler_is_found_with_its_line() -> None:
    """F88: CPU pods lose it too."""
    text = configuration(pluginConfig=LIST)

    [finding] = verify("s.yaml", text)

    line = next(number for number, words in enumerate(text.splitlines(), 1) if words.startswith("extenders"))
    assert (finding.severity, finding.where.split(":")[1]) == ("warning", str(line))
    assert "every pod of default-scheduler, without GPU too" in finding.message
    assert "--for second" in finding.remedy


@pytest.mark.parametrize(
    "text",
    [
        configuration("second", pluginConfig=LIST),
        configuration("default", ELSEWHERE, pluginConfig=LIST),
        configuration("default"),
    ],
    ids=["only pods that the extender decides", "another extender takes it anyway", "none to lose"],
)
def test_nothing_is_said_to_be_lost_where_nothing_is(text: str) -> None:
    """F88."""
    assert verify("s.yaml", text) == []


def test_second_profile_of_the_file_is_named_alone() -> None:
    """F88: each profile has its own arguments, and all share the process and its extenders."""
    document = yaml.safe_load(configuration())
    document["profiles"].append({"schedulerName": "batch", "pluginConfig": LIST})
    document["profiles"].append({"schedulerName": OWN_NAME, "pluginConfig": [*LIST]})

    [finding] = verify("s.yaml", json.dumps(document))

    assert "every pod of batch, without" in finding.message


def test_without_an_extender_the_profiles_that_have_it_are_named() -> None:
    """F88."""
    document = yaml.safe_load(configuration(pluginConfig=LIST))
    del document["extenders"]

    assert batching_line(yaml.safe_dump(document)) == "opportunistic batching: profile default-scheduler"


@pytest.mark.parametrize("text", ["", "kind: Pod", "a: [", "kind: KubeSchedulerConfiguration\nprofiles: 3"])
def test_what_is_no_configuration_has_no_line(text: str) -> None:
    """F88."""
    assert batching_line(text) == ""


@pytest.mark.parametrize(
    "profile",
    [{"plugins": []}, {"plugins": {"score": 3}}, {"plugins": {"score": {"enabled": {}}}}, {"pluginConfig": ["x"]}],
)
def test_malformed_plugins_are_a_finding(profile: dict[str, Any]) -> None:
    """F88."""
    [finding] = verify("s.yaml", configuration(**profile))

    assert "the scheduler refuses to start" in finding.message
