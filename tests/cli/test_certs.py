# SPDX-License-Identifier: Apache-2.0
"""`gpu-usher certs` on files and addresses; its work in a cluster is tested in tests/e2e."""

import datetime as dt
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli.verbs import app
from app.tls.authority import KeyPair, issue_leaf
from app.tls.pem import read_bundle
from app.tls.serving_certificates import NAMES, issue_if_needed
from tests.builders import make_service
from tests.running import running

FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["certs", *words])


def shown(*words: str) -> tuple[int, dict[str, object]]:
    answer = run("show", "-o", "json", *words)
    return answer.exit_code, json.loads(answer.output)


def test_issued_certificate_is_shown_without_a_fault(tmp_path: Path) -> None:
    """See docs/reference/listeners.md#names."""
    issued = run("issue", "--certs", str(tmp_path), "--name", "usher.example")

    code, document = shown("--certs", str(tmp_path))

    assert issued.exit_code == code == 0
    assert document["problems"] == []
    assert "usher.example" in document["certificate"]["names"]  # type: ignore[index]
    assert "trusted      CN=gpu-usher CA" in issued.output


def test_issue_leaves_a_young_certificate_as_it_is(tmp_path: Path) -> None:
    run("issue", "--certs", str(tmp_path))
    before = [(tmp_path / name).read_bytes() for name in FILES]

    run("issue", "--certs", str(tmp_path))

    assert before == [(tmp_path / name).read_bytes() for name in FILES]


def test_rotation_of_files_trusts_both_before_the_new_one_signs(tmp_path: Path) -> None:
    """TLS-06."""
    run("issue", "--certs", str(tmp_path))
    leaf, old = (tmp_path / "tls.crt").read_bytes(), (tmp_path / "ca.crt").read_bytes()

    answer = run("rotate", "--certs", str(tmp_path))

    bundle = read_bundle((tmp_path / "ca.crt").read_bytes())
    assert answer.exit_code == 0
    assert (2, old) == (len(bundle), bundle[1])
    assert leaf == (tmp_path / "tls.crt").read_bytes()
    assert shown("--certs", str(tmp_path))[0] == 0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("expired", "not now"),
        ("another key", "the key is not the certificate's"),
        ("another ca", "none of the 1 CAs that clients trust signed it"),
        ("another name", "it has usher.example"),
    ],
)
def test_what_is_wrong_is_said_and_is_exit_code_1(tmp_path: Path, damage: str, words: str) -> None:
    now = dt.datetime.now(dt.UTC)
    issue_if_needed(tmp_path / "a", now - dt.timedelta(days=8 if damage == "expired" else 0))
    issue_if_needed(tmp_path / "b", now)
    if damage.startswith("another "):
        name = {"another key": "tls.key", "another ca": "ca.crt"}.get(damage)
        if name:
            shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    if damage == "another name":
        other = issue_leaf(
            KeyPair(*((tmp_path / "a" / name).read_bytes() for name in FILES[:2])), ["usher.example"], now
        )
        # an operator's own pair, since gpu-usher would replace its own bad certificate at once
        service = make_service(tmp_path / "a", cert=tmp_path / "a" / "tls.crt", key=tmp_path / "a" / "tls.key")
        (tmp_path / "a" / "tls.crt").write_bytes(other.certificate)
        (tmp_path / "a" / "tls.key").write_bytes(other.key)
        service.certificates.renew(now)
        with running(service) as clients:
            code, document = shown("--url", str(clients.tls.base_url), "--ca", str(tmp_path / "a" / "ca.crt"))
    else:
        code, document = shown("--certs", str(tmp_path / "a"))

    assert code == 1
    assert words in str(document["problems"])


def test_certificate_of_a_live_address_is_shown(tmp_path: Path) -> None:
    service = make_service(tmp_path)
    with running(service) as clients:
        code, document = shown("--url", str(clients.tls.base_url), "--ca", str(tmp_path / "ca.crt"))

    assert (0, sorted(NAMES)) == (code, document["certificate"]["names"])  # type: ignore[index]


@pytest.mark.parametrize(
    "words",
    [("--certs", "nowhere"), ("--url", "http://127.0.0.1:1"), ("--url", "https://127.0.0.1:1"), ("--url", "https://")],
    ids=["no folder", "no https", "nobody there", "no host"],
)
def test_nothing_to_show_is_bad_input(words: tuple[str, ...]) -> None:
    answer = run("show", *words)

    assert answer.exit_code != 0
    assert type(answer.exception).__name__ == "BadInput"
