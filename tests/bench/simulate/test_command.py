# SPDX-License-Identifier: Apache-2.0
"""`simulate`: its JSON and its table, a trace that is read, and its messages about bad input."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.values.errors import BadInput
from tests.bench.simulate.__main__ import app
from tests.bench.simulate.command import read_seeds
from tests.bench.simulate.over_time_figures import read_loads

RUN = CliRunner()
SYNTHETIC = ("--nodes", "60")
NODES = "node,cpu_milli,memory_mib,gpu,model\n0,8000,8192,2,T4\n1,8000,8192,2,G2\n"
PODS = "pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n0,1000,1024,1,1000,G2\n1,1000,1024,2,1000,G2\n"


@pytest.fixture(autouse=True)
def no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore a trace that the person who runs the tests may have."""
    monkeypatch.delenv("GPU_USHER_TRACE", raising=False)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "openb_nodes_gpu.csv").write_text(NODES, "utf-8")
    (tmp_path / "openb_pods_default.csv").write_text(PODS, "utf-8")
    return tmp_path


def run(*words: str | Path) -> Result:
    return RUN.invoke(app, [*map(str, words)], env={"COLUMNS": "100"})


def test_answer_has_a_run_for_each_workload_policy_and_seed_in_that_order() -> None:
    """F52, F61: without a trace it plays a synthetic workload, and says so."""
    words = ("--workload", "default,gpuspec33", "--policies", "fgd,random", "--seeds", "42-43", "-o", "json")

    result = run(*SYNTHETIC, *words)

    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert [(played["workload"], played["policy"], played["seed"]) for played in answer["runs"]] == [
        (workload, policy, seed)
        for workload in ("default", "gpuspec33")
        for policy in ("fgd", "random")
        for seed in (42, 43)
    ]
    marks = [set(played["allocated_percent"]) for played in answer["runs"]]
    assert all({"100"} <= points <= {"90", "95", "100", "130"} for points in marks)
    assert answer["trace"] == "synthetic, 60 nodes"


def test_table_says_mean_deviation_and_how_it_was_made() -> None:
    """F52: each table says where the pods come from, and what was known of the GPUs."""
    result = run(*SYNTHETIC, "--policies", "fgd,spread", "--seeds", "1-2")

    assert result.exit_code == 0, result.output
    for words in ("synthetic, 60 nodes", "fgd", "spread", " ± ", "per GPU", "every pod", "histogram of the workload"):
        assert words in result.stdout
    assert "managedResources" in run(*SYNTHETIC, "--policies", "fgd", "--asked", "gpu").stdout


def test_pods_come_and_go_at_each_load() -> None:
    """F52: --load plays over time, and says how pods wait."""
    words = ("--policies", "fgd,spread", "--load", "0.9-1.1", "--pods", "60")

    result = run(*SYNTHETIC, *words, "-o", "json")

    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["runs"] == []
    assert [(played["load_percent"], played["policy"]) for played in answer["over_time"]] == [
        (load, policy) for load in (90.0, 100.0, 110.0) for policy in ("fgd", "spread")
    ]
    table = run(*SYNTHETIC, *words, "--seeds", "1,2").stdout
    assert all(text in table for text in ("waiting", "wait p50", " ± ", "queue: kube-scheduler's"))


def test_trace_is_read(trace: Path) -> None:
    """F52: both pods ask for a G2, of which there is one node with two GPUs, so that some of the arrivals fail."""
    result = run("--trace", trace, "--policies", "fgd", "-o", "json")

    assert result.exit_code == 0, result.output
    (only,) = json.loads(result.stdout)["runs"]
    assert only["failed"]
    assert json.loads(result.stdout)["trace"] == str(trace)


def test_runs_are_kept_and_not_made_again(tmp_path: Path) -> None:
    """F52: `make bench-placement` continues from the runs that are there."""
    words = (*SYNTHETIC, "--policies", "fgd", "--keep", tmp_path / "runs.jsonl", "-o", "json")

    first, again = run(*words), run(*words)

    assert first.stdout == again.stdout
    assert len((tmp_path / "runs.jsonl").read_text("utf-8").splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "5-1"), "--seeds: got '5-1'"),
        (("--seeds", "x"), "--seeds: got 'x'"),
        (("--asked", "some"), "wants all or gpu"),
        (("--policies", "best"), "wants one of shipped"),
        (("--policies", "a b"), "--policies: got 'a b'"),
        (("--workload", "../x"), "--workload: got"),
        (("--workload", "other"), "without --trace, wants one of"),
        (("--nodes", "1"), "--nodes 1"),
        (("--trace", "/nowhere"), "wants a file of the openb traces"),
        (("--load", "0.8-"), "--load: got '0.8-'"),
        (("--load", "0"), "--load: got '0'"),
        (("--load", "2.1"), "up to 2"),
        (("--load", "1", "--history", "shift"), "wants no --history shift"),
        (("-o", "xml"), "wants text, json or yaml"),
    ],
)
def test_bad_input_is_said_with_the_remedy(words: tuple[str, ...], message: str) -> None:
    """F52."""
    result = run(*SYNTHETIC, "--policies", "random", *words)

    assert isinstance(result.exception, BadInput)
    assert message in str(result.exception)


def test_trace_without_times_is_refused_over_time(trace: Path) -> None:
    """F52: most workloads of the published trace have none."""
    result = run("--trace", trace, "--policies", "fgd", "--load", "1")

    assert "workload 'default' does not say how long pods with GPUs run" in str(result.exception)


def test_bad_line_of_a_trace_is_named(trace: Path) -> None:
    """F52: the message has the file and the line."""
    pods = trace / "openb_pods_default.csv"
    pods.write_text(PODS + "2,1,1,1,1500,\n", "utf-8")

    result = run("--trace", trace)

    assert f"{pods}:4: gpu_milli: got '1500'" in str(result.exception)


def test_loads_are_ranges_and_lists() -> None:
    played = read_loads("0.8-1.1,1.05,1", 10)

    assert [over_time.load for over_time in played if over_time] == [0.8, 0.9, 1.0, 1.1, 1.05]
    assert read_loads("", 10) == [None]


def test_seeds_are_ranges_and_lists() -> None:
    assert read_seeds("42-44,7,43") == [42, 43, 44, 7]
