# SPDX-License-Identifier: Apache-2.0
"""Opportunistic batching: which profiles of a configuration have it, and what an extender takes from them.

From 1.35 on, kube-scheduler gives equal pods in a row, each of which fills its node, the nodes that it found for the
first of them. A process with an extender does so for none of its profiles
(pkg/scheduler/framework/runtime/framework.go computeBatchablePlugins), and no profile does so for pods to which default
spreading constraints apply, as they do unless its configuration says otherwise
(framework/plugins/podtopologyspread/plugin.go SignPod). Read in 1.36.3 and 1.37.2.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from app.values.json_members import JSONObject, object_if_any

DEFAULT_NAME = "default-scheduler"
"""The schedulerName of a profile that sets none (pkg/scheduler/apis/config/v1)."""
SPREADING = "PodTopologySpread"
POINTS = ("preFilter", "filter", "preScore", "score")
"""The extension points at which kube-scheduler looks for plugins that do not allow batching."""


def profile_names(value: Mapping[str, Any]) -> tuple[str, ...]:
    """List the schedulerNames of a configuration, in its order."""
    return tuple(str(profile.get("schedulerName") or DEFAULT_NAME) for profile in value.get("profiles") or [{}])


def batchable_profiles(value: Mapping[str, Any]) -> tuple[str, ...]:
    """List the schedulerNames of the profiles whose pods would be batched if there were no extender."""
    profiles = zip(profile_names(value), value.get("profiles") or [{}], strict=True)
    return tuple(name for name, profile in profiles if not _spreads_by_default(profile))


def describe_batching(value: Mapping[str, Any]) -> str:
    """Say in one line what holds for a configuration."""
    batchable = ", ".join(batchable_profiles(value))
    if not batchable:
        return "opportunistic batching: no profile has it, by the default spreading constraints; an extender costs none"
    if not value.get("extenders"):
        return f"opportunistic batching: profile {batchable}"
    return f"opportunistic batching: off by extenders; without any, profile {batchable} would have it"


def _spreads_by_default(profile: JSONObject) -> bool:
    """Tell whether spreading constraints that no pod names apply to the pods of a profile."""
    if not any(_runs_spreading(profile, point) for point in POINTS):
        return False
    rows = [row for row in profile.get("pluginConfig") or () if row.get("name") == SPREADING]
    args = object_if_any(rows[0], "args") if rows else {}
    return args.get("defaultingType", "System") != "List" or bool(args.get("defaultConstraints"))


def _runs_spreading(profile: JSONObject, point: str) -> bool:
    """Tell whether the plugin runs at an extension point; multiPoint has it enabled by default."""
    if SPREADING in _names(profile, point, "enabled"):
        return True
    off = {SPREADING, "*"}
    if not off.isdisjoint(_names(profile, point, "disabled")):
        return False
    return SPREADING in _names(profile, "multiPoint", "enabled") or off.isdisjoint(
        _names(profile, "multiPoint", "disabled")
    )


def _names(profile: JSONObject, point: str, member: str) -> Iterator[str]:
    plugins = (profile.get("plugins") or {}).get(point) or {}
    return (str(row.get("name")) for row in plugins.get(member) or ())
