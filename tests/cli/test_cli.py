# SPDX-License-Identifier: Apache-2.0
"""The command line as a person uses it: output, errors with a remedy, and exit codes."""

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.main import main
from app.cli.serve import authority
from app.cli.verbs import app
from app.cluster.files import shipped_policies
from app.demo.sample_fleets import demo_fleet
from app.server.composition import build
from app.settings import Settings
from app.values.errors import PolicyError
from tests.builders import policy

RUN = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(shipped_policies(), tmp_path / "policies")
    return tmp_path / "policies"


LINT = [
    ("misspelt product", policy("x", "placement: {products: {allow: [H10O]}}"), "4:39: ", "did you mean H100?"),
    ("unknown field", policy("x", "placement: {produts: {}}"), "4:20: ", "did you mean products?"),
    ("tie", policy("x", "admission: {runtimeClassName: other}"), "3:12: ", "give one a higher priority"),
    ("ambiguous scalar", policy("x", "description: on"), "4:21: ", 'quote it: "on"'),
    ("duplicate key", policy("x", "priority: 1, priority: 2"), "4:21: ", "given twice, remove one"),
    ("alias bomb", "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "1:4: ", "aliases are refused, write the value out"),
    ("number for a string", policy("x", "placement: {cuda: {minimum: 12.10}}"), "4:27: ", 'quote it: "12.10"'),
    ("broken YAML", "a: [", "2:1: ", "not YAML"),
]


@pytest.mark.parametrize(("text", "place", "remedy"), [row[1:] for row in LINT], ids=[row[0] for row in LINT])
def test_lint_says_each_mistake_on_one_line_with_its_place_and_a_remedy(
    folder: Path, text: str, place: str, remedy: str
) -> None:
    """F75, F79, P3, fault 13."""
    (folder / "x.yaml").write_text(text, "utf-8")

    result = RUN.invoke(app, ["policy", "lint", str(folder)])

    finding, summary = result.output.splitlines()
    assert result.exit_code == 1
    assert finding.startswith(f"x.yaml:{place}")
    assert remedy in finding
    assert summary.endswith(": 1 finding")


def test_lint_of_the_shipped_policies_finds_nothing() -> None:
    result = RUN.invoke(app, ["policy", "lint"])

    assert (result.exit_code, result.output.splitlines()[-1].endswith("no findings")) == (0, True)


def test_lint_warns_of_a_product_that_may_be_new_and_fails_on_what_cannot_be_meant(folder: Path) -> None:
    """F79."""
    (folder / "x.yaml").write_text(policy("x", "priority: 77, placement: {products: {deny: [L5]}}"), "utf-8")
    warned = RUN.invoke(app, ["policy", "lint", str(folder)])
    (folder / "x.yaml").write_text(policy("x", "priority: 77, placement: {gpuMemory: 900Gi}"), "utf-8")
    failed = RUN.invoke(app, ["policy", "lint", str(folder)])

    assert (warned.exit_code, failed.exit_code) == (0, 1)
    assert "warning: x.yaml:4:" in warned.output
    assert "no known product is called L5" in warned.output
    assert "got 900Gi, which is more than any known GPU has" in failed.output


def test_lint_reads_one_file(folder: Path) -> None:
    """F75: an author checks the file that he edits, beside others that he does not."""
    (folder / "x.yaml").write_text(policy("x", "placement: {produts: {}}"), "utf-8")

    wrong, right = (RUN.invoke(app, ["policy", "lint", str(folder / name)]) for name in ("x.yaml", "default.yaml"))

    assert (wrong.exit_code, right.exit_code) == (1, 0)
    assert wrong.output.endswith("1 policy file, 0 cases: 1 finding\n")


def test_lint_reads_cases_too(folder: Path) -> None:
    (folder / "cases" / "odd.yaml").write_text("pod: {}\nexpect: {refused: {n1: NoSuchCode}}\n", "utf-8")

    result = RUN.invoke(app, ["policy", "lint", str(folder)])

    assert result.exit_code == 1
    assert "odd.yaml:2:20: expect.refused.n1: no such reason code 'NoSuchCode', wants one of" in result.output


def test_test_runs_the_cases_and_names_rules_that_none_is_for(folder: Path) -> None:
    """F77."""
    (folder / "more.yaml").write_text(
        policy("more", "match: {podSelector: {matchLabels: {a: b}}}, placement: {gpuMemory: 1Gi}"), "utf-8"
    )

    result = RUN.invoke(app, ["policy", "test", str(folder)])

    assert result.exit_code == 0, result.output
    assert "holds  training packs before it opens an idle node" in result.output
    assert "no case is for: more.gpuMemory" in result.output


def test_failing_case_says_what_it_got_and_fails_the_run(folder: Path) -> None:
    """F77: the difference is shown as text and as JUnit XML."""
    case = folder / "cases" / "training-packs-before-it-opens-an-idle-node.yaml"
    case.write_text(case.read_text("utf-8").replace("best: half-full", "best: idle"), "utf-8")

    text, junit, plain = (
        RUN.invoke(app, ["policy", "test", str(folder), "-o", kind]) for kind in ("text", "junit", "json")
    )

    suite = ElementTree.fromstring(junit.output)
    assert [text.exit_code, junit.exit_code, plain.exit_code] == [1, 1, 1]
    assert "best: got half-full, wants idle" in text.output
    assert suite.attrib["failures"] == "1"
    assert len(suite) == int(suite.attrib["tests"])
    assert sum(map(bool, json.loads(plain.output)["cases"].values())) == 1


def test_schema_is_what_editors_get() -> None:
    assert json.loads(RUN.invoke(app, ["schema"]).output)["title"] == "GPUPolicy"


def test_schema_is_also_what_clusters_get() -> None:
    """F131."""
    result = RUN.invoke(app, ["schema", "--crd"])

    assert yaml.safe_load(result.output)["metadata"]["name"] == "gpupolicies.gpu-usher.io"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["serve", "--kubeconfig", "absent"],
            "kubeconfig absent: No such file or directory; wants a cluster to follow",
        ),
        (["serve", "--demo", "--role", "boss"], "--role: got 'boss', wants all or admission or extender"),
        (["serve", "--demo", "--cert", "x"], "wants both or none"),
        (["serve", "--demo", "--shortlist", "0"], "wants at least 1"),
        (["serve", "--demo", "--filter-answer", "best"], "with `serve --shortlist 1` for one node"),
        (
            ["serve", "--scheduler-address", "127.0.0.1:0", "--client-ca", "ca.crt", "--client-subject", "scheduler"],
            "plain HTTP has no client certificates",
        ),
        (["serve", "--demo", "--role", "[bold]x[/]"], "--role: got '[bold]x[/]', wants all"),
        (["serve", "--demo", "--demo-fleet", "moon"], "demo fleet: got 'moon', wants one of aks, dgx, dra, edge, eks"),
        (["serve", "--demo", "--prometheus", "http://p", "--dcgm-exporters", "http://e"], "wants one of them"),
        (["serve", "--snapshot", "/no/such/file"], "wants a file from kubectl get -o json"),
        (["serve", "--demo", "--policies", "/no/such/folder"], "wants a directory of policy files"),
        (["policy", "test", "-o", "xml"], "wants text, json, yaml or junit"),
    ],
)
def test_bad_input_is_one_line_with_a_remedy_and_exit_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu-usher", *arguments])
    monkeypatch.setenv("GPU_USHER_CERTS", str(tmp_path))

    with pytest.raises(SystemExit) as raised:
        main()

    assert raised.value.code == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_policies_that_cannot_be_read_are_no_start_of_a_sample_fleet(tmp_path: Path) -> None:
    """F76, CFG-03: a person reads it at the terminal; a replica in a cluster starts all the same."""
    (tmp_path / "broken.yaml").write_text(policy("broken", "placement: {produts: {}}"), "utf-8")

    with pytest.raises(PolicyError, match=r"broken\.yaml:4:20: spec\.placement\.produts: unknown field, did you mean"):
        build(Settings(demo=True, policies=tmp_path, certs=tmp_path / "certs"))


def test_snapshot_serves_the_cluster_of_the_file(tmp_path: Path) -> None:
    """F86."""
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"kind": "List", "items": demo_fleet()}), "utf-8")

    service = build(Settings(snapshots=(file,), certs=tmp_path / "certs"))

    assert len(service.nodes) == 23
    assert service.settings.recounting
    assert service.health()["ready"]
    assert service.absent == ()


def test_kinds_that_a_snapshot_lacks_are_named(tmp_path: Path) -> None:
    """See docs/reference/listeners.md#snapshots."""
    file = tmp_path / "nodes.json"
    file.write_text(
        json.dumps({"kind": "List", "items": [document for document in demo_fleet() if document["kind"] == "Node"]}),
        "utf-8",
    )

    assert build(Settings(snapshots=(file,), certs=tmp_path / "certs")).absent == ("Namespace", "RuntimeClass")


@pytest.mark.parametrize(
    ("host", "shown"), [("::", "[::]:8443"), ("::1", "[::1]:8443"), ("0.0.0.0", "0.0.0.0:8443"), ("h", "h:8443")]
)
def test_address_is_written_as_urls_have_it(host: str, shown: str) -> None:
    """An IPv6 address without brackets would run into the port: https://:::8443."""
    assert authority((host, 8443)) == shown
