# SPDX-License-Identifier: Apache-2.0
"""GPUs that a pod takes by environment instead of requesting them are removed, hidden, refused or warned of (F12)."""

from typing import Any

import pytest

from app.admission.json_patch import apply
from app.admission.review import mutate, validate
from app.policy.compiled import PolicySet
from app.values.reasons import Code
from app.world.state import State
from tests.admission.mutated import admit, rules, spec_of
from tests.builders import container, gpus, knowledge, pod, policies, policy, setting, shipped

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DEVICES = "/var/run/nvidia-container-devices"
VOID = {"name": VISIBLE, "value": "void"}
OTHER = {"name": "HOME", "value": "/root"}
LEGACY = {"name": "CUDA_VERSION", "value": "12.0"}
CACHE = {"name": "v", "mountPath": "/cache"}


def guard(mode: str, action: str = "Enforce", more: str = "") -> PolicySet:
    """Make a policy with the device guard alone."""
    return rules(f"visibleDevices: {mode}", action, more)


def after(document: dict[str, Any], policy_set: PolicySet) -> list[dict[str, Any]]:
    """Return the containers after admission."""
    containers: list[dict[str, Any]] = spec_of(document, policy_set)["containers"]
    return containers


def env(*variables: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Make a container without GPUs that has these variables."""
    return container({"cpu": "1"}, env=list(variables), **more)


def visible(value: Any) -> dict[str, Any]:
    """Write the variable NVIDIA_VISIBLE_DEVICES."""
    return {"name": VISIBLE, "value": value}


def mount(path: str) -> dict[str, Any]:
    """Make a container without GPUs that has this mount."""
    return container(volumeMounts=[{"name": "v", "mountPath": path}])


TAKERS = [
    pytest.param(env(visible("all")), id="all"),
    pytest.param(env(visible("0,1")), id="indices"),
    pytest.param(env(visible("GPU-8f4d2a4a")), id="a UUID"),
    pytest.param(env(visible("none,all")), id="none among others"),
    pytest.param(env(visible(" all")), id="blanks"),
    pytest.param(env(visible("$(MINE)")), id="another variable's value"),
    pytest.param(env({"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}), id="elsewhere"),
    pytest.param(env(VOID, visible("all")), id="twice, the second takes"),
    pytest.param(env(visible("all"), VOID), id="twice, the first takes"),
    pytest.param(env({"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}), id="MIG configuration"),
    pytest.param(env({"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}), id="MIG monitoring"),
    pytest.param(env({"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}), id="IMEX channels"),
    pytest.param(env({"name": "NVIDIA_NVSWITCH", "value": "enabled"}), id="NVSwitch"),
    pytest.param(env({"name": "NVIDIA_MOFED", "value": "enabled"}), id="network cards"),
    pytest.param(env({"name": "NVIDIA_GDS", "value": "$(MINE)"}), id="another variable's value of a switch"),
    pytest.param(env({"name": "DOCKER_RESOURCE_GPU", "value": "all"}), id="the swarm's variable"),
    pytest.param(gpus(1, env=[{"name": "NVIDIA_NVSWITCH", "value": "enabled"}]), id="NVSwitch beside a GPU"),
    pytest.param(mount(f"{DEVICES}/all"), id="a mount"),
    pytest.param(mount(f"{DEVICES}/GPU-1/"), id="a mount with a slash at the end"),
    pytest.param(gpus(1, env=[visible("all")]), id="beside a GPU of its own"),
]
NO_TAKERS = [
    pytest.param(env(OTHER), id="another variable"),
    pytest.param(env(VOID), id="void"),
    pytest.param(env(visible("none")), id="none"),
    pytest.param(env(visible("")), id="empty"),
    pytest.param(env({"name": VISIBLE}), id="without a value"),
    pytest.param(env({"name": "nvidia_visible_devices", "value": "all"}), id="lower case is another variable"),
    pytest.param(env({"name": "CUDA_VISIBLE_DEVICES", "value": "all"}), id="CUDA's own only narrows"),
    pytest.param(mount("/data" + DEVICES), id="a mount that ends so"),
    pytest.param(gpus(1), id="a GPU that is asked for"),
    pytest.param(env(LEGACY, VOID), id="a CUDA version beside void"),
    pytest.param(env(visible("none"), LEGACY), id="a CUDA version beside none"),
    pytest.param(env(LEGACY, {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12.0"}), id="no legacy image"),
    pytest.param(env({"name": "CUDA_VERSION"}), id="an empty CUDA version"),
    pytest.param(gpus(1, env=[LEGACY]), id="a CUDA version beside a GPU: the plugin says which"),
    pytest.param(gpus(1, env=[{"name": "NVIDIA_GDS", "value": "enabled"}]), id="GPUDirect Storage beside a GPU"),
    pytest.param(env({"name": "NVIDIA_NVSWITCH", "value": "disabled"}), id="a switch that is off"),
    pytest.param(env({"name": "NVIDIA_IMEX_CHANNELS", "value": "all"}), id="all channels: ignored"),
    pytest.param(container(env=None, volumeMounts=None), id="null lists"),
    pytest.param(container(env=[], volumeMounts=[]), id="empty lists"),
]


LEGACIES = [
    pytest.param(env(LEGACY), id="alone"),
    pytest.param(env(LEGACY, {"name": "NVIDIA_REQUIRE_CUDA", "value": ""}), id="beside an empty requirement"),
    pytest.param(env(LEGACY, {"name": "NVIDIA_REQUIRE_CUDA", "value": "$(MINE)"}), id="beside one that may be empty"),
    pytest.param(env({"name": "CUDA_VERSION", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}), id="from elsewhere"),
    pytest.param(gpus(0, env=[LEGACY]), id="zero GPUs"),
]


@pytest.mark.parametrize("legacy", LEGACIES)
def test_legacy_image_which_gets_all_gpus_is_refused_and_told_the_way_out(legacy: dict[str, Any]) -> None:
    """F12."""
    verdict = admit(pod(legacy), guard("Deny"))

    assert [(reason.code, f"{VISIBLE}: void" in reason.message) for reason in verdict.reasons] == [
        (Code.VisibleDevicesForbidden, True)
    ]


@pytest.mark.parametrize("legacy", LEGACIES)
@pytest.mark.parametrize("mode", ["Strip", "Void"])
def test_legacy_image_keeps_its_version_and_is_shown_no_gpu(legacy: dict[str, Any], mode: str) -> None:
    """F12: programs read CUDA_VERSION, so it must stay."""
    (changed,) = after(pod(legacy), guard(mode))

    assert changed == legacy | {"env": [*legacy["env"], VOID]}


@pytest.mark.parametrize("list_name", ["containers", "initContainers"])
@pytest.mark.parametrize("taker", TAKERS)
def test_container_that_takes_devices_is_refused_under_deny(taker: dict[str, Any], list_name: str) -> None:
    document = pod(gpus(1)) if list_name == "initContainers" else pod()
    document["spec"][list_name] = [taker]

    verdicts = [review(document, "team-a", {}, setting(guard("Deny"))) for review in (mutate, validate)]

    assert all(Code.VisibleDevicesForbidden in [reason.code for reason in verdict.reasons] for verdict in verdicts)


@pytest.mark.parametrize("mode", ["Deny", "Strip", "Leave"])
@pytest.mark.parametrize("innocent", NO_TAKERS)
def test_container_that_takes_nothing_is_left_alone(innocent: dict[str, Any], mode: str) -> None:
    verdict = admit(pod(innocent, gpus(1)), guard(mode))

    assert verdict.allowed
    assert not verdict.warnings
    assert [innocent, gpus(1)] == after(pod(innocent, gpus(1)), guard(mode))


@pytest.mark.parametrize("taker", TAKERS)
def test_strip_takes_away_what_would_take_and_nothing_else(taker: dict[str, Any]) -> None:
    full = taker | {"env": [OTHER, *taker.get("env", ())], "volumeMounts": [CACHE, *taker.get("volumeMounts", ())]}
    void_variables = [variable for variable in taker.get("env", ()) if variable == VOID]

    (changed,) = after(pod(full), guard("Strip"))

    assert full | {"env": [OTHER, *void_variables], "volumeMounts": [CACHE]} == changed


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(container(), [VOID], id="nothing said: the image may say all"),
        pytest.param(container(env=None), [VOID], id="null list"),
        pytest.param(env(OTHER), [OTHER, VOID], id="beside others"),
        pytest.param(env(visible("all"), OTHER), [VOID, OTHER], id="in its place"),
        pytest.param(env(visible("all"), visible("0")), [VOID, VOID], id="twice"),
        pytest.param(env(visible("none")), [visible("none")], id="harmless stays"),
        pytest.param(env({"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "x"}}}), [VOID], id="elsewhere"),
        pytest.param(gpus(1), None, id="a GPU of its own: the plugin says which"),
        pytest.param(gpus(1, env=[visible("all")]), [], id="beside a GPU of its own: removed"),
        pytest.param(gpus(0), [VOID], id="zero GPUs"),
        pytest.param(container(envFrom=[{"configMapRef": {"name": "c"}}]), [VOID], id="counts before envFrom"),
    ],
)
def test_void_hides_gpus_from_containers_that_ask_for_none(given: dict[str, Any], expected: Any) -> None:
    """P40."""
    assert expected == after(pod(given, gpus(1) | {"name": "gpu"}), guard("Void"))[0].get("env")


def test_void_holds_for_init_containers_and_sidecars_too() -> None:
    sidecar, first = container() | {"name": "sidecar", "restartPolicy": "Always"}, container() | {"name": "first"}
    document = pod(gpus(1), initContainers=[sidecar, first])

    changed = apply(document, admit(document, guard("Void")).operations)

    assert [container["env"] for container in changed["spec"]["initContainers"]] == [[VOID]] * 2


@pytest.mark.parametrize("mode", ["Strip", "Void"])
def test_user_is_told_what_was_taken_away_and_what_to_do(mode: str) -> None:
    verdict = admit(pod(env(visible("all"))), guard(mode))

    assert any("main" in warning and VISIBLE in warning and "limits" in warning for warning in verdict.warnings)


@pytest.mark.parametrize(("action", "spoken"), [("Warn", True), ("Audit", False), ("'Off'", False)])
@pytest.mark.parametrize("mode", ["Deny", "Strip", "Void"])
def test_guard_that_is_not_enforced_changes_and_refuses_nothing(mode: str, action: str, spoken: bool) -> None:
    """F20."""
    document = pod(env(visible("all")))

    verdict = admit(document, guard(mode, action))

    assert verdict.allowed
    assert document["spec"] == apply(document, verdict.operations)["spec"]
    assert spoken is bool(verdict.warnings)


def test_shipped_guard_warns_and_lets_in() -> None:
    verdict = admit(pod(env(visible("all"))), shipped())

    assert verdict.allowed
    assert any(VISIBLE in warning for warning in verdict.warnings)


@pytest.mark.parametrize("labels", [{}, {"app": "exporter"}], ids=["others", "the excepted"])
def test_exception_frees_only_the_pods_that_it_selects(labels: dict[str, str]) -> None:
    """F21, F80."""
    excepted = "{match: {podSelector: {matchLabels: {app: exporter}}}, rules: [visibleDevices]"
    lenient = f"exceptions: [{excepted}, owner: o, reason: r, expires: 2999-01-01}}]"
    document = pod(env(visible("all")))
    document["metadata"]["labels"] = labels

    assert bool(labels) is admit(document, guard("Deny", more=f", {lenient}")).allowed


def test_strictest_guard_of_two_policies_holds() -> None:
    both = policies(
        policy("a", "priority: 9, admission: {visibleDevices: Leave}"), policy("b", "admission: {visibleDevices: Deny}")
    )

    assert not admit(pod(env(visible("all"))), both).allowed


@pytest.mark.parametrize(
    "path",
    [
        f"{DEVICES[1:]}/all",
        "/var//run/nvidia-container-devices/all",
        "/var/run/./nvidia-container-devices/all",
        "/var/run/../run/nvidia-container-devices/all",
        "/tmp/../var/run/nvidia-container-devices/all",
    ],
    ids=["relative: the kubelet adds the slash", "two slashes", "dot", "dot dot", "through another"],
)
def test_mount_is_seen_however_its_path_is_written(path: str) -> None:
    assert not admit(pod(mount(path)), guard("Deny")).allowed


def test_devices_taken_by_a_cdi_annotation_are_refused() -> None:
    document = pod(container())
    document["metadata"]["annotations"] = {"cdi.k8s.io/mine": "nvidia.com/gpu=all"}

    assert not admit(document, guard("Deny")).allowed


NETWORK_CARDS = {"cel": {"expression": "device.driver == 'dra.net'"}}


def test_claim_for_a_network_card_gives_no_gpu() -> None:
    card = container(resources={"claims": [{"name": "card"}]})
    document = pod(card, gpus(1) | {"name": "gpu"}, resourceClaims=[{"name": "card", "resourceClaimName": "card"}])
    state, metadata = State(knowledge()), {"name": "card", "namespace": "team-a"}
    state.devices.put_device_class({"metadata": {"name": "nic"}, "spec": {"selectors": [NETWORK_CARDS]}})
    request = {"name": "card", "exactly": {"deviceClassName": "nic"}}
    state.devices.put_claim({"metadata": metadata, "spec": {"devices": {"requests": [request]}}})
    context = setting(guard("Void"), state=state)

    changed = apply(document, mutate(document, "team-a", {}, context).operations)

    assert changed["spec"]["containers"][0].get("env") == [VOID]


@pytest.mark.parametrize(
    ("document", "words", "told"),
    [
        pytest.param(pod(container(), runtimeClassName="nvidia"), "visibleDevices: Deny", True, id="no GPU"),
        pytest.param(pod(gpus(1), runtimeClassName="nvidia"), "visibleDevices: Deny", False, id="a GPU"),
        pytest.param(pod(container(), runtimeClassName="kata"), "visibleDevices: Deny", False, id="another class"),
        pytest.param(pod(container()), "visibleDevices: Deny", False, id="no class"),
        pytest.param(pod(container(), runtimeClassName="nvidia"), "visibleDevices: Void", False, id="hidden anyway"),
        pytest.param(pod(container(), runtimeClassName="nvidia"), "bypass: Leave", False, id="no guard"),
        pytest.param(
            pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]), runtimeClassName="nvidia"),
            "visibleDevices: Deny", False, id="it says void itself",
        ),
    ],
)  # fmt: skip
def test_class_of_the_toolkit_without_a_gpu_is_told_and_never_refused(
    document: dict[str, Any], words: str, told: bool
) -> None:
    """F12: what the image's own environment says is not in the pod."""
    result = admit(document, rules(words))

    assert result.allowed
    assert any("gets all GPUs of its node" in warning for warning in result.warnings) is told
