"""Section 8: the result files at the seed's paths, and made again by its own lines."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.config.methods import registry
from r2v.data.store import write_episodes
from r2v.evaluation.measures.outcomes import measure
from r2v.evaluation.setup import Setup, episodes_path, write_setup
from r2v.evaluation.tables.ablation_rows import ablation_rows, ablation_texts
from r2v.evaluation.tables.build import write_results_folder
from r2v.evaluation.tables.files import write_results
from r2v.pipeline.jobs import job
from r2v.storage.paths import Places

from . import seed
from .workspace import play, sh

METHODS = {"slm_only": {"slips": 0.5}, "llm_only": {}, "r2v": {"slips": 0.5, "helped_from": 3}}
"""Options of each method's player, which is the desk's expert with this share of slips."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a checkout with an evaluation of three players on eight noisy tasks, and an ablation that changes
    nothing."""
    root = tmp_path_factory.mktemp("results")
    places = Places(benchmark="webarena", condition="noisy", root=root)
    evaluated = places.published(str(job("evaluate").place))
    played = {
        method: play("evaluation", 8, condition="noisy", method=method, **player) for method, player in METHODS.items()
    }
    for method, episodes in played.items():
        write_episodes(episodes_path(evaluated, "noisy", method), episodes)
    tasks = [episode.metadata.task_id for episode in played["llm_only"]]
    setup = Setup(
        benchmark="desk",
        benchmark_version="1",
        methods=tuple(METHODS),
        seeds=(1,),
        tasks={"noisy": tasks},
        resamples=500,
    )
    write_setup(evaluated, setup)
    write_results_folder(evaluated)
    again = play("evaluation", 8, condition="noisy", method="r2v", **METHODS["r2v"])
    alone = replace(setup, methods=("r2v",))
    base, ablated = (measure(episodes, alone) for episodes in (played["r2v"], again))
    write_results(
        places.published(str(job("ablations").place)) / "structured_results",
        ablation_texts(ablation_rows([(registry().rows["none"], "noisy", base, ablated, [])])),
    )
    return root


VIEWED = [words[1] for words in seed.commands(seed.block("Structured results for LLM paper writing"))]


@pytest.mark.parametrize("path", VIEWED)
def test_the_files_are_where_the_seed_looks(path: str, root: Path) -> None:
    shown = sh(root, f"cat {path}")
    assert shown.returncode == 0, shown.stderr
    if path.endswith(".json"):
        assert json.loads(shown.stdout)["main_results"]
        return
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert rows and {row["condition"] for row in rows} == {"noisy"}


def test_the_main_table_is_what_was_played(root: Path) -> None:
    with (root / "results/webarena_noisy/structured_results/main_table.csv").open(newline="") as file:
        rates = {row["method"]: float(row["success_rate"]) for row in csv.DictReader(file)}
    assert rates.keys() == METHODS.keys()
    assert rates["slm_only"] < rates["llm_only"]


def test_generate_latex_tables(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    folder = Path("results/webarena_noisy/structured_results")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("main_table.csv", "main_table.tex", "llm_summary.json"):
        (folder / name).unlink()
    exec(compile(seed.block("Generate LaTeX tables", "python"), "seed_003", "exec"), {})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
