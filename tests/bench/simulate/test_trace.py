# SPDX-License-Identifier: Apache-2.0
"""Traces and arrivals: what the CSV files mean, their mistakes with places, and the order in which pods arrive."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.values.errors import BadInput
from tests.bench.simulate.trace import (
    SHAPES,
    Machine,
    Task,
    draw_arrivals,
    read_durations,
    read_machines,
    read_tasks,
    shift_arrivals,
    synthetic,
)

NODES = "node,cpu_milli,memory_mib,gpu,model\n0000,64000,262144,2,P100\n0001,96000,393216,8,G2\n"
PODS = """pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time
0001,6000,12288,1,460,V100M16|V100M32|V100M32,427061
0000,12000,16384,8,1000,,
0002,1000,1024,0,0,,
"""
ONE, SHARE, EIGHT, CPU = (Task(1000, 1024, 1, 1000), Task(1000, 1024, 1, 400), Task(1, 1, 8, 1000), Task(1, 1, 0, 0))


def test_machines_and_tasks_are_read_with_the_labels_that_feature_discovery_writes() -> None:
    """F52, F61: pods are sorted by name; a GPU model that the trace does not disclose counts as a product of its
    own."""
    assert read_machines(NODES, "n.csv") == (
        Machine("node-0000", 64000, 262144, 2, "Tesla-P100-PCIE-16GB"),
        Machine("node-0001", 96000, 393216, 8, "G2"),
    )
    volta = ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB")
    assert read_tasks(PODS, "p.csv") == (
        Task(12000, 16384, 8, 1000),
        Task(6000, 12288, 1, 460, volta),
        Task(1000, 1024, 0, 0),
    )


def test_durations_are_from_the_start_of_a_pod_to_its_end() -> None:
    """F52: sorted as the pods are; a pod that never started has none, nor has any of a file without times."""
    header = "pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"

    assert read_durations(header + "2,1,1,1,1000,,5,30,10\n1,1,1,1,1000,,5,30,\n0,1,1,0,0,,5,8,9\n", "p") == (0, 0, 20)
    assert read_durations(PODS, "p.csv") == (0, 0, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "p.csv:1: no column pod", id="empty"),
        pytest.param("pod,cpu_milli\n", "p.csv:1: no column memory_mib, num_gpu, gpu_milli, gpu_spec", id="columns"),
        pytest.param(PODS + "0003,x,1,0,0,,\n", "p.csv:5: cpu_milli: got 'x'", id="no number"),
        pytest.param(PODS + "0003,1,1,1,-5,,\n", "p.csv:5: gpu_milli: got '-5'", id="negative"),
        pytest.param(PODS + "0003,1,1,1,1001,,\n", "p.csv:5: gpu_milli: got '1001'", id="more than a GPU"),
        pytest.param(PODS + "0003,1,1,1,0,,\n", "p.csv:5: gpu_milli: got '0'", id="no share"),
        pytest.param(PODS + "0003,1,1,2,500,,\n", "p.csv:5: gpu_milli: got 500 of each of 2", id="shares of several"),
        pytest.param(PODS + "0003,1,1\n", "p.csv:5: wants 7 columns", id="short"),
        pytest.param(PODS + "0003,1,1,0,0,,,,\n", "p.csv:5: wants 7 columns", id="long"),
        pytest.param(PODS + "0003,²,1,0,0,,\n", "p.csv:5: cpu_milli", id="another alphabet"),
        pytest.param(PODS + '0003,"1', "p.csv:5: no CSV", id="open quote"),
        pytest.param(PODS.splitlines()[0] + "\n0,1,1,0,0,,\n", "p.csv: no pod asks for a GPU", id="no GPU"),
    ],
)
def test_what_is_wrong_in_a_trace_is_said_with_its_line(text: str, message: str) -> None:
    """F52: bad input raises BadInput with the remedy."""
    with pytest.raises(BadInput, match=f"^{message}".replace("(", r"\(")):
        read_tasks(text, "p.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NODES + "0000,1,1,1,T4\n", "two nodes of one name"),
        (NODES.splitlines()[0] + "\n0,1,1,0,\n", "no node has a GPU"),
        (NODES + "0002,0,1,1,T4\n", "n.csv:4: cpu_milli"),
        (NODES + "0002,1,1,65,T4\n", "n.csv:4: gpu: got '65'"),
    ],
)
def test_what_is_wrong_of_machines_is_said(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_machines(text, "n.csv")


@given(
    st.lists(st.sampled_from([ONE, SHARE, EIGHT, CPU]), min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 9)
)
def test_every_pod_comes_once_and_then_more_until_130_percent(tasks: list[Task], gpus: int, seed: int) -> None:
    """F52: the published experiment, step by step with the same random numbers."""
    tasks = [*tasks, ONE]
    order = draw_arrivals(tasks, gpus * 1000, seed)

    rng = Random(seed)
    expected = list(range(len(tasks)))
    rng.shuffle(expected)
    target, demanded = gpus * 1300, sum(task.gpus * task.gpu_milli for task in tasks)
    too_much = demanded > target
    while demanded > target:
        demanded -= tasks[expected.pop(rng.randrange(len(expected)))].milli
    while not too_much:
        drawn = rng.randrange(len(tasks))
        if demanded + tasks[drawn].gpu_milli > target:
            break
        demanded += tasks[drawn].milli
        expected.append(drawn)
    assert tuple(expected) == order
    assert demanded <= target + 7000


def test_draw_of_eight_gpus_may_overshoot_by_seven() -> None:
    """F52: the draw ends by its thousandths of a GPU, as in the published simulator."""
    order = draw_arrivals(
        [EIGHT], 8000, 1
    )  # the target is 10,400: one pod arrives, one more fits by its first GPU, and the third does not

    assert order == (0, 0)


def test_arrivals_differ_by_seed_and_not_by_run() -> None:
    """F52."""
    trace = synthetic("default", 20)
    one, again, other = (draw_arrivals(trace.tasks, trace.capacity_milli, seed) for seed in (42, 42, 43))

    assert one == again != other


def test_workload_that_shifts_is_the_same_pods_with_small_ones_early() -> None:
    """F52: this is the option --history shift."""
    trace = synthetic("default", 50)
    order = draw_arrivals(trace.tasks, trace.capacity_milli, 42)

    shifted = shift_arrivals(order, trace.tasks, 42)

    assert Counter(order) == Counter(shifted)
    small = [trace.tasks[index].milli < 1000 for index in shifted]
    half = len(small) // 2
    assert sum(small[:half]) > 2 * sum(small[half:])


@pytest.mark.parametrize("workload", SHAPES)
def test_synthetic_workload_has_the_shape_of_its_name(workload: str) -> None:
    """F52: the kinds' shares are within some percent, and the pods ask for 98 % of the GPUs."""
    trace, shape = synthetic(workload, 300), SHAPES[workload]

    with_gpu = [task for task in trace.tasks if task.gpus]
    parts = {
        "without": 1 - len(with_gpu) / len(trace.tasks),
        "share": sum(task.gpu_milli < 1000 for task in with_gpu) / len(trace.tasks),
        "several": sum(task.gpus > 1 for task in with_gpu) / len(trace.tasks),
        "bound": sum(bool(task.products) for task in with_gpu) / len(with_gpu),
    }
    for name, part in parts.items():
        assert getattr(shape, name) / 1000 == pytest.approx(part, abs=0.05)
    demanded = sum(task.milli for task in trace.tasks)
    assert 0.98 * trace.capacity_milli <= demanded <= 0.98 * trace.capacity_milli + 8000
    assert len(trace.machines) == 300


def test_synthetic_workload_without_a_shape_is_refused() -> None:
    with pytest.raises(BadInput, match="wants one of default, gpuspec33"):
        synthetic("nothing")
    with pytest.raises(BadInput, match="--nodes 3"):
        synthetic("default", 3)
