# SPDX-License-Identifier: Apache-2.0
"""Whatever a person can type wrongly is one line with a remedy and exit code 2 or 3, whatever the verb."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from app.cli.main import main
from app.cli.verbs import app
from app.cluster.kubeconfig import credentials, find_cluster
from app.values.errors import ApiError, BadInput
from tests.builders import gpus, pod

RUN = CliRunner()
VERBS = (
    ("doctor",),
    ("inventory",),
    ("explain", "pod/x"),
    ("mutate", "-f", "pod.yaml"),
    ("policy", "diff", "policies", "policies"),
    ("scheduler-config",),
    ("usage", "--prometheus", "http://127.0.0.1:1"),
    ("plan", "claim-templates"),
    ("plan", "driver", "--to", "580.65.06"),
    ("plan", "claims"),
    ("plan", "repack"),
    ("plan", "mig"),
    ("certs", "rotate"),
    ("certs", "show", "--secret", "x"),
    ("claims-controller",),
)
"""Every verb that reads a cluster and ends by itself, and the controllers, which check the kubeconfig first."""


def kubeconfig(**changes: object) -> dict[str, object]:
    """Write a kubeconfig for a server that nobody runs, with other members."""
    document: dict[str, object] = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "main",
    }
    return document | changes


KUBECONFIGS: dict[str, tuple[object, str]] = {
    "not YAML": ("not: [yaml", "bad.kc:2:1: not YAML"),
    "a tab": ("a: 1\n\tb: 2\n", "bad.kc:2:1: not YAML: a tab, indent with spaces"),
    "empty": ("", "bad.kc: the file is empty"),
    "a list": ("[1, 2]", "is a list, wants a kubeconfig"),
    "a Pod": (pod(), "is a Pod, wants a kubeconfig"),
    "no current context": (kubeconfig(**{"current-context": ""}), "give --context NAME, of main"),
    "a context that is not there": (kubeconfig(**{"current-context": "mian"}), "did you mean main?"),
    "a context without cluster": (kubeconfig(contexts=[{"name": "main", "context": {}}]), "names no cluster"),
    "a cluster that is not there": (kubeconfig(clusters=[]), "cluster c is not in kubeconfig"),
    "a user that is not there": (kubeconfig(users=None), "user u is not in kubeconfig"),
    "no server": (kubeconfig(clusters=[{"name": "c", "cluster": None}]), "server is None, wants a URL"),
    "a server without scheme": (kubeconfig(clusters=[{"name": "c", "cluster": {"server": "x:1"}}]), "wants a URL"),
    "entries without names": (kubeconfig(users=["u"]), "users: wants a list of entries with a name"),
    "a plugin that is not there": (
        kubeconfig(users=[{"name": "u", "user": {"exec": {"command": "no-such-plugin"}}}]),
        "the credential plugin no-such-plugin is not on PATH",
    ),
    "data that is not base64": (
        kubeconfig(users=[{"name": "u", "user": {"client-certificate-data": "%"}}]),
        "client-certificate-data is not base64",
    ),
    "groups without a user": (
        kubeconfig(users=[{"name": "u", "user": {"as-groups": ["g"]}}]),
        "without as: name the user to act as",
    ),
    "a name that no header holds": (
        kubeconfig(users=[{"name": "u", "user": {"as": "a\nb"}}]),
        "an HTTP header can hold",
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod(gpus(1))), "utf-8")
    (tmp_path / "policies").mkdir()
    (tmp_path / "list.yaml").write_text("kind: List\nitems: []\n", "utf-8")
    (tmp_path / "empty.yaml").write_text("", "utf-8")
    (tmp_path / "tab.yaml").write_text("kind: Pod\nmetadata:\n\tname: x\n", "utf-8")
    (tmp_path / "broken.json").write_text('{"kind":\n"List",, }', "utf-8")
    (tmp_path / "service.yaml").write_text("kind: Service\nmetadata: {name: x}\n", "utf-8")
    (tmp_path / "good.kc").write_text(yaml.safe_dump(kubeconfig()), "utf-8")
    return tmp_path


def refusal(*words: str) -> BadInput | ApiError:
    result = RUN.invoke(app, list(words))
    assert isinstance(result.exception, BadInput | ApiError), (words, result.output, result.exception)
    assert "\n" not in str(result.exception)
    return result.exception


@pytest.mark.parametrize("name", KUBECONFIGS)
def test_wrong_kubeconfig_is_one_line_for_every_verb(name: str, folder: Path) -> None:
    """F82."""
    document, words = KUBECONFIGS[name]
    text = document if isinstance(document, str) else yaml.safe_dump(document)
    (folder / "bad.kc").write_text(text, "utf-8")

    errors = [refusal(*verb, "--kubeconfig", "bad.kc") for verb in VERBS]

    assert {type(error) for error in errors} <= {BadInput}
    assert [error for error in errors if words not in str(error)] == []


@pytest.mark.usefixtures("folder")
def test_context_is_taken_by_every_verb_and_a_wrong_one_is_named() -> None:
    """F82."""
    errors = [refusal(*verb, "--kubeconfig", "good.kc", "--context", "mainn") for verb in VERBS]

    assert {str(error) for error in errors} == {"context mainn is not in kubeconfig good.kc, did you mean main?"}


@pytest.mark.usefixtures("folder")
def test_server_that_does_not_answer_is_named_with_its_context() -> None:
    """F82: the exit code is 3, as for everything that is not the caller's fault."""
    verbs = [verb for verb in VERBS if not verb[-1].endswith("controller")]

    errors = [refusal(*verb, "--kubeconfig", "good.kc") for verb in verbs]

    assert {type(error) for error in errors} == {ApiError}
    beginning = "API server http://127.0.0.1:1 (context main of good.kc) does not answer: "
    assert [error for error in errors if not str(error).startswith(beginning)] == []
    assert [error for error in errors if "refused" not in str(error)] == []


SNAPSHOTS = {
    "missing.json": "No such file or directory",
    "policies": "Is a directory",
    "empty.yaml": "no ",
    "list.yaml": "no ",
    "tab.yaml": "tab.yaml:3:1: not YAML: a tab, indent with spaces",
    "broken.json": "broken.json:2:8: not JSON",
    "service.yaml": "",
}


@pytest.mark.parametrize("file", SNAPSHOTS)
@pytest.mark.parametrize(
    "verb", [("doctor",), ("inventory",), ("explain", "pod/x"), ("mutate", "-f", "pod.yaml")], ids=str
)
@pytest.mark.usefixtures("folder")
def test_wrong_snapshot_is_one_line(verb: tuple[str, ...], file: str) -> None:
    """F86: no node in a file is no healthy fleet."""
    error = refusal(*verb, "--snapshot", file)

    assert SNAPSHOTS[file] in str(error)
    assert file in str(error)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor", "--demo", "--snapshot", "x"], "got --demo-fleet and --snapshot, wants one of them"),
        (["inventory", "--snapshot", "x", "--kubeconfig", "y"], "got --snapshot and --kubeconfig"),
        (["mutate", "-f", "pod.yaml", "--demo", "--context", "y"], "got --demo-fleet and --context"),
        (["serve", "--demo", "--snapshot", "x"], "got --demo and --snapshot"),
        (["certs", "rotate", "--certs", "x", "--context", "y"], "got --certs and --kubeconfig or --context"),
        (["certs", "show", "--url", "https://x", "--secret", "y"], "got --secret and --url"),
        (["scheduler-config", "--ca", "nope.crt"], "--ca nope.crt: No such file"),
        (["scheduler-config", "--verify", "x", "--ca", "y"], "got --verify and --ca"),
        (["usage", "--snapshot", "list.yaml"], "no object in it"),
        (["usage"], "wants --prometheus URL"),
        (["explain", "pod/x", "--url", "http://x", "--demo"], "got --url and another fleet"),
        (["explain", "deploymnt", "x", "--demo"], "unknown type deploymnt, did you mean deployment?"),
        (["explain", "node/x", "--demo"], "takes a pod or a workload"),
        (["explain", "-f", "service.yaml", "--demo"], "no Pod and no workload in it (Service)"),
        (["explain", "distil", "-n", "language", "--demo-fleet", "weekday"], "did you mean language/distill?"),
        (
            ["explain", "distill", "--demo-fleet", "weekday"],
            "pod default/distill not found, did you mean language/distill?",
        ),
        (["mutate", "-f", "nope.yaml", "--demo"], "nope.yaml: No such file or directory: wants YAML or JSON"),
        (
            ["policy", "diff", "nodir", "policies", "--demo"],
            "nodir: No such file or directory: wants a directory of policies",
        ),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
@pytest.mark.usefixtures("folder")
def test_wrong_words_are_refused_in_one_line(words: list[str], message: str) -> None:
    """F82."""
    assert message in str(refusal(*words))


def test_no_pod_is_proposed_that_has_only_letters_in_common() -> None:
    """F82."""
    assert str(refusal("explain", "nosuch", "--demo-fleet", "weekday")) == "pod default/nosuch not found"


def test_wrong_option_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """F82."""
    monkeypatch.setattr("sys.argv", ["gpu-usher", "doctor", "--contxt", "x"])

    with pytest.raises(SystemExit) as raised:
        main()

    (line,) = capsys.readouterr().err.splitlines()
    assert raised.value.code == 2
    assert "No such option: --contxt" in line
    assert "see gpu-usher doctor --help" in line


INTERRUPTED_IMPORT = """
import os, signal, sys
from app.cli.main import main
class Interrupt:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
sys.argv = ["gpu-usher", "explain", "language/distill", "--demo-fleet", "weekday"]
main()
"""


@pytest.mark.parametrize("module", ["app.values.errors", "typer", "app.cli.verbs", "app.cli.explain", "pydantic"])
def test_interrupt_while_modules_are_imported_is_silent(module: str) -> None:
    """F82: the exit code is that of a shell, without a traceback."""
    command = [sys.executable, "-c", INTERRUPTED_IMPORT.replace("sys.argv[1]", repr(module))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_user_of_a_kubeconfig_acts_as_another(tmp_path: Path) -> None:
    """F82: `as` and what belongs to it are headers of each request, as kubectl sends them."""
    acts = {"as": "tina", "as-uid": "7", "as-groups": ["dev", "ml"], "as-user-extra": {"Team/a": ["x", "y"]}}
    file = tmp_path / "config"
    file.write_text(json.dumps({
        "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "secret", **acts}}],
    }), "utf-8")  # fmt: skip

    headers = credentials(find_cluster(file, None)())

    assert headers == (
        ("authorization", "Bearer secret"),
        ("Impersonate-User", "tina"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "dev"),
        ("Impersonate-Group", "ml"),
        ("Impersonate-Extra-team%2Fa", "x"),
        ("Impersonate-Extra-team%2Fa", "y"),
    )
