"""The estimated need of the jobs against the headers of their scripts."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from r2v.cli.main import main
from r2v.config import load
from r2v.pipeline.graph import selection
from r2v.slurm.chain import chain as chains
from r2v.slurm.estimate import allotted, estimate_lines, estimates
from r2v.slurm.site import headers
from r2v.slurm.site.headers import Resources
from r2v.storage.paths import SCRIPTS
from tests.envs.webarena import listed
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

REPOSITORY = Path(__file__).parents[2]
SHIPPED = sorted((REPOSITORY / "configs").glob("*/clean.yaml")) + sorted((REPOSITORY / "configs").glob("*/noisy.yaml"))


def test_a_header_is_what_a_job_may_use() -> None:
    asked = Resources(directives={"gres": "gpu:h100:2", "cpus-per-task": "16", "ntasks": "2", "time": "1-00:00:00"})
    found = allotted(asked)
    assert (found.cpus, found.gpus, found.card, found.seconds) == (32, 2, "h100", 86400)
    assert allotted(replace(asked, helpers="15%8")).helpers == 0, "nobody helps a stage that is played by one process"
    at_once = [allotted(replace(asked, helpers=text), helped=True).helpers for text in ("15%8", "4", "4%9", "")]
    assert at_once == [8, 4, 4, 0]
    bare = allotted(Resources())
    assert (bare.cpus, bare.gpus, bare.card, bare.seconds) == (1, 0, "", None)


def test_helpers_count_where_a_stage_may_be_helped(tmp_path: Path) -> None:
    """A policy is trained without helpers, so those of its header count for nothing."""
    asked = {"evaluate": Resources(directives={"time": "24:00:00"}, helpers="15%3")}
    alone = load(REPOSITORY / "configs" / "desk/clean.yaml", ["rollout.episodes_per_block=1"])
    assert estimates(alone, asked, tmp_path)[0].allotted.helpers == 3
    assert estimates(alone, {"bc": asked["evaluate"]}, tmp_path)[0].allotted.helpers == 0
    helped = estimates(alone, asked, tmp_path)[0]
    by_itself = estimates(alone, {"evaluate": replace(asked["evaluate"], helpers="")}, tmp_path)[0]
    assert not any(line.startswith("helpers") for line in estimate_lines(alone, asked, tmp_path))
    assert helped.wall == pytest.approx(by_itself.wall / 4, rel=0.02) and helped.usd == by_itself.usd


def test_jobs_are_estimated_under_their_own_headers(tmp_path: Path) -> None:
    config = load(REPOSITORY / "configs/webarena/noisy.yaml")
    short = Resources(directives={"time": "00:10:00", "gres": "gpu:a100:1"})
    long = Resources(directives={"time": "48:00:00", "cpus-per-task": "8"})
    collect, perturb = estimates(config, {"collect": short, "perturb": long}, tmp_path)
    assert collect.too_long and not perturb.too_long and (collect.gpu_hours > 0) and not perturb.gpu_hours
    lines = estimate_lines(config, {"collect": short}, tmp_path)
    [row] = [line for line in lines if line.startswith("collect  ") and "DOES NOT FIT" in line]
    assert row.split()[-3:] == ["DOES", "NOT", "FIT"] and lines[-1] == ""
    assert estimate_lines(config, {}, tmp_path) == []


@pytest.fixture
def checkout(faked: Faked) -> Faked:
    """Make a checkout whose evaluation asks for a minute."""
    for name in ("scripts/slurm", "configs"):
        shutil.copytree(REPOSITORY / name, faked.root / name)
    script = faked.root / "scripts/slurm/08_evaluate.sh"
    script.write_text(script.read_text().replace("--time=24:00:00", "--time=00:01:00"))
    faked.answer()
    return faked


TOO_SHORT = re.compile(r"evaluate: about .* under --time=60 s, so it takes \d+ starts .*")


def test_a_header_below_the_likely_wall_time_is_named_by_each_command_and_changed_by_none(
    checkout: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in headers.scripts(checkout.root)}
    config = ("--config", "configs/desk/noisy.yaml", "--overrides", "ablations.names=[none]")
    for words in (["plan"], ["run", "--dry-run"], ["run_all", "--dry-run"]):
        main([*words, *config])
        printed = capsys.readouterr().out
        assert len([line for line in printed.splitlines() if TOO_SHORT.fullmatch(line)]) == 1, words
        assert words[0] != "run_all" or "--time=00:01:00" in printed
    assert main(["run_all", *config]) == 0
    assert any(TOO_SHORT.search(line) for line in capsys.readouterr().err.splitlines())
    made = chains.read(checkout.root, "desk_noisy")
    for name, entry in made.jobs.items():
        assert entry.latest is not None
        own = headers.read(checkout.root / SCRIPTS / entry.script, name).directives["time"]
        assert entry.latest.resources["time"] == own, name
        text = (
            checkout.root / "outputs/.chains/desk_noisy/submitit" / entry.latest.id
        ) / f"{entry.latest.id}_submission.sh"
        assert f"#SBATCH --time={own}\n" in text.read_text(), name
    assert before == {path: path.read_bytes() for path in headers.scripts(checkout.root)}


def test_nothing_that_sets_resources_knows_an_estimate() -> None:
    """Only printing commands know it: headers, profiles and healing do not."""
    modules = (REPOSITORY / "r2v" / "slurm").rglob("*.py")
    knows = [
        path.name for path in modules if re.search(r"slurm\.estimate|pipeline\.plan\.(dry_run|wall)", path.read_text())
    ]
    assert sorted(knows) == ["estimate.py", "run_all.py"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_as_shipped_every_job_ends_within_its_headers_time(path: Path, tmp_path: Path) -> None:
    config = load(path)
    if config.env.benchmark == "babyai":
        pytest.importorskip("minigrid", reason="no minigrid: pip install 'r2v[babyai]'")
    if config.env.benchmark == "textworld":
        pytest.importorskip("textworld", reason="no textworld: pip install 'r2v[textworld]'")
    rows, _ = selection(config)
    asked = {row.name: headers.read(REPOSITORY / SCRIPTS / row.command.script, row.name) for row in rows}
    found = estimates(config, asked, tmp_path)
    assert [one.name for one in found] == [row.name for row in rows] and all(one.wall > 0 for one in found if one.parts)
    assert [one.name for one in found if not one.wall < (one.allotted.seconds or 0)] == []
    assert not any(one.never_kept for one in found), "a task fits into every time limit"


@pytest.mark.parametrize("name", ["webarena", "swebench"])
@pytest.mark.parametrize("condition", ["clean", "noisy"])
def test_where_worlds_cannot_be_copied_what_branches_is_limited(name: str, condition: str) -> None:
    evaluation = load(REPOSITORY / "configs" / name / f"{condition}.yaml").evaluation
    limits = (evaluation.oracle_tasks, evaluation.frontier_tasks, evaluation.gains_tasks)
    assert all(limit is not None and limit <= 60 for limit in limits)


def test_helpers_of_a_collection_by_batches_come_to_nothing_and_the_estimate_says_so(tmp_path: Path) -> None:
    asked = {"collect": Resources(directives={"time": "24:00:00"}, helpers="4")}
    batches = load(
        REPOSITORY / "configs" / "desk/clean.yaml", ["teacher.provider=openai", "teacher.model_name=gpt-5.2"]
    )
    [said] = [line for line in estimate_lines(batches, asked, tmp_path) if line.startswith("helpers")]
    assert said.startswith(
        "helpers of collect: none of the 4 that its header names; teacher.mode=auto is played by one"
    )
    calls = replace(batches, teacher=replace(batches.teacher, mode="concurrent"))
    assert not any("none of the 4" in line for line in estimate_lines(calls, asked, tmp_path))


@pytest.mark.parametrize("name", ["swebench", "miniwob", pytest.param("webarena", marks=listed)])
def test_the_page_says_what_the_estimate_says_and_its_limits_are_those_of_the_headers(
    name: str, tmp_path: Path
) -> None:
    config = load(REPOSITORY / "configs" / name / "noisy.yaml")
    asked = {
        row.name: headers.read(REPOSITORY / SCRIPTS / row.command.script, row.name) for row in selection(config)[0]
    }
    found = estimates(config, asked, tmp_path)
    told = page_table((REPOSITORY / "docs/benchmarks.md").read_text(), f"`r2v run_all {name} --dry-run`")
    assert [*told] == [*asked, "all"]
    for one in found:
        limit = (one.allotted.seconds or 0) / 3600
        hours = [value / 3600 for value in (one.seconds.model, one.seconds.environment, one.seconds.llm, one.wall)]
        assert told[one.name] == pytest.approx([*hours, limit, one.gpu_hours, one.usd], rel=0.05, abs=0.5), one.name
    summed = (0, 1, 2, 3, 5, 6)
    every = [sum(row[column] for stage, row in told.items() if stage != "all") for column in summed]
    assert [told["all"][column] for column in summed] == pytest.approx(every, rel=0.01, abs=0.3)


def page_table(page: str, begins: str) -> dict[str, list[float]]:
    """Return the rows of the first table after a text: numbers by the first column."""
    lines = page.partition(begins)[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    rows = {}
    for line in lines[first + 1 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name] = [float(cell.removesuffix(" h").replace(",", "") or 0) for cell in cells]
    return rows
