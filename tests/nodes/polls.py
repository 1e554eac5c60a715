# SPDX-License-Identifier: Apache-2.0
"""Polls of DCGM's metrics, and the health after them."""

from app.knowledge.tables import Knowledge
from app.nodes.gpu_health import Health, MetricSample, PollMemory, evaluate_poll
from tests.builders import knowledge

XID, DBE, PENDING = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ROW_REMAP_PENDING"
HEAT, NVLINK = "DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
DAY, WINDOW = 24 * 3600, 600
Poll = tuple[float, list[MetricSample]]


def sample(metric: str, value: float, gpu: str = "GPU-0", node: str = "n", part: str = "") -> MetricSample:
    return MetricSample(metric, node, gpu, part, value)


def health_after(*polls: Poll, facts: Knowledge | None = None) -> dict[str, Health]:
    """Evaluate polls one after the other, and return the health by node after the last."""
    memory, healths = PollMemory(), dict[str, Health]()
    for now, samples in polls:
        memory, healths = evaluate_poll(samples, memory, facts or knowledge(), now)
    return healths
