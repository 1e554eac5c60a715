# SPDX-License-Identifier: Apache-2.0
"""`mutate` shows what the webhook answers, as text, as YAML for kubectl, and as JSON."""

import base64
import json
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from typer.testing import CliRunner, Result

from app.admission.preview import preview, target_of_new_object
from app.admission.review_targets import WORKLOADS
from app.admission.reviewed_pod import ReviewContext
from app.cli.verbs import app
from app.values.errors import BadInput
from tests.builders import container, gpus, make_service, node_document, pod, policy
from tests.builders import review as wrap
from tests.finished import review

RUN = CliRunner()
CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*.yaml"))


def run(file: Path, *objects: Any, more: tuple[str, ...] = ()) -> Result:
    """Write objects to a file, and run the command on it with the demo fleet."""
    file.write_text(yaml.safe_dump_all(objects), "utf-8")
    return RUN.invoke(app, ["mutate", "-f", str(file), "--demo", *more])


def request_of(document: dict[str, Any]) -> dict[str, Any]:
    """Wrap an object in the AdmissionReview of its creation."""
    kind = document.get("kind", "Pod").lower() + "s"
    group = next((group for group, resource in WORKLOADS if resource == kind), "")
    resource = {"group": group, "version": "v1", "resource": kind}
    namespace = (document.get("metadata") or {}).get("namespace") or "default"
    return wrap(document, resource=resource, namespace=namespace)


def test_preview_of_every_pod_of_the_corpus_is_what_the_webhook_answers(tmp_path: Path) -> None:
    """F85: the patch, the warnings and the refusal are the same."""
    service = make_service(tmp_path)
    documents = [yaml.safe_load(path.read_text("utf-8"))["object"] for path in CORPUS]
    reviewed = [document for document in documents if target_of_new_object(document) is not None]
    for document in reviewed:
        namespace = (document.get("metadata") or {}).get("namespace") or "default"
        answer = json.loads(review(json.dumps(request_of(document)).encode(), "mutate", service).body)["response"]
        patch = json.loads(base64.b64decode(answer.get("patch") or base64.b64encode(b"[]")))

        shown = preview(document, namespace, service.namespace_labels, ReviewContext(service.world()))

        assert (shown.allowed, list(shown.patch)) == (answer["allowed"], patch), shown.what
        assert (list(shown.warnings), shown.message) == (
            answer.get("warnings", []),
            answer.get("status", {}).get("message", ""),
        )
        assert shown.object == jsonpatch.apply_patch(document, patch)
    assert len(reviewed) > 90


def test_stdout_is_the_object_that_kubectl_takes_and_stderr_tells_what_was_done(tmp_path: Path) -> None:
    """F82, F7: a Deployment is completed too, and other kinds pass through unchanged."""
    requesting = container(requests={"nvidia.com/gpu": 2})
    other = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}}
    made |= {"spec": {"template": {"spec": {"containers": [requesting]}}}}

    result = run(tmp_path / "p.yaml", made, other, pod(requesting))

    deployment, service, single = yaml.safe_load_all(result.stdout)
    assert result.exit_code == 0
    assert deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert service == other
    assert single["spec"]["runtimeClassName"] == "nvidia"
    assert "Deployment default/d: patched" in result.stderr
    assert "  done: main: nvidia.com/gpu limits set to 2 as in requests" in result.stderr


def test_denied_object_is_not_printed_and_fails(tmp_path: Path) -> None:
    """F8."""
    result = run(tmp_path / "p.yaml", pod(gpus("500m")))

    assert (result.exit_code, result.stdout) == (1, "")
    assert "denied: gpu-usher: container main asks for a fraction of nvidia.com/gpu" in result.stderr


def test_diff_has_what_is_added_and_no_colour_in_a_file(tmp_path: Path) -> None:
    """F82."""
    result = run(tmp_path / "p.yaml", pod(), more=("--diff",))

    assert "+  runtimeClassName: nvidia" in result.stdout.splitlines()
    assert "\x1b" not in result.stdout


def test_json_has_patch_and_words_of_each_object(tmp_path: Path) -> None:
    """F82: the members of -o json are stable."""
    result = run(tmp_path / "p.yaml", pod(), pod(gpus("500m")), more=("-o", "json"))

    fine, denied = json.loads(result.stdout)["objects"]
    assert result.exit_code == 1
    assert list(fine) == ["what", "allowed", "message", "warnings", "actions", "patch", "object", "undone", "pods"]
    assert (fine["allowed"], denied["allowed"], denied["patch"]) == (True, False, [])


def test_object_whose_amount_is_a_variable_is_named(tmp_path: Path) -> None:
    """A manifest with a variable that envsubst has not replaced is bad input, not a bug."""
    broken = {**pod(gpus("${ACCELERATOR_QUANTITY}")), "metadata": {"name": "second"}}

    result = run(tmp_path / "pods.yaml", pod(gpus(1)), broken)

    message = str(result.exception)
    assert isinstance(result.exception, BadInput)
    assert message.startswith("Pod default/second: spec.containers[0].resources.requests[nvidia.com/gpu]: got '${")
    assert "a variable that nothing has been put in for" in message


@pytest.mark.parametrize("documents", [[{"kind": "Service"}], []], ids=["no workload", "nothing"])
def test_file_without_a_pod_is_bad_input(tmp_path: Path, documents: list[Any]) -> None:
    result = run(tmp_path / "p.yaml", *documents)

    assert isinstance(result.exception, BadInput)
    assert "wants one" in str(result.exception)


def test_policies_of_a_directory_decide(tmp_path: Path) -> None:
    """F82."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "p.yaml").write_text(policy("p", "action: Enforce, admission: {maxGPUsPerPod: 1}"))

    result = run(tmp_path / "p.yaml", pod(gpus(2)), more=("--policies", str(tmp_path / "policies")))

    assert result.exit_code == 1
    assert "at most 1 per pod" in result.stderr


def in_template(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


TEMPLATE = {"spec": {"restartPolicy": "Never", "containers": [gpus(1)]}}
WORKLOADS_OF_GPUS = {
    "Job": in_template("batch/v1", "Job", {"template": TEMPLATE}),
    "CronJob": in_template("batch/v1", "CronJob", {"jobTemplate": {"spec": {"template": TEMPLATE}}}),
    "Deployment": in_template("apps/v1", "Deployment", {"template": TEMPLATE}),
    "JobSet": in_template(
        "jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": [{"template": {"spec": {"template": TEMPLATE}}}]}
    ),
    "Notebook": in_template("kubeflow.org/v1", "Notebook", {"template": TEMPLATE}),
}


@pytest.mark.parametrize("kind", WORKLOADS_OF_GPUS)
def test_workload_that_stays_as_it_is_is_told_what_its_pods_get(tmp_path: Path, kind: str) -> None:
    """F82, F7: repairs are written into a template, all else into its pods."""
    result = run(tmp_path / "w.yaml", WORKLOADS_OF_GPUS[kind])

    assert f"{kind} default/w: allowed as it is, and each pod is patched when it is created" in result.stderr
    assert "  each pod: runtimeClassName set to nvidia" in result.stderr
    assert "  each pod: toleration added for nvidia.com/gpu" in result.stderr
    assert "nothing to do" not in result.stderr


def test_workload_without_gpus_has_nothing_to_do(tmp_path: Path) -> None:
    """F82."""
    other = in_template("batch/v1", "Job", {"template": {"spec": {"containers": [container()]}}})

    assert "nothing to do" in run(tmp_path / "w.yaml", other, pod()).stderr


def test_what_was_not_set_is_not_listed_as_done(tmp_path: Path) -> None:
    """F82: the cluster has no RuntimeClass."""
    (tmp_path / "n.yaml").write_text(yaml.safe_dump(node_document(offers={"nvidia.com/gpu": 8})), "utf-8")
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(pod()), "utf-8")

    said = RUN.invoke(app, ["mutate", "-f", str(tmp_path / "p.yaml"), "--snapshot", str(tmp_path / "n.yaml")]).stderr

    assert "  not done: RuntimeClass nvidia is not known to exist, runtimeClassName not set" in said
    assert "done: RuntimeClass" not in said.replace("not done", "")
