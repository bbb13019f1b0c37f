from __future__ import annotations

import subprocess
import sys

import pytest

from r2v.errors import InputError
from r2v.evaluation.tables.columns import COLUMNS, GLOSSARY
from r2v.evaluation.tables.files import BUNDLE, cell, csv_text, render, round_figures, write_results
from r2v.utils.results import ResultsManager


def main_row(method="r2v", **figures):
    empty = dict.fromkeys((*COLUMNS["main_table.csv"], *GLOSSARY))
    return {
        **empty,
        "id": f"main/noisy/{method}",
        "method": method,
        "benchmark": "desk",
        "condition": "noisy",
        "seed": "all",
        "success_rate": 0.5,
        "success_rate_ci": [0.25, 0.75],
        "n_tasks": 60,
        "n_seeds": 2,
        "success_rate_ci_method": "task_cluster_bootstrap",
        "leading": False,
        **figures,
    }


@pytest.fixture
def bundle():
    return {
        "schema_version": "1",
        "setup": {"benchmark": "desk", "n_seeds": 2, "level": 0.95, "resamples": 10000},
        "main_table": [main_row("slm_only", success_rate=0.0, success_rate_ci=[0.0, 0.06]), main_row()],
        "per_seed": [],
        "per_category": [],
        "comparisons": [],
        "frontier": [],
        "claims": [],
        "caveats": [],
        "reproduction": {"commands": ["r2v run --config <this folder>/config.yaml"]},
    }


@pytest.fixture
def folder(tmp_path, bundle):
    write_results(tmp_path, render(bundle))
    return tmp_path


def test_the_seeds_lines_work_and_change_no_byte(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("main_table.csv", "main_table.tex", "llm_summary.json"):
        (folder / name).unlink()
    rm = ResultsManager(str(folder))
    for _ in range(2):
        made = [rm.generate_main_table_csv(), rm.generate_latex_table(), rm.generate_llm_summary()]
        assert [path.name for path in made] == ["main_table.csv", "main_table.tex", "llm_summary.json"]
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_unfinished_folder_is_refused(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(InputError, match="has not finished"):
        ResultsManager(folder)


def test_a_summary_is_never_read_as_a_bundle(folder):
    (folder / BUNDLE).write_text((folder / "llm_summary.json").read_text())
    with pytest.raises(InputError, match=r"not the file that manifest\.json lists"):
        ResultsManager(folder).generate_latex_table()


def test_what_the_manifest_does_not_list_is_not_read(tmp_path):
    write_results(tmp_path, {"ablations.csv": csv_text("ablations.csv", [])})
    with pytest.raises(InputError, match=r"lists no eval_bundle\.json; it lists ablations\.csv"):
        ResultsManager(tmp_path).generate_llm_summary()


def test_ablations_csv_has_the_originals_columns_and_ours():
    row = {
        "name": "no_dpo",
        "description": "BC only",
        "base_method": "r2v",
        "ablated_method": "r2v",
        "benchmark": "desk",
        "condition": "noisy",
        "base_sr": 0.75,
        "ablated_sr": 0.5,
        "delta": -0.25,
        "delta_ci": [-0.5, 0.0],
        "p_value": 0.125,
        "n_tasks": 60,
        "p_holm": 0.25,
        "retrained_stages": "router_features router",
        "min_detectable_difference": 0.125,
        "base_cost": 0.5,
        "ablated_cost": 0.25,
        "cost_delta": -0.25,
        "cost_delta_ci": [-0.5, 0.0],
        **dict.fromkeys(("base_apgr", "ablated_apgr", "apgr_delta", "apgr_delta_ci")),
    }
    assert csv_text("ablations.csv", [row]) == (
        "name,description,base_method,ablated_method,benchmark,condition,base_sr,ablated_sr,delta,delta_ci,"
        "p_value,n_tasks,p_holm,retrained_stages,min_detectable_difference,base_cost,ablated_cost,cost_delta,"
        "cost_delta_ci,base_apgr,ablated_apgr,apgr_delta,apgr_delta_ci\n"
        'no_dpo,BC only,r2v,r2v,desk,noisy,0.75,0.5,-0.25,"[-0.5, 0]",0.125,60,0.25,router_features router,'
        '0.125,0.5,0.25,-0.25,"[-0.5, 0]",,,,\n'
    )


def test_a_misspelt_column_is_refused():
    row = dict.fromkeys(COLUMNS["ablations.csv"])
    with pytest.raises(KeyError, match="p_value"):
        csv_text("ablations.csv", [{"p_valeu" if key == "p_value" else key: None for key in row}])


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (1 / 3, "0.333333"),
        (157.0, "157"),
        (0.00012345678, "0.000123457"),
        (1e-13, "0"),
        (-1e-17, "0"),
        (0.01171875, "0.0117188"),
        (1234567.0, "1234570"),
        (12, "12"),
        (True, "true"),
        (None, ""),
        ([0.25, 1.0], "[0.25, 1]"),
    ],
)
def test_one_format_for_every_number(number, printed):
    settled = round_figures(number)
    assert cell(settled) == printed
    assert round_figures(settled) == settled


def test_nothing_that_is_not_a_number_gets_into_a_file(bundle):
    bundle["main_table"][0]["avg_cost"] = float("nan")
    with pytest.raises(ValueError, match="JSON"):
        render(bundle)


def test_the_door_of_the_seed_loads_nothing_heavy():
    code = (
        "import sys, r2v.utils.results;"
        "heavy = {'numpy', 'scipy', 'torch', 'r2v.evaluation.measures.statistics', 'r2v.evaluation.measures.metrics'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
