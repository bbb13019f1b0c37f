"""Counts of a user's own benchmark: recorded when it is imported, read without an import, unknown otherwise."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import Config, load
from r2v.envs.base import Benchmark, load_benchmark
from r2v.errors import UsageError
from r2v.extensions import NotImported, importing_nothing, load_class
from r2v.pipeline.jobs import job
from r2v.pipeline.plan.benchmark_facts import facts_here, facts_of
from r2v.pipeline.plan.recorded import recorded
from r2v.pipeline.run import fewer_than_asked
from r2v.storage.paths import BENCHMARK_COUNTS

SHOP = """
from r2v.envs.base import Task
from r2v.envs.chain import ChainBenchmark
from r2v.envs.pace import Pace

class Shop(ChainBenchmark):
    pace = Pace(step_seconds=0.25, teacher_steps=3)

    def __init__(self, *, num_tasks: int = 60) -> None:
        super().__init__(num_tasks=num_tasks, length=3)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return a configuration over a benchmark in the folder of the command."""
    (tmp_path / "recorded_shop").with_suffix(".py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "recorded_shop", raising=False)
    return load(None, ["env.benchmark=recorded_shop:Shop", "env.options={num_tasks: 40}", "data.split_seed=3"])


def imported(config: Config) -> Config:
    """Return the configuration, after a stage has counted its tasks."""
    fewer_than_asked(config, job("collect"))
    return config


def test_nothing_is_known_before_it_was_imported_and_all_of_it_afterwards(shop: Config) -> None:
    with importing_nothing():
        unknown = facts_here(shop)
    assert not unknown.listed and "recorded_shop" not in sys.modules
    imported(shop)
    with importing_nothing():
        known = facts_here(shop)
    assert known == facts_of(shop, load_benchmark(shop.env.benchmark, shop.env.options)) and known.listed
    assert sum(known.tasks.values()) == 40 and known.pace.why("teacher_steps") == "declared by the benchmark"


def test_the_command_that_is_printed_makes_the_counts_known(
    shop: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = facts_here(shop).to_count
    assert command == (
        """r2v check-env recorded_shop:Shop --overrides 'env.options={"num_tasks": 40}' data.split_seed=3"""
    )
    assert main(shlex.split(command)[1:]) == 0
    counts = recorded(shop)
    assert counts is not None and facts_here(shop).to_count == ""
    assert f"counts {counts.tasks['train']} train, " in capsys.readouterr().out
    assert [path.parent for path in tmp_path.rglob("*.json")] == [tmp_path / BENCHMARK_COUNTS]


@pytest.mark.parametrize("change", ["env.options={num_tasks: 41}", "data.split_seed=4", "data.split_by=template_id"])
def test_other_options_or_another_split_have_no_counts_yet(change: str, shop: Config) -> None:
    imported(shop)
    words = ["env.benchmark=recorded_shop:Shop", "env.options={num_tasks: 40}", "data.split_seed=3", change]
    other = facts_here(load(None, words))
    assert change.partition("=")[0] in other.to_count and not other.listed


def test_an_edited_module_has_no_counts_and_a_damaged_record_is_none(shop: Config, tmp_path: Path) -> None:
    imported(shop)
    (record,) = (tmp_path / BENCHMARK_COUNTS).iterdir()
    whole = record.read_text()
    for damaged in ("", "{}", "[]", whole.replace('"train": ', '"train": 1'), '{"tasks": {"train": "many"}}'):
        record.write_text(damaged)
        assert recorded(shop) is None and facts_here(shop).to_count
    altered = {**json.loads(whole), "tasks": {"train": -1, "calibration": 0, "evaluation": 0, "heldout": 0}}
    del altered["sha256"]
    record.write_text(json.dumps(altered))
    assert recorded(shop) is None, "no benchmark has fewer than no tasks"
    imported(shop)
    assert record.read_text() == whole, "whoever imports it writes it anew"
    module = (tmp_path / "recorded_shop").with_suffix(".py")
    module.write_text(SHOP + "\n# edited\n")
    assert facts_here(shop).to_count
    module.unlink()
    with pytest.raises(UsageError, match="there is no module recorded_shop"):
        facts_here(shop)


def test_a_dry_run_prints_unknown_figures_and_the_command_that_makes_them_known(
    shop: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--overrides", "env.benchmark=recorded_shop:Shop", "env.options={num_tasks: 40}", "data.split_seed=3"]
    Path("sweep.yaml").write_text(
        "name: s\nmode: training\nstage: evaluate\nbase_config: c.yaml\nsweep: {router.budget: [0.1, 0.3]}\n"
    )
    Path("c.yaml").write_text(
        "env: {benchmark: 'recorded_shop:Shop', options: {num_tasks: 40}}\ndata: {split_seed: 3}\n"
    )
    paid = ["teacher.provider=openai", "teacher.model_name=gpt-5.2"]
    lines = {
        "run": ["run", "--dry-run", *sizes],
        "collect": ["collect", "--dry-run", *sizes, *paid],
        "experiments": ["experiments", "run", "--dry-run", "--exp", "sweep.yaml"],
    }
    for words in lines.values():
        assert main(words) == 0
        out = capsys.readouterr().out
        assert out.count("\n?: recorded_shop:Shop was not imported to count its tasks") == 1
        assert out.count("`r2v check-env recorded_shop:Shop --overrides ") == 1
        totals = [line.rpartition("stages to make")[2] for line in out.splitlines() if line.startswith("all")]
        for total in totals:  # the bundled expert costs no dollars, however often it is called
            assert "?" in total and not re.search(r"\d", total.replace("0.00 dollars", ""))
    assert "recorded_shop" not in sys.modules
    imported(shop)
    for name in ("collect", "experiments"):
        assert main(lines[name]) == 0
        assert "?" not in capsys.readouterr().out


def test_a_command_that_only_reads_imports_nothing_whoever_asks(shop: Config) -> None:
    with importing_nothing(), pytest.raises(NotImported, match="not imported, for this command only reads"):
        load_benchmark(shop.env.benchmark, shop.env.options)
    assert "recorded_shop" not in sys.modules
    with importing_nothing():
        assert load_benchmark("desk").name == "desk", "R2V's own are imported everywhere"
        named = load_class("R2V_VARIABLE", shop.env.benchmark, (), Benchmark, by_user=True)
        assert named.__name__ == "Shop", "and so is what the user's own environment names"
    assert load_benchmark(shop.env.benchmark, shop.env.options).name == "chain"
