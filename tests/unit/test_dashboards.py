"""Dashboards and rules as they are checked in: made anew, whole, and each leads to the runbook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from tree import ROOT

from grafana import runbook
from grafana.build import FOLDER, dashboards

RULES = ROOT / "grafana" / "prometheus"
PROMTOOL = shutil.which("promtool")
BOARDS = {name: json.loads(text) for name, text in dashboards().items()}
COLUMNS = 24

boards = pytest.mark.parametrize("name", BOARDS)


def alerts() -> list[dict[str, Any]]:
    text = (RULES / "rules.yml").read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def anchor(title: str) -> str:
    """The fragment of a heading in a rendered page of Markdown."""
    return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")


def panels(name: str) -> list[dict[str, Any]]:
    return [p for p in BOARDS[name]["panels"] if p["type"] not in ("row", "text")]


def test_the_files_are_what_the_code_makes() -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert there == dashboards()


@boards
def test_every_panel_says_what_it_shows_in_which_unit_and_where_to_read_on(name: str) -> None:
    known = {f"/d/sluice-runbook?viewPanel={number}" for number in runbook.anchors().values()}
    for panel in panels(name):
        defaults = panel["fieldConfig"]["defaults"]
        assert len(panel["description"].partition("\n")[0]) > len("Of each step"), panel["title"]
        assert defaults["unit"] and defaults["thresholds"]["steps"], panel["title"]
        assert {link["url"] for link in panel["links"]} <= known and panel["links"]


@boards
def test_panels_lie_on_the_grid_side_by_side(name: str) -> None:
    cells = [
        (x, y)
        for panel in BOARDS[name]["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < COLUMNS
    ids = [panel["id"] for panel in BOARDS[name]["panels"]]
    assert ids == [*range(1, len(ids) + 1)]


@boards
def test_every_query_asks_for_the_run_that_was_chosen(name: str) -> None:
    variables = {f"${one['name']}" for one in BOARDS[name]["templating"]["list"]}
    for target in (t for panel in panels(name) for t in panel["targets"]):
        used = set(re.findall(r"\$[a-z]+", target["expr"]))
        assert used <= variables, target["expr"]
        whole = re.findall(r"sluice_\w+", target["expr"])
        chosen = re.findall(r'sluice_\w+\{[^}]*run=~"\$run"', target["expr"])
        assert len(whole) == len(chosen), target["expr"]


def test_there_is_an_overview_one_for_each_service_and_one_for_the_ledger() -> None:
    services = {"prompting", "inference", "scoring", "training"}
    assert {*BOARDS} == {f"{n}.json" for n in {"overview", "ledger", "runbook", *services}}
    rows = [p["title"] for p in BOARDS["overview.json"]["panels"] if p["type"] == "row"]
    assert len(rows) == 4 and all(title.endswith("?") for title in rows)


def test_every_alert_has_a_section_of_the_runbook_which_names_it() -> None:
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    texts = {f"docs/runbook.md#{anchor(t)}": text for t, text in runbook.sections().items()}
    assert alerts()
    for rule in alerts():
        assert f"`{rule['alert']}`" in texts[rule["annotations"]["runbook"]]
        assert rule["annotations"]["summary"] and rule["labels"]["severity"]
    named = set(re.findall(r"`(Sluice\w+)`", page))
    assert named == {rule["alert"] for rule in alerts()}


def test_every_alert_is_fired_by_a_run_that_is_ill_and_spares_one_that_is_well() -> None:
    tests = yaml.safe_load((RULES / "rules_test.yml").read_text(encoding="utf-8"))["tests"]
    seen: dict[tuple[str, str], set[str]] = {}
    for test in tests:
        runs = {m for s in test["input_series"] for m in re.findall(r'run="(\w+)"', s["series"])}
        for case in test["alert_rule_test"]:
            fired = {one["exp_labels"]["run"] for one in case["exp_alerts"]}
            for one in case["exp_alerts"]:
                key = case["alertname"], one["exp_labels"].get("stage", "")
                seen.setdefault(key, set()).update(runs - fired)
    rules = {(rule["alert"], rule["labels"].get("stage", "")) for rule in alerts()}
    assert seen.keys() == rules and all(seen.values())


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not in PATH: it comes with Prometheus")
@pytest.mark.parametrize(
    "act", ["check config prometheus.yml", "check rules rules.yml", "test rules rules_test.yml"]
)
def test_promtool_finds_no_fault(act: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *act.split()], cwd=RULES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_keeps_the_run_and_instance_that_a_process_names() -> None:
    text = (RULES / "prometheus.yml").read_text(encoding="utf-8")
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert job["honor_labels"] is True
    [names] = [config["names"] for config in job["dns_sd_configs"]]
    assert names == ["prompting", "inference", "scoring", "training"]
    assert job["relabel_configs"] == [{"source_labels": ["__meta_dns_name"], "target_label": "job"}]


def test_grafana_finds_its_source_and_its_dashboards() -> None:
    folder = ROOT / "grafana" / "provisioning"
    [source] = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    uids = {p["datasource"]["uid"] for name in BOARDS for p in panels(name)}
    assert uids == {source["uid"]}
    [provider] = yaml.safe_load((folder / "dashboards/sluice.yml").read_text())["providers"]
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert f"./grafana/dashboards:{provider['options']['path']}" in compose
