"""`r2v plan` on the command line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from r2v.cli.cluster.plan import add_commands
from r2v.cli.main import main
from r2v.config import Config
from r2v.config.execution import allocated_cpus
from r2v.errors import InputError, UsageError
from r2v.memory.profile_of_model import configured
from r2v.pipeline.graph import selection
from r2v.pipeline.jobs import JOBS
from r2v.pipeline.plan.benchmark_facts import facts_here
from r2v.pipeline.plan.dry_run import PlannedWork
from r2v.slurm.estimate import estimates, planned_by_headers
from r2v.slurm.site import requests
from tests.pipeline.plan.test_measured import ran

REPOSITORY = Path(__file__).parents[3]
LLAMA = ("--model", "meta-llama/Llama-3.2-3B", "--gpu", "44.53GiB")


def typed(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    values = parser.parse_args(["plan", *words])
    return int(values.act(values))


def test_the_shared_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(*LLAMA, "--gpus", "2") == 0
    assert "9.15" in capsys.readouterr().out


FULL = ("--stage", "hierarchical", "--overrides", "policy.lora_r=0", "policy.dtype=float32", "training.lr=1e-5")


def test_the_seeds_full_training_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    critic = ("hierarchical.critic.model_name=FacebookAI/roberta-base", "hierarchical.guidance.baseline=value")
    lengths = ("policy.max_seq_len=512", "hierarchical.answer_tokens=512", "hierarchical.critic.max_tokens=512")
    with pytest.raises(UsageError, match=r"does not fit 2 x 44\.53 GiB .* 112\.02 GiB"):
        typed(*LLAMA, "--gpus", "2", *FULL, *critic, *lengths)
    assert "what would fit: adapters on a frozen base (policy.lora_r=16)" in capsys.readouterr().out


def test_the_table_has_columns_in_the_words_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    typed(*LLAMA)
    lines = capsys.readouterr().out.splitlines()
    heading = next(line for line in lines if line.startswith("  phase"))
    assert [word.strip() for word in heading.split("  ") if word.strip()] == [
        *("phase", "batch", "micro-batch", "gradient accumulation", "static", "gradients", "activation"),
        *("peak", "peak at"),
    ]
    actor = next(line.split() for line in lines if line.startswith("  actor ") and "256" in line.split())
    batch, micro_batch, accumulation = map(int, actor[1:4])
    assert batch == 256 and (accumulation - 1) * micro_batch < batch <= accumulation * micro_batch


def test_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    typed(*LLAMA, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["gres"] == "gpu:1"
    assert found["devices"][0]["phases"]["critic"]["batch"] == 256


def test_options_are_few() -> None:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    plan = next(iter(parser._subparsers._group_actions[0].choices.values()))  # type: ignore[union-attr]
    assert len([action for action in plan._actions if action.dest != "help"]) <= 12


def test_a_stage_is_planned_from_its_configuration(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    """Models without a shipped measurement are measured once by a separate process, and the file is kept."""
    for _ in range(2):
        typed("--stage", "bc", "--overrides", "training.batch_size=24", "policy.max_seq_len=800", "--json")
        phases = json.loads(capsys.readouterr().out)["devices"][0]["phases"]
        assert phases["bc"]["batch"] == 24


def test_parts_of_the_strategy_are_taken_from_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    for placement in ("full", "shared"):
        keys = ("policy.lora_r=16", f"hierarchical.placement={placement}", "hierarchical.gradient_checkpointing=true")
        typed("--stage", "hierarchical", *LLAMA[:2], "--gpu", "141", "--overrides", *keys, "--json")
        found = json.loads(capsys.readouterr().out)
        assert (found["placement"], found["checkpointing"]) == (placement, True)


REAL = ("--overrides", "policy.model_name=meta-llama/Llama-3.2-1B-Instruct", "policy.lora_r=16")


def test_a_configuration_alone_is_all_its_stages_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    typed(*REAL, "--gpu", "80GiB", "--gpu-type", "h100")
    lines = capsys.readouterr().out.splitlines()
    chain = [row.name for row in JOBS if row.enabled(Config())]
    assert [line.split()[0] for line in lines[3 : 3 + len(chain)]] == chain
    evaluate = next(line for line in lines if line.startswith("evaluate"))
    assert "one base: policy, slm_bc_only, verifier" in evaluate and "fits" in evaluate
    assert [line.split()[0] for line in lines if "h100" in line and not line.startswith(" ")] == [
        *(name for name in chain if name != "perturb")
    ]
    typed(*REAL, "hierarchical.enabled=true", "router.features=[page,cases]", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [stage["stage"] for stage in found["stages"]] == [row.name for row in JOBS]
    assert [one["job"] for one in found["jobs"]] == [row.name for row in JOBS]
    for one in found["jobs"]:
        seconds = one["seconds"]
        known = one["job"] != "hierarchical"
        assert (seconds["wall"] is not None) is known and one["resources"]["workers"] >= 0
        assert not known or seconds["wall"] == seconds["model"] + seconds["environment"] + seconds["llm"]
    assert found["fits"] and not found["stages"][0]["local_model"]


CONFIGS = [
    path
    for path in sorted((REPOSITORY / "configs").rglob("*.yaml"))
    if path.parent.name not in ("experiments", "greedy", "mlp")
]
"""The files that `r2v config` accepts; those of experiments describe experiments."""
BRIEF = "ablations.names=[none]"
"""An override without ablations, whose rows would be the other stages again."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with the scripts and without runs, on a machine without Slurm."""
    (tmp_path / "scripts").symlink_to(REPOSITORY / "scripts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def times_in(lines: list[str]) -> list[str]:
    """Return the lines of the table of times, up to the row of their sum."""
    first = next(number for number, line in enumerate(lines) if line.startswith("job") and "environment" in line)
    return lines[first : next(number for number in range(first, len(lines)) if lines[number].startswith("all ")) + 1]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_three_commands_have_equal_times_for_equal_resources(path: Path, folder: Path) -> None:
    """`plan` and `run_all` with the headers' resources; `run` the same without helpers and limits, which it lacks."""
    config = configured(path, [BRIEF])
    rows = selection(config)[0]
    try:
        planned = planned_by_headers(config, rows, facts_here(config))
    except UsageError as error:
        assert " is not installed; pip install " in str(error)
        return
    submitted = estimates(
        config, {row.name: requests.of_job(Path(), row.command.script, row.name, config) for row in rows}
    )
    assert [one.name for one in planned] == [row.name for row in rows] and same_times(planned, submitted)
    here = planned_by_headers(config, rows, facts_here(config), helpers=0, seconds=None)
    assert same_times(planned_by_headers(config, rows, facts_here(config), helpers=0), here)
    for one in (*planned, *here):
        assert one.wall == pytest.approx(one.seconds.model + one.seconds.environment + one.seconds.llm, nan_ok=True)


def same_times(one: Sequence[PlannedWork], other: Sequence[PlannedWork]) -> bool:
    """True if counts and seconds agree to the last digit."""
    numbers = [[(job.name, job.work, job.seconds, job.workers, job.gpu_hours) for job in jobs] for jobs in (one, other)]
    return str(numbers[0]) == str(numbers[1])  # so that nan equals nan


@pytest.mark.parametrize("name", ["mrp", "webarena/noisy"])
def test_the_three_commands_print_equal_tables_of_times(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an earlier run whose time was measured; each command names it."""
    config = REPOSITORY / f"configs/{name}.yaml"
    ran(folder, configured(config, []), "collect", seconds=50.0)

    def printed(*words: str) -> tuple[list[str], list[str]]:
        assert main([*words, "--config", str(config), "--overrides", BRIEF]) == 0
        lines = capsys.readouterr().out.splitlines()
        return times_in(lines), [line for line in lines if line.startswith("time of ")]

    big = ("--gpu", "80GiB")
    plan, measured = printed("plan", *big)
    assert (plan, measured) == printed("run_all", "--dry-run")
    assert [line.partition(" (")[0] for line in measured] == ["time of collect: measured in collect-ab12"]
    [head, *alone], [_, *here] = printed("plan", *big, "--helpers", "0")[0], printed("run", "--dry-run")[0]
    begins, ends = head.index("  model"), head.index("  limit")
    assert [line[:ends].split() for line in alone] == [line[:ends].split() for line in here] and begins


def test_resources_of_ones_own_take_the_place_of_the_headers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = REPOSITORY / "configs/mrp.yaml"
    typed("--config", str(config), "--overrides", BRIEF, "--cpus", "2", "--helpers", "3", "--json")
    jobs = {one["job"]: one for one in json.loads(capsys.readouterr().out)["jobs"]}
    assert all(one["resources"]["cpus"] == 2 and one["resources"]["gpus"] == 0 for one in jobs.values())
    assert [name for name, one in jobs.items() if one["resources"]["helpers"] == 3] == [
        row.name for row in JOBS if row.command.helped
    ]


def test_without_scripts_the_resources_are_those_of_this_machine(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "scripts").unlink()
    typed(*REAL, BRIEF, "--json")
    given = [one["resources"] for one in json.loads(capsys.readouterr().out)["jobs"]]
    assert {(one["cpus"], one["gpus"], one["card"], one["helpers"], one["seconds"]) for one in given} == {
        (allocated_cpus(), 1, "", 0, None)
    }


def test_a_stage_that_acts_is_planned_by_its_phases(capsys: pytest.CaptureFixture[str]) -> None:
    typed("--stage", "evaluate", *REAL, "--gpu", "80GiB", "--json")
    found = json.loads(capsys.readouterr().out)
    (device,) = found["devices"]
    assert set(device["phases"]) == {"generate", "score", "both at once"}
    assert list(device["roles"]) == ["base", "policy", "slm_bc_only", "verifier"] and found["shared_base"]
    typed("--stage", "candidates", *REAL)
    assert "verifier fold 1" in capsys.readouterr().out


def test_a_stage_that_does_not_fit_is_refused_with_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    whole = ("--overrides", "policy.model_name=Qwen/Qwen2.5-14B", "training.lr=1e-5")
    with pytest.raises(UsageError, match=r"does not fit 80.00 GiB, .*; what would fit: adapters on one base"):
        typed("--stage", "evaluate", *whole, "--gpu", "80GiB")
    assert "slm_bc_only" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"bc, .*evaluate.*: more than 80GiB; r2v plan --stage NAME says what fits"):
        typed(*whole, "--gpu", "80GiB")


def test_what_only_one_kind_of_plan_has_is_refused_beside_another() -> None:
    with pytest.raises(UsageError, match="--calibration: is for a training stage; name one with --stage"):
        typed("--stage", "evaluate", *LLAMA, "--calibration", "file.json")
    with pytest.raises(UsageError, match="--cpus: is for the times of all stages; leave --stage out"):
        typed("--stage", "evaluate", *REAL, "--cpus", "8")
    with pytest.raises(UsageError, match="--helpers: is for the times of all stages"):
        typed(*LLAMA, "--helpers", "2")


def test_a_bad_size_and_a_missing_model() -> None:
    with pytest.raises(UsageError, match="expected a number above 0, of GiB or with a unit"):
        typed("--gpu", "big")
    with pytest.raises(InputError, match="no config.json of nobody/nothing"):
        typed("--model", "nobody/nothing")


def test_planning_loads_nothing_heavy() -> None:
    code = (
        "import argparse, sys\nfrom r2v.cli.cluster.plan import add_commands\np = argparse.ArgumentParser()\n"
        "add_commands(p.add_subparsers())\nv = p.parse_args(sys.argv[1:])\nv.act(v)\n"
        "print('LOADED', *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, "plan", *LLAMA], capture_output=True, text=True, cwd=REPOSITORY)
    loaded = {name.partition(".")[0] for name in done.stderr.split("LOADED")[1].split()}
    assert done.returncode == 0 and "r2v" in loaded
    assert loaded.isdisjoint({"torch", "numpy", "transformers", "peft", "trl", "openai", "anthropic"})
