# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks of devices: pools, taints, DeviceClasses, and nodes that are served twice.

One function per check; the table of checks stands at the end. A healthy fleet has no finding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from app.doctor.fleet_checks import Finding, advice, merged, problem
from app.dra.cluster_devices import ClusterDevices, PoolID
from app.dra.selectors import ClaimError, NotJudged, Selection
from app.dra.words import plain_error
from app.kube.device_classes import DeviceClass, tolerates
from app.kube.device_models import NVIDIA_DRIVER
from app.kube.devices import BLOCKING_EFFECTS, Device, DeviceTaint, ResourceSlice
from app.kube.pod_requests import read_amounts
from app.kube.resource_claims import DeviceToleration
from app.values.errors import VersionError
from app.values.versions import Version, parse_version, show_version
from app.world.world import World

GPU_DRIVER = "gpu."
"""A driver of GPUs is named after its vendor's domain with this before it: gpu.nvidia.com, gpu.amd.com, gpu.intel.com.
Others, such as compute-domain.nvidia.com, work beside a device plugin."""


def newest_slices(world: World) -> Iterator[tuple[PoolID, tuple[ResourceSlice, ...], tuple[ResourceSlice, ...]]]:
    """List each pool with the slices of its newest generation, and those of older ones."""
    pools: dict[PoolID, list[ResourceSlice]] = {}
    for one in world.devices.pools.slices():
        pools.setdefault((one.driver, one.pool), []).append(one)
    for pool, slices in sorted(pools.items()):
        generation = max(one.generation for one in slices)
        current = tuple(one for one in slices if one.generation == generation)
        yield pool, current, tuple(one for one in slices if one.generation < generation)


def all_devices(world: World) -> Iterator[Device]:
    """List the devices of the newest generation of each pool."""
    return (device for _, slices, _ in newest_slices(world) for one in slices for device in one.devices)


DeviceCheck = Callable[[World], Iterator[Finding]]
ONE_SIDE = {
    NVIDIA_DRIVER: "let one of them serve a node: label it nvidia.com/gpu.deploy.device-plugin=false (GPU Operator), or"
    " set resources.gpus.enabled=false in the values of the DRA driver's chart"
}
"""What takes one side off a node, by driver (NVIDIA/gpu-operator controllers/state_manager.go;
kubernetes-sigs/dra-driver-nvidia-gpu deployments/helm values.yaml resources.gpus.enabled)."""
ONE_SIDE_OF_OTHERS = (
    "let one of them serve a node: keep the DaemonSet of the device plugin off it, or that of the driver"
)


def incomplete_pools(world: World) -> Iterator[Finding]:
    """Report pools of which slices are missing: kube-scheduler allocates none of their devices."""
    for (driver, _), slices, _ in newest_slices(world):
        size = slices[0].spec.pool.size
        if len(slices) != size:
            text = f"{driver}: {len(slices)} of {size} ResourceSlices of a pool are there, so that none of its"
            text += " devices can be allocated"
            yield problem("PoolIncomplete", text, "read the log of the driver's pod on the node", *_names(slices))


def invalid_pools(world: World) -> Iterator[Finding]:
    """Report pools that kube-scheduler takes for invalid: equal device names, or counters that are not there."""
    for node in world.nodes.values():
        for pool in world.devices.pools.pools(node):
            if pool.invalid:
                text = (
                    f"{pool.id[0]}: the pool is invalid, so that none of its devices can be allocated: {pool.invalid}"
                )
                remedy = "restart the DRA driver there; if it publishes the same again, report a bug of the driver"
                yield problem("PoolInvalid", text, remedy, nodes=(node.name,))


def stale_slices(world: World) -> Iterator[Finding]:
    """Report slices that count no more: of older generations, and of nodes that are gone."""
    for (driver, _), _, older in newest_slices(world):
        if older:
            text = f"{driver}: ResourceSlices of an older generation of their pool are still there"
            remedy = "read the driver's log: it deletes them once it has published"
            yield advice("StaleSlices", text, remedy, *_names(older))
    of_nodes = ((one, one.node) for one in world.devices.pools.slices())
    gone = [one for one, node in of_nodes if node and node not in world.nodes]
    if gone:
        remedy = "delete them: no node can serve claims that are allocated from them"
        yield advice("StaleSlices", "ResourceSlices of nodes that are gone", remedy, *_names(gone))


def tainted_devices(world: World) -> Iterator[Finding]:
    """Report taints that no known claim or template tolerates: their devices serve no pod until the taint is tolerated
    or removed. A driver taints what is faulty, which is a problem; an administrator's
    DeviceTaintRule is advice.
    """
    tolerations = set(_tolerations(world.devices))
    for device in all_devices(world):
        for taint, source in _taints(device, world.devices):
            if taint.effect in BLOCKING_EFFECTS and not any(tolerates(one, taint) for one in tolerations):
                value = f"={taint.value}" if taint.value else ""
                text = f"no claim tolerates the device taint {taint.key}{value}:{taint.effect} of {source}"
                remedy = f"repair the devices and let {source} remove the taint, or have claims tolerate it"
                finding = problem if taint in device.taints else advice
                yield finding("DeviceTainted", text, remedy, f"Device {device.pool}/{device.name}")


def _taints(device: Device, devices: ClusterDevices) -> Iterator[tuple[DeviceTaint, str]]:
    """List the taints of a device with what set them."""
    yield from ((taint, f"driver {device.driver}") for taint in device.taints)
    yield from (
        (rule.spec.taint, f"DeviceTaintRule {rule.metadata.name}")
        for rule in devices.taint_rules
        if rule.applies(device)
    )


def _tolerations(devices: ClusterDevices) -> Iterator[DeviceToleration]:
    for claim in (*devices.claims.values(), *devices.templates.values()):
        for choices in claim.spec.requests:
            yield from (toleration for request in choices for toleration in request.tolerations)


def idle_taint_rules(world: World) -> Iterator[Finding]:
    """Report DeviceTaintRules that taint no device, as after a typing error."""
    devices = list(all_devices(world))
    for rule in world.devices.taint_rules:
        if rule.selector.keys() <= {"driver", "pool", "device"} and not any(map(rule.applies, devices)):
            remedy = "compare its driver, pool and device with kubectl get resourceslices, or delete it"
            yield advice("IdleDeviceTaintRule", "taints no device", remedy, f"DeviceTaintRule {rule.metadata.name}")


def device_classes(world: World) -> Iterator[Finding]:
    """Report DeviceClasses that fail on a device, at which kube-scheduler gives up, and those that match none."""
    devices = list(all_devices(world))
    for device_class in world.devices.classes.values():
        name = f"DeviceClass {device_class.name}"
        try:
            matches = _matches(device_class, devices, world.selection)
        except ClaimError as error:
            remedy = "correct its selectors: kube-scheduler places no pod that claims a device of this class"
            yield problem("DeviceClassFails", plain_error(error), remedy, name)
            continue
        except NotJudged:
            continue
        if not matches and device_class.name in _requested_classes(world):
            text = "matches no device, so that claims and pods that request one wait"
            remedy = "check that its driver runs and publishes ResourceSlices, or correct the selectors of the class"
            yield advice("DeviceClassWithoutDevices", text, remedy, name)


def _requested_classes(world: World) -> set[str]:
    """Name the DeviceClasses that claims without devices and templates request.

    A class without devices is nothing to report by itself: a driver's chart installs the classes of all its devices
    (NVIDIA's those of MIG, VFIO and ComputeDomains).
    """
    waiting = [claim for claim in world.devices.claims.values() if claim.allocation is None]
    requesting = (*waiting, *world.devices.templates.values())
    return {choice.device_class for claim in requesting for choices in claim.spec.requests for choice in choices}


def _matches(device_class: DeviceClass, devices: Iterable[Device], selection: Selection) -> bool:
    """Ask about every device, as one on which the class fails may come last. Raises ClaimError, NotJudged."""
    answers = [selection.test_all(device_class.selectors, device) for device in devices]
    return any(answers)


def served_twice(world: World) -> Iterator[Finding]:
    """Report nodes whose GPUs a device plugin and a DRA driver give away, each without knowing of the other."""
    drivers: dict[str, set[str]] = {}
    for one in world.devices.pools.slices():
        if one.node and one.devices:
            drivers.setdefault(one.node, set()).add(one.driver)
    for name in sorted(drivers.keys() & world.nodes.keys()):
        offered = [key for key, amount in read_amounts(world.nodes[name].allocatable).items() if amount]
        for driver in sorted(one for one in drivers[name] if one.startswith(GPU_DRIVER)):
            domain = driver.removeprefix(GPU_DRIVER)
            twice = sorted(key for key in offered if key.partition("/")[0] == domain)
            if twice:
                text = (
                    f"the device plugin offers {', '.join(twice)}, and {driver} publishes devices: two pods can get one"
                    " GPU; filter lets in pods of one side at a time"
                )
                remedy = ONE_SIDE.get(driver, ONE_SIDE_OF_OTHERS)
                yield problem("DevicePluginAndDRA", text, remedy, nodes=(name,))


CDI_SINCE: Mapping[str, Version] = {"containerd": (1, 7, 2), "cri-o": (1, 28)}
"""The first version of each container runtime that takes CDI devices from the kubelet (kubernetes/kubernetes#121350,
kubernetes/test-infra#34018, containerd/containerd#8943, cri-o/cri-o#6944). What cri-dockerd takes depends on its own
version, which no node tells."""


def runtimes_without_cdi(world: World) -> Iterator[Finding]:
    """Report nodes with devices whose container runtime leaves them out of containers, and says nothing."""
    for name, node in sorted(world.nodes.items()):
        runtime, _, text = node.container_runtime.partition("://")
        since = CDI_SINCE.get(runtime)
        try:
            version = parse_version(text.partition("-")[0].partition("+")[0])
        except VersionError:
            continue
        if since is None or version >= since or not world.devices.pools.pools(node):
            continue
        what = f"{runtime} {text} takes no CDI devices: pods whose claims are allocated start without them"
        remedy = f"run {runtime} {show_version(since)} or newer there; containerd 1.7 wants enable_cdi = true as well"
        yield problem("RuntimeWithoutCDI", what, remedy, nodes=(name,))


def lost_counters(world: World) -> Iterator[Finding]:
    """Report GPUs that can be allocated whole and in slices at once, as their counters are missing.

    An API server whose feature gate DRAPartitionableDevices is off drops the counters that a driver writes.
    """
    for (driver, _), slices, _ in newest_slices(world):
        devices = [
            device for one in slices for device in one.devices if driver == NVIDIA_DRIVER and not device.counters
        ]
        uuids = {device.attributes.get(f"{driver}/uuid") for device in devices} - {None}
        if any(device.attributes.get(f"{driver}/parentUUID") in uuids for device in devices):
            text = f"{driver}: GPUs and slices of them are published without counters: both can be allocated at once"
            remedy = "switch on the feature gate DRAPartitionableDevices in kube-apiserver and kube-scheduler"
            yield problem("DeviceCountersMissing", text, remedy, *_names(slices))


def _names(slices: Iterable[ResourceSlice]) -> tuple[str, ...]:
    return tuple(f"ResourceSlice {one.name}" for one in slices)


DEVICE_CHECKS: tuple[DeviceCheck, ...] = (
    served_twice,
    runtimes_without_cdi,
    incomplete_pools,
    invalid_pools,
    lost_counters,
    device_classes,
    tainted_devices,
    idle_taint_rules,
    stale_slices,
)
"""The order in which people read the findings: what hurts pods now comes first."""


def examine_devices(world: World) -> tuple[Finding, ...]:
    """Run every check of devices; findings that differ only in what they concern are merged."""
    return merged(finding for check in DEVICE_CHECKS for finding in check(world))
