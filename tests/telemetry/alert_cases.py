# SPDX-License-Identifier: Apache-2.0
"""The cases of each alert: series under which it fires, and under which it is silent; one sample per minute."""

Case = tuple[dict[str, str], dict[str, str], str]
"""Series by selector under which it fires, and under which it does not; when that is looked at. One sample a minute."""

NAME = 'name="validate.gpu-usher.io"'
OURS, THEIRS = "{" + NAME + "}", '{name="mutate.other.io"}'
REQUESTS, REFUSED = "gpu_usher_requests_total", "apiserver_admission_webhook_rejection_count"
DAY = 86_400


def histogram(name: str, labels: str, slow: bool) -> dict[str, str]:
    """Write a histogram of ten calls per minute, of three seconds each or of less than half a second."""
    quick = "0x60" if slow else "0+10x60"
    bounds = {"0.5": quick, "1": quick, "2.5": quick, "5": "0+10x60", "+Inf": "0+10x60"}
    return {f'{name}_bucket{{{labels}, le="{bound}"}}': values for bound, values in bounds.items()}


def share(bad: str, good: str, many: int, few: int) -> tuple[dict[str, str], dict[str, str]]:
    """Write two counters of 100 per minute in all, of which `many` are bad in one case and `few` in the other."""
    return {bad: f"0+{many}x60", good: f"0+{100 - many}x60"}, {bad: f"0+{few}x60", good: f"0+{100 - few}x60"}


def certificate(life: float, left: float, pod: str = "a") -> dict[str, str]:
    """Write the two times of a served certificate; `life` and `left` are in days."""
    times = {"expiry": left * DAY, "start": (left - life) * DAY}
    return {
        f'gpu_usher_serving_certificate_{name}_timestamp_seconds{{pod="{pod}"}}': f"{at:.0f}x120"
        for name, at in times.items()
    }


CASES: dict[str, Case] = {
    "GpuUsherDown": ({"up": "1x60"}, {'gpu_usher_build_info{role="all"}': "1x60"}, "10m"),
    "GpuUsherExtenderDown": ({"up": "1x60"}, {'gpu_usher_build_info{role="all"}': "1x60"}, "10m"),
    "GpuUsherInternalErrors": (
        {'gpu_usher_internal_errors_total{where="filter"}': "0 0 0 1x20"},
        {'gpu_usher_internal_errors_total{where="filter"}': "7x60"},
        "8m",
    ),
    "GpuUsherAnswersFailing": (
        *share(
            f'{REQUESTS}{{verb="filter", outcome="http_503"}}', f'{REQUESTS}{{verb="filter", outcome="answered"}}', 9, 2
        ),
        "20m",
    ),
    "GpuUsherSlow": (
        histogram("gpu_usher_request_duration_seconds", 'verb="mutate"', True),
        histogram("gpu_usher_request_duration_seconds", 'verb="mutate"', False),
        "30m",
    ),
    "GpuUsherRefusesMost": (
        *share(
            f'{REQUESTS}{{verb="mutate", outcome="denied"}}', f'{REQUESTS}{{verb="mutate", outcome="patched"}}', 60, 40
        ),
        "40m",
    ),
    "GpuUsherSchedulesNowhere": (
        *share(
            f'{REQUESTS}{{verb="filter", outcome="none_fits"}}',
            f'{REQUESTS}{{verb="filter", outcome="answered"}}',
            95,
            80,
        ),
        "60m",
    ),
    "GpuUsherCertificateExpiring": (
        certificate(life=7, left=1) | certificate(life=90, left=60, pod="b"),
        certificate(life=90, left=30) | certificate(life=7, left=2.3, pod="b"),
        "90m",
    ),
    "GpuUsherCertificateExpired": (
        certificate(life=7, left=0.3) | certificate(life=90, left=60, pod="b"),
        certificate(life=90, left=14),
        "10m",
    ),
    "GpuUsherCertificateUnusable": (
        {'gpu_usher_cert_reload_total{result="error"}': "0+12x60"},
        {
            'gpu_usher_cert_reload_total{result="error"}': "0 0 12x60",
            'gpu_usher_cert_reload_total{result="success"}': "0+1x60",
        },
        "40m",
    ),
    "GpuUsherCAExpiring": (
        {"gpu_usher_ca_expiry_timestamp_seconds": f"{59 * DAY}x120"},
        {
            'gpu_usher_ca_expiry_timestamp_seconds{pod="a"}': f"{120 * DAY}x120",
            'gpu_usher_ca_expiry_timestamp_seconds{pod="b"}': "NaN NaN+0x120",
        },
        "90m",
    ),
    "GpuUsherViewStale": (
        {
            'gpu_usher_cache_age_seconds{kind="nodes", pod="a"}': "0+60x20",
            'gpu_usher_cache_age_seconds{kind="nodes", pod="b"}': "1x20",
        },
        {
            'gpu_usher_cache_age_seconds{kind="nodes"}': "60x20",
            'gpu_usher_cache_age_seconds{kind="configmaps"}': "900x20",
        },
        "10m",
    ),
    "GpuUsherViewDrifts": (
        {'gpu_usher_cache_drift_objects{kind="pods"}': "2x60"},
        {'gpu_usher_cache_drift_objects{kind="pods"}': "0x20 2x10 0x30"},
        "40m",
    ),
    "GpuUsherObjectsUnreadable": (
        {'gpu_usher_unreadable_objects_total{kind="nodes"}': "0x5 1x20"},
        {'gpu_usher_unreadable_objects_total{kind="nodes"}': "3x60"},
        "20m",
    ),
    "GpuUsherPolicyError": ({"gpu_usher_policy_error": "1x20"}, {"gpu_usher_policy_error": "0x5 1 0x20"}, "7m"),
    "GpuUsherPolicySkew": (
        {'gpu_usher_policy_info{policy="p", hash="a"}': "1x20", 'gpu_usher_policy_info{policy="p", hash="b"}': "1x20"},
        {
            'gpu_usher_policy_info{policy="p", hash="a", pod="1"}': "1x20",
            'gpu_usher_policy_info{policy="q", hash="a", pod="2"}': "1x20",
        },
        "10m",
    ),
    "GpuUsherPolicyExceptionsExpired": (
        {"gpu_usher_policy_expired_exceptions": "1x120"},
        {"gpu_usher_policy_expired_exceptions": "0x120"},
        "90m",
    ),
    "GpuUsherNodesNotReady": (
        {'gpu_usher_health_nodes{state="not_ready"}': "3x40"},
        {'gpu_usher_health_nodes{state="not_ready"}': "0x40"},
        "20m",
    ),
    "GpuUsherMemoryOverrun": (
        {"gpu_usher_vram_overrun_nodes": "1x20"},
        {"gpu_usher_vram_overrun_nodes": "0x20"},
        "10m",
    ),
    "GpuUsherDevicePoolIncomplete": (
        {'gpu_usher_device_pools{driver="gpu.nvidia.com", state="incomplete"}': "1x40"},
        {
            'gpu_usher_device_pools{driver="gpu.nvidia.com", state="incomplete"}': "0x10 1x3 0x30",
            'gpu_usher_device_pools{driver="gpu.nvidia.com", state="complete"}': "9x40",
        },
        "30m",
    ),
    "GpuUsherSlippedPods": (
        {'gpu_usher_slipped_pods{kind="unadmitted"}': "3x60"},
        {
            'gpu_usher_slipped_pods{kind="unadmitted"}': "0x20 1x5 0x30",
            'gpu_usher_slipped_pods{kind="misplaced"}': "0x60",
        },
        "40m",
    ),
    "GpuUsherHealthUnknown": (
        {"gpu_usher_health_age_seconds": "Inf Inf+0x20"},
        {"gpu_usher_health_age_seconds": "NaN NaN+0x20"},
        "10m",
    ),
    "GpuUsherRegistrySilent": (
        {'gpu_usher_registry_silence_seconds{registry="nvcr.io"}': "0+60x40"},
        {'gpu_usher_registry_silence_seconds{registry="nvcr.io"}': "0+60x14 0x26"},
        "30m",
    ),
    "GpuUsherIdleWhilePodsWait": (
        {
            'gpu_usher_gpus_idle{namespace="a", unit="gpu", pod="1"}': "3x120",
            'gpu_usher_gpus_idle{namespace="b", unit="gpu", pod="1"}': "0x120",
            'gpu_usher_waiting_pods{pod="1"}': "2x120",
        },
        {
            'gpu_usher_gpus_idle{namespace="a", unit="share", pod="1"}': "3x120",
            'gpu_usher_gpus_idle{namespace="b", unit="gpu", pod="1"}': "2x40 0x80",
            'gpu_usher_waiting_pods{pod="1"}': "2x120",
        },
        "90m",
    ),
    "GpuUsherUseUnknown": (
        {"gpu_usher_use_age_seconds": "Inf Inf+0x30"},
        {"gpu_usher_use_age_seconds": "NaN NaN+0x30"},
        "20m",
    ),
    "GpuUsherLogLinesDropped": (
        {'gpu_usher_log_lines_lost_total{why="dropped"}': "0+1x20"},
        {
            'gpu_usher_log_lines_lost_total{why="suppressed"}': "0+9x20",
            'gpu_usher_log_lines_lost_total{why="dropped"}': "4x20",
        },
        "15m",
    ),
    "GpuUsherShedsRequests": (
        {"gpu_usher_shed_requests_total": "0+30x30"},
        {"gpu_usher_shed_requests_total": "0 0 30x30"},
        "20m",
    ),
    "GpuUsherEventLoopBlocked": (
        {"gpu_usher_event_loop_blocked_total": "0+1x30"},
        {"gpu_usher_event_loop_blocked_total": "0 3x30"},
        "15m",
    ),
    "GpuUsherBodiesTooLarge": (
        {'gpu_usher_oversized_bodies_total{verb="filter"}': "0 0 1x20"},
        {'gpu_usher_oversized_bodies_total{verb="filter"}': "2x30"},
        "8m",
    ),
    "GpuUsherFailOpen": (
        {f"apiserver_admission_webhook_fail_open_count{OURS}": "_x20 1x30"},
        {
            f"apiserver_admission_webhook_fail_open_count{OURS}": "5x60",
            f"apiserver_admission_webhook_fail_open_count{THEIRS}": "0+1x60",
        },
        "25m",
    ),
    "GpuUsherCallsFail": (
        {f'{REFUSED}{{{NAME}, error_type="calling_webhook_error"}}': "_x20 1x30"},
        {
            f'{REFUSED}{{{NAME}, error_type="no_error"}}': "0+9x60",
            f'{REFUSED}{{{NAME}, error_type="calling_webhook_error"}}': "2x60",
        },
        "25m",
    ),
    "GpuUsherCallsNot200": (
        *share(
            f'apiserver_admission_webhook_request_total{{{NAME}, code="503"}}',
            f'apiserver_admission_webhook_request_total{{{NAME}, code="200"}}',
            2,
            0,
        ),
        "20m",
    ),
    "GpuUsherCallsSlow": (
        histogram("apiserver_admission_webhook_admission_duration_seconds", NAME, True),
        histogram("apiserver_admission_webhook_admission_duration_seconds", NAME, False),
        "30m",
    ),
    "GpuUsherMatchConditionErrors": (
        {f"apiserver_admission_match_condition_evaluation_errors_total{OURS}": "_x20 1x30"},
        {f"apiserver_admission_match_condition_evaluation_errors_total{THEIRS}": "0+1x60"},
        "25m",
    ),
}


WEBHOOK = {f'gpu_usher_build_info{{role="admission", pod="{pod}"}}': "1x20 _x40" for pod in "abc"}
EXTENDER = {f'gpu_usher_build_info{{role="extender", pod="{pod}"}}': "1x20 _x40" for pod in "de"}
"""Both components as they are scraped, until all replicas of a component die in the twentieth minute."""


def surviving(series: dict[str, str]) -> dict[str, str]:
    """Add a replica of the component that is alive."""
    return dict.fromkeys(series, "1x60")


DEAD_COMPONENTS: dict[str, tuple[dict[str, str], set[str]]] = {
    "both present": (surviving(WEBHOOK) | surviving(EXTENDER), set()),
    "one replica of each left": (
        WEBHOOK | EXTENDER | surviving(dict([*WEBHOOK.items()][:1] + [*EXTENDER.items()][:1])),
        set(),
    ),
    "webhook dead": (WEBHOOK | surviving(EXTENDER), {"GpuUsherDown"}),
    "extender dead": (surviving(WEBHOOK) | EXTENDER, {"GpuUsherExtenderDown"}),
    "both dead": (WEBHOOK | EXTENDER, {"GpuUsherDown", "GpuUsherExtenderDown"}),
    "targets absent altogether": ({"up": "1x60"}, {"GpuUsherDown", "GpuUsherExtenderDown"}),
    "targets do not answer": (
        {'up{job="gpu-usher", pod="a"}': "0x60", 'up{job="gpu-usher", pod="d"}': "0x60"},
        {"GpuUsherDown", "GpuUsherExtenderDown"},
    ),
    "one process serves both": ({'gpu_usher_build_info{role="all"}': "1x60"}, set()),
}
"""Name → the scraped series, and the alerts of absence that fire twenty minutes after a component has died."""
