"""The table of stages: its rows are complete, and their contents are typed nowhere else."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from r2v.config import Config, keys
from r2v.config.training import PHASES
from r2v.errors import UsageError
from r2v.evaluation.audit.check_inputs import INPUTS
from r2v.memory.planner.training_job import StageName
from r2v.pipeline import jobs
from r2v.pipeline.graph import made_by, phases
from r2v.pipeline.jobs import JOBS, command, job
from r2v.pipeline.rows import CONDITION, Command, Flag
from r2v.slurm.job.script_args import usage
from r2v.storage.paths import SCRIPTS

REPOSITORY = Path(__file__).parents[2]
TABLE = Path("r2v/pipeline/jobs.py")
NAMES = {row.name for row in JOBS}
COMMAND_NAMES = {one.name for one in jobs.COMMANDS}
NUMBERED = sorted(path.name for path in (REPOSITORY / SCRIPTS).glob("[0-9]*.sh"))


def test_every_row_has_a_stage_a_number_a_command_and_a_script_of_its_own() -> None:
    assert len({row.number for row in JOBS}) == len(JOBS) == len(NAMES) == len({row.stage for row in JOBS})
    assert sorted(one.script for one in jobs.COMMANDS) == NUMBERED
    for row in JOBS:
        assert row.load().version >= 1 and row.outputs
        assert (row.place is None) == (not row.needs and row.command.name == row.name)


def test_a_job_is_found_by_its_name_or_number() -> None:
    assert job("bc") is job("3a") and job("hierarchical").number == "10"
    with pytest.raises(UsageError, match="no job evaluat; did you mean evaluate?"):
        job("evaluat")


def test_a_command_of_two_phases_makes_what_stands_between_them() -> None:
    assert phases(command("train_policy")) == ("bc", "preference")
    assert made_by(command("train_policy")) == ("bc", "candidates", "preference")
    assert job("bc").argv == ("train_policy", "--stage", "bc") and job("router").argv == ("train_router",)


@pytest.mark.parametrize("one", jobs.COMMANDS, ids=lambda one: one.name)
def test_a_script_runs_its_command_and_its_first_lines_say_what_it_takes(one: Command) -> None:
    text = (REPOSITORY / SCRIPTS / one.script).read_text()
    assert f'exec python -m r2v.slurm.job.runner {one.name} "$@"\n' in text
    comment = [line for line in text.splitlines()[1:4] if line.startswith("# ")]
    assert f"sbatch {SCRIPTS / one.script}" in comment[0]
    if one.config:
        assert one.config in comment[0]
    shown = " ".join(re.findall(r"[A-Z]{1,9}\b", " ".join(comment).replace("KEY=VALUE", "")))
    for positional in one.positionals:
        word = re.sub(r"num-|-+", "", positional).upper()
        assert word in shown or (positional == "--stage" and "bc | preference | all" in " ".join(comment)), positional


def _default(key: str) -> Any:
    value: Any = Config()
    for name in key.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("flag"), [flag for one in jobs.COMMANDS for flag in one.flags], ids=lambda flag: f"{flag.key}"
)
def test_a_flag_names_a_key_and_its_true_default(flag: Flag) -> None:
    assert flag.key in keys(Config)
    default = re.search(r"\(default: (.+)\)$", flag.help)
    assert default is not None, "every option says its default"
    value = _default(flag.key)
    if isinstance(value, list) and len(value) <= 3 and value:
        assert default[1] == " ".join(map(str, value))
    elif isinstance(value, (int, float, str)) and value:
        assert default[1] == str(value)
    elif isinstance(value, bool):
        assert flag.metavar is None and default[1] == "false"
    else:
        assert default[1].startswith(("all", "none", "data/runs", "every", "the ", "an unfinished"))


def _literals(tree: ast.AST) -> Iterator[tuple[int, set[str]]]:
    """Yield (line, strings) of every list, tuple, set and dict that is written out, and of every comparison."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            parts: list[ast.expr | None] = [*node.elts]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        else:
            continue
        yield (
            node.lineno,
            {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)},
        )


def _sources() -> list[Path]:
    return [path.relative_to(REPOSITORY) for path in (REPOSITORY / "r2v").rglob("*.py")]


def test_no_second_list_of_stages_stands_in_the_package() -> None:
    """Three jobs, commands or scripts in one literal are a second table."""
    found = [
        f"{path}:{line}: {sorted(names)}"
        for path in _sources()
        if path != TABLE and not _lists_trainings(path)
        for line, strings in _literals(ast.parse((REPOSITORY / path).read_text()))
        for names in (strings & NAMES, strings & COMMAND_NAMES, strings & set(NUMBERED))
        if len(names) >= 3
    ]
    assert found == []


OTHER_SUBJECTS = {
    "r2v/config/training.py": "phases of training, by their configuration keys",
    "r2v/memory/planner": "trainings that the planner has roles for, held to the table by the test below",
    "r2v/slurm/healing/retry_policy.py": "which keys make a training smaller",
    "r2v/evaluation/audit/check_inputs.py": "inputs of an evaluation, held to the table by the test below",
}
"""Modules that list trainings, not stages."""


def _lists_trainings(path: Path) -> bool:
    return any(path.as_posix().startswith(place) for place in OTHER_SUBJECTS)


def test_the_trainings_that_are_planned_are_jobs_of_the_table() -> None:
    assert set(get_args(StageName)) <= NAMES and set(PHASES) <= NAMES


def test_the_inputs_that_an_audit_expects_are_those_of_the_table() -> None:
    assert {name: jobs.job(name).stage for name in jobs.job("evaluate").inputs} == INPUTS


def test_what_plays_has_its_parts_counted_by_its_row() -> None:
    for row in JOBS:
        assert bool(row.parts or row.remakes) >= (row.load().play is not None), row.name
        if row.parts:
            module, _, function = row.parts.partition(":")
            assert callable(getattr(importlib.import_module(module), function))
        assert bool(row.remakes) == bool(row.load().chains(Config())), row.name


def test_no_code_asks_which_stage_it_has() -> None:
    """`if name == "collect"` in the command line, the pipeline or Slurm's code is a fact outside its row."""
    found = []
    for path in _sources():
        if path == TABLE or path.parts[1] not in ("cli", "pipeline", "slurm") or _lists_trainings(path):
            continue
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
            if isinstance(node, ast.Compare):
                words = {part.value for part in [node.left, *node.comparators] if isinstance(part, ast.Constant)}
                if words & (NAMES | COMMAND_NAMES):
                    found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_no_place_template_stands_outside_the_table() -> None:
    templates = {row.place for row in JOBS if row.place}
    texts = {path: (REPOSITORY / path).read_text() for path in _sources() if path != TABLE}
    found = [str(path) for path, text in texts.items() if any(f'"{template}"' in text for template in templates)]
    assert found == []


STAGE_MODULE = '''"""Stage 12, count_words: how many words the training set holds."""

from __future__ import annotations

from dataclasses import dataclass

from r2v import config as c
from r2v.stages import Stage
from r2v.storage.artifact import Work
from r2v.storage.files import write_json


@dataclass(frozen=True, kw_only=True)
class CountWordsSettings:
    """What the count depends on beside its input."""

    seed: int


def run(settings: CountWordsSettings, work: Work) -> None:
    """Count the words of the input."""
    words = len(work.inputs["perturb"].file("trajectories.jsonl").read_text().split())
    write_json(work.folder / "words.json", {"words": words})
    work.summary.update(words=words)


STAGE = Stage(1, CountWordsSettings, run)
'''
ROW = """    Job(
        name="words",
        number="12",
        command=Command(name="count_words", help="count the words of the training set", script="12_count_words.sh"),
        stage="r2v.stages.count_words:STAGE",
        place="outputs/{prefix}words/{pipeline}",
        outputs=("words.json",),
        needs=("perturb",),
    ),
)
COMMANDS = """


def test_a_stage_is_added_by_its_module_with_its_row_and_its_script(tmp_path: Path) -> None:
    """It then has a command, a place, a number, reuse, and a line in the chain, without another file."""
    shutil.copytree(REPOSITORY / "r2v", tmp_path / "r2v", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    shutil.copytree(REPOSITORY / "configs", tmp_path / "configs")
    (tmp_path / "r2v/stages/count_words.py").write_text(STAGE_MODULE)
    table = (tmp_path / TABLE).read_text()
    assert table.count(")\nCOMMANDS = ") == 1
    (tmp_path / TABLE).write_text(table.replace(")\nCOMMANDS = ", ROW))
    script = (tmp_path / SCRIPTS / "02_perturb.sh").read_text().replace("02_perturb", "12_count_words")
    (tmp_path / SCRIPTS / "12_count_words.sh").write_text(script.replace("perturb", "count_words"))

    small = ["env.benchmark=chain", "env.options={num_tasks: 20, length: 3, p_easy: 0.9}", "data.seeds=[1]"]
    overrides = ["--overrides", *small, "perturb.constructions=[annotate,insert]"]

    def r2v(*words: str) -> str:
        code = "import sys; from r2v.cli.main import main; sys.exit(max(main(w.split('|')) for w in sys.argv[1:]))"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    lines = [["collect", *overrides], ["perturb", *overrides], ["count_words", *overrides], ["count_words", *overrides]]
    said = r2v(*("|".join(line) for line in [*lines, ["stages"]]))
    assert json.loads((tmp_path / "outputs/words/chain_noisy/words.json").read_text())["words"] > 0
    assert "stage up to date: stage=words" in said
    assert re.search(r"^12 +words +r2v count_words +perturb", said, re.M)
    assert "count_words" in r2v("run_all|desk|--dry-run")


def test_the_usage_of_a_script_names_its_words() -> None:
    assert usage(command("collect").positionals) == "[NUM_EPISODES] [SEEDS] [CONDITION]"
    assert usage((CONDITION, "--stage")) == "[CONDITION] [STAGE]"
