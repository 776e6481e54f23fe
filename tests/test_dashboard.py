"""The W&B dashboard: printed without an account, and created against a local stand-in of W&B's API."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

from flightning.dashboard import SECTIONS, run
from flightning.report.runs import KEYS


class StandIn(BaseHTTPRequestHandler):
    """Answer W&B's client as its server would, and keep the views that it saves."""

    views: list[dict]

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = b""
        if self.path == "/graphql":
            asked = json.loads(body)
            data = {"viewer": {"id": "1", "entity": "team", "username": "me", "flags": "{}", "teams": {"edges": []}}}
            if "upsertView" in asked["query"]:
                self.views.append(asked["variables"])
                data = {"upsertView": {"view": {"id": "Vmlldzox", "name": "abc"}, "inserted": True}}
            answer = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        """Stay silent."""


@pytest.fixture
def server():
    handler = type("Handler", (StandIn,), {"views": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.views
        server.shutdown()


def dashboard(*arguments, **environment):
    command = [sys.executable, "-m", "flightning", "dashboard", "--entity", "team", "--project", "fl", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False
    )


def test_it_is_printed_without_an_account(capsys):
    assert run(["--entity", "team", "--project", "fl", "--dry-run"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["entity"], printed["project"]) == ("team", "fl")
    names = [section["name"] for section in printed["sections"]]
    assert names == ["Accuracy", "Drift", "Communication", "Fairness", "System"]
    panels = printed["sections"][0]["panels"]
    assert [p["x"] for p in panels if p["y"] == ["val/accuracy"]] == ["round", "total/bytes", "total/seconds"]


def test_it_is_printed_without_a_place(capsys):
    assert run(["--dry-run"]) == 0
    assert "project: my-project" in capsys.readouterr().out


def test_it_is_not_created_without_a_place(capsys):
    with pytest.raises(SystemExit):
        run(["--entity", "me"])
    assert "give `--entity` and `--project`, or see it with `--dry-run`" in capsys.readouterr().err


def test_its_metrics_are_those_that_are_logged():
    shown = {m for section in SECTIONS for panel in section.panels for m in panel.metrics}
    assert {m for m in shown if m.startswith("clients/")} <= KEYS
    assert {"drift/norm", "drift/cosine", "round/bytes_up"} <= shown


def test_it_is_created(server, tmp_path):
    pytest.importorskip("wandb_workspaces", reason="the extra `dashboard` is not installed")
    address, views = server
    ended = dashboard(
        WANDB_BASE_URL=address, WANDB_API_KEY="0" * 40, WANDB_CONFIG_DIR=str(tmp_path), WANDB_ERROR_REPORTING="false"
    )
    assert ended.returncode == 0, ended.stderr
    assert f"{address}/team/fl" in ended.stdout
    (view,) = views
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("team", "fl", "flightning")
    spec = json.loads(view["spec"])
    sections = {s["name"]: s for s in spec["section"]["panelBankConfig"]["sections"]}
    assert {s.name for s in SECTIONS} <= set(sections)
    configs = [panel["config"] for panel in sections["Accuracy"]["panels"]]
    assert [c["xAxis"] for c in configs if c["metrics"] == ["val/accuracy"]] == [
        "round",
        "total/bytes",
        "total/seconds",
    ]
    grouping = json.dumps(spec["section"]["runSets"][0]["grouping"])
    assert "group" in grouping
    assert "jobType" in grouping


def test_without_account_the_remedy_is_named(tmp_path):
    pytest.importorskip("wandb_workspaces", reason="the extra `dashboard` is not installed")
    home = {"HOME": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path), "NETRC": str(tmp_path / "none")}
    ended = dashboard(WANDB_API_KEY="", WANDB_BASE_URL="http://127.0.0.1:9", **home)
    assert ended.returncode == 2
    assert "log in with `wandb login`" in ended.stderr


def test_without_the_package_the_remedy_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb_workspaces.reports.v2", None)
    assert run(["--entity", "team", "--project", "fl"]) == 2
    assert "pip install -e '.[dashboard]'" in capsys.readouterr().err
