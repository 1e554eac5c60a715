# SPDX-License-Identifier: Apache-2.0
"""`make sbom` and `make audit` with the real tools: with a database on loopback, one that fails, and none."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.audit import CLEAN, NOT_ASKED, VULNERABLE, audit
from tests.controlplane.processes import free_port
from tests.vex import statements_of, vex

ROOT = Path(__file__).parent.parent
TOOL_SECONDS = 120
"""Seconds for a tool, each of which takes about two."""
LOCK = "msgspec==0.19.0 --hash=sha256:" + "0" * 64 + "\nuvloop==0.21.0 --hash=sha256:" + "1" * 64 + "\n"


@contextmanager
def database(vulnerable: str = "", status: int = 200) -> Iterator[str]:
    """Serve OSV's API (https://google.github.io/osv.dev/post-v1-query/) on loopback, and yield its URL."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["package"]["name"]
            events = [{"introduced": "0"}, {"fixed": "99.1"}]
            affected = {
                "package": {"name": name, "ecosystem": "PyPI"},
                "ranges": [{"type": "ECOSYSTEM", "events": events}],
            }
            answer = {"vulns": [{"id": "PYSEC-0000-1", "summary": "It leaks.", "affected": [affected]}]}
            body = json.dumps(answer if name == vulnerable else {}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            """Say nothing."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of two packages; no proxy is between the tool and loopback."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    path = tmp_path / "some.lock"
    path.write_text(LOCK, "utf-8")
    return path


def test_audit_of_packages_without_known_vulnerabilities_is_clean(
    lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has the number of packages."""
    with database() as url:
        assert audit(lock, url) == CLEAN

    assert "2 packages, 0 known vulnerabilities" in capsys.readouterr().out


def test_audit_names_what_is_vulnerable_and_what_fixes_it(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output has the identifier of the database."""
    with database("uvloop") as url:
        assert audit(lock, url) == VULNERABLE

    assert "uvloop 0.21.0: PYSEC-0000-1, fixed in 99.1: It leaks." in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["no such name", "error 503"])
def test_audit_that_cannot_reach_its_database_says_so(
    lock: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a network nothing is known, which does not mean that there is no vulnerability."""
    with database(status=503) as down:
        url = {
            "no such name": "http://osv.invalid/",
            "error 503": down,
        }[fault]
        code = audit(lock, url)

    printed = capsys.readouterr()
    assert code == NOT_ASKED
    assert printed.out == ""
    assert printed.err.startswith(f"not audited: {url} gave no answer: ")
    assert "Traceback" not in printed.err


def test_finding_is_an_openvex_statement_under_investigation(lock: Path, tmp_path: Path) -> None:
    """The members are those that OpenVEX 0.2.0 requires."""
    target = tmp_path / "build" / "openvex.json"
    with database("uvloop") as url:
        code = vex(lock, target, url)

    written = json.loads(target.read_text("utf-8"))
    (statement,) = written["statements"]
    assert code == VULNERABLE
    assert {"@context", "@id", "author", "timestamp", "version"} <= written.keys()
    assert (statement["vulnerability"]["name"], statement["status"]) == ("PYSEC-0000-1", "under_investigation")
    assert statement["products"][0]["subcomponents"] == [{"@id": "pkg:pypi/uvloop@0.21.0"}]


def test_without_findings_there_is_no_openvex_document(lock: Path, tmp_path: Path) -> None:
    """OpenVEX wants at least one statement; the document of a former run would be wrong now."""
    target = tmp_path / "openvex.json"
    target.write_text("{}", "utf-8")
    with database() as url:
        code = vex(lock, target, url)

    assert (code, target.exists()) == (CLEAN, False)


@pytest.mark.parametrize(
    ("assessment", "expected"),
    [
        (
            {"status": "not_affected", "justification": "vulnerable_code_not_in_execute_path", "why": "never called"},
            {
                "status": "not_affected",
                "justification": "vulnerable_code_not_in_execute_path",
                "status_notes": "never called",
            },
        ),
        ({"status": "affected", "action": "upgrade to 0.1.1"},
         {"status": "affected", "action_statement": "upgrade to 0.1.1"}),
    ],
    ids=["not affected", "affected"],
)  # fmt: skip
def test_assessment_of_a_finding_is_its_statement(assessment: dict[str, str], expected: dict[str, str]) -> None:
    """An assessment is found by any name of the vulnerability."""
    package = {"name": "uvloop", "version": "0.21.0", "vulns": [{"id": "PYSEC-0000-1", "aliases": ["CVE-0000-1"]}]}

    row = {"vulnerability": "CVE-0000-1", "package": "uvloop", **assessment}
    (statement,) = statements_of([package], [row])

    assert expected.items() <= statement.items()
    assert statement["vulnerability"] == {"name": "PYSEC-0000-1", "aliases": ["CVE-0000-1"]}


@pytest.mark.filterwarnings("ignore")
def test_bill_of_materials_lists_what_the_lock_pins_and_needs_no_network(tmp_path: Path) -> None:
    """This is the Makefile's command, with a proxy that does not exist; the tool validates by CycloneDX' schema."""
    target = (ROOT / "Makefile").read_text("utf-8").partition("\nsbom:")[2].partition("\n\n")[0]
    line = next(command for command in target.replace("\\\n", " ").splitlines() if "cyclonedx_py" in command)
    words = line.strip().lstrip("@").replace("$(LOCK)", "requirements.lock").split()[1:]
    words[words.index("build/sbom.cdx.json")] = str(tmp_path / "sbom.json")
    nowhere = f"http://127.0.0.1:{free_port()}"

    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False,
        env={"http_proxy": nowhere, "https_proxy": nowhere, "PATH": ""},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "sbom.json").read_text("utf-8"))
    lines = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    pinned = {pin.split(" ")[0].split(";")[0] for pin in lines if "==" in pin and pin[0].isalnum()}
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["component"]["name"] == "gpu-usher"
    assert {f"{component['name']}=={component['version']}" for component in document["components"]} == pinned
    assert all(component["externalReferences"][0]["hashes"] for component in document["components"])
