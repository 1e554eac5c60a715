# SPDX-License-Identifier: Apache-2.0
"""The counts of devices and pools that the metrics show, against counting everything anew (F135)."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.telemetry.metrics import Metrics
from app.world.state import State
from tests.builders import knowledge

DRIVERS = st.sampled_from(["gpu.nvidia.com", "net.example.com"])
TAINT = {"key": "k", "effect": "NoSchedule"}
SLICES = st.builds(
    lambda name, driver, pool, generation, size, tainted, plain: {
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": size},
            "nodeName": "n",
            "devices": [
                *({"name": f"{name}-t{count}", "taints": [TAINT]} for count in range(tainted)),
                *({"name": f"{name}-p{count}"} for count in range(plain)),
            ],
        },
    },
    st.sampled_from("abcd"),
    DRIVERS,
    st.sampled_from(["one", "two"]),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(0, 2),
)
CLAIMS = st.builds(
    lambda name, driver, devices: {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "gpu", "driver": driver, "pool": "one", "device": f"d{count}"}
                        for count in range(devices)
                    ]
                }
            }
        },
    },
    st.sampled_from("abcd"),
    DRIVERS,
    st.integers(1, 3),
)


@given(st.lists(st.one_of(SLICES, CLAIMS, st.tuples(st.booleans(), st.sampled_from("abcd"))), max_size=20))
def test_counts_follow_every_change(changes: list[Any]) -> None:
    """F135: after any changes of slices and claims the counts are those of the objects that are left."""
    state = State(knowledge())
    slices: dict[str, dict[str, Any]] = {}
    claims: dict[str, dict[str, Any]] = {}
    for change in changes:
        if isinstance(change, tuple):
            is_slice, name = change
            (slices if is_slice else claims).pop(name, None)
            state.devices.drop_slice(name) if is_slice else state.devices.drop_claim(f"default/{name}")
        elif "driver" in change["spec"]:
            slices[change["metadata"]["name"]] = change
            state.devices.put_slice(change)
        else:
            claims[change["metadata"]["name"]] = change
            state.devices.put_claim(change)

    counts = state.devices.dra.counts
    assert (+counts.devices, +counts.pools) == (_devices(slices, claims), _pools(slices))


def _newest(slices: dict[str, dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    pools: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in slices.values():
        pools.setdefault((one["spec"]["driver"], one["spec"]["pool"]["name"]), []).append(one["spec"])
    newest = {}
    for pool, specs in pools.items():
        generation = max(spec["pool"]["generation"] for spec in specs)
        newest[pool] = [spec for spec in specs if spec["pool"]["generation"] == generation]
    return newest


def _label(driver: str) -> str:
    return "other" if driver == "net.example.com" else driver


def _devices(slices: dict[str, dict[str, Any]], claims: dict[str, dict[str, Any]]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for (driver, _), specs in _newest(slices).items():
        for device in (device for spec in specs for device in spec["devices"]):
            counts[_label(driver), "published"] += 1
            counts[_label(driver), "tainted"] += "taints" in device
    for one in claims.values():
        for result in one["status"]["allocation"]["devices"]["results"]:
            counts[_label(result["driver"]), "allocated"] += 1
    return +counts


def _pools(slices: dict[str, dict[str, Any]]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for (driver, _), specs in _newest(slices).items():
        whole = len(specs) == specs[0]["pool"]["resourceSliceCount"]
        counts[_label(driver), "complete" if whole else "incomplete"] += 1
    return counts


def test_metrics_show_the_counts_of_now_and_no_others() -> None:
    metrics = Metrics()
    metrics.devices_counted({("gpu.nvidia.com", "published"): 8}, {("gpu.nvidia.com", "complete"): 1})
    metrics.devices_counted({("gpu.amd.com", "published"): 4}, {})

    shown = [sample for metric in metrics.registry.collect() if "device" in metric.name for sample in metric.samples]
    assert [(sample.labels, sample.value) for sample in shown] == [({"driver": "gpu.amd.com", "state": "published"}, 4)]
