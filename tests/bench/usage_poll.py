# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.usage_poll N`: the CPU time of one poll of use, with the answers of a Prometheus for N GPUs.

The answers are made before the poll that is measured; neither the network nor the CPU of Prometheus is in the figure.
"""

import asyncio
import json
import resource
import sys
import time
from typing import Any

from app.cluster.state import State
from app.cluster.usage_history import UsageHistory
from app.cluster.usage_polling import DAY, UsagePoller
from app.usage.history import History
from app.usage.summary import poll_window
from tests.builders import knowledge, policies, policy

END = 1_790_000_130.0
RULE = policies(policy("p", "admission: {idle: {after: 4h}}"))


class Answers(UsageHistory):
    """A Prometheus that has N GPUs, each held by a pod all the time, with windows as the service would choose them."""

    def __init__(self, gpus: int) -> None:
        facts = knowledge()
        super().__init__("http://127.0.0.1:9", facts.dcgm, facts.usage_metrics)
        self._gpus = gpus
        self._made: dict[tuple[str, ...], bytes] = {}

    async def read(self, end: float, seconds: float, window: int | None = None) -> History:  # noqa: ARG002
        return await super().read(end, seconds, poll_window(self._gpus, seconds))

    async def _get(self, path: str, params: dict[str, str]) -> bytes:
        if path.endswith("/query"):
            return _answer("vector", [{"metric": {}, "value": [END, str(self._gpus)]}])
        share = "15" if params["query"].startswith("count") else "0.5"
        key = params["start"], params["end"], params["step"], share
        if key not in self._made:
            first, last, step = (float(params[name]) for name in ("start", "end", "step"))
            points = [[first + index * step, share] for index in range(int((last - first) / step) + 1)]
            series = [{"metric": _labels(number), "values": points} for number in range(self._gpus)]
            self._made[key] = _answer("matrix", series)
        return self._made[key]


def _answer(kind: str, result: list[dict[str, Any]]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}}).encode()


def _labels(number: int) -> dict[str, str]:
    return {"Hostname": f"node-{number // 8}", "gpu": str(number % 8), "UUID": f"GPU-{number:012}",
            "modelName": "NVIDIA A100-SXM4-80GB", "namespace": f"team-{number % 40}",
            "pod": f"train-{number % 200}-{number}"}  # fmt: skip


async def main(gpus: int) -> None:
    """Poll twice, and print the figures of the second time."""
    poller = UsagePoller(Answers(gpus), lambda: RULE, State(knowledge()), wall=lambda: END)
    await poller.poll()
    began = time.process_time()
    await poller.poll()
    spent = time.process_time() - began
    summary = poller.reading().summary
    assert summary is not None
    held = sum(row.held_now for row in summary.namespaces)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{held} GPUs, windows of {summary.window_seconds} s over {DAY / 3600:.0f} h: {spent:.1f} s of CPU, "
          f"{megabytes:.0f} MB at most, the answers included")  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
