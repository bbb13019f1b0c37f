"""Every command in a shell block of a page is run, page by page from top to bottom, in a checkout of its own.

`r2v` runs in this process, scripts in another; sbatch and its kin are those of tests/slurm/fake, the providers are the
emulator's. Three tables list the differences from the page: STAND_INS makes a command small, EXITS names the codes
other than 0 that a page's command may end with, ELSEWHERE names the commands that are not run here, and the test that
runs each or the reason why none can.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

from r2v.cli.main import main as r2v
from r2v.config import load
from r2v.emulator import EmulatedRequest, Emulator, Lifecycle, game
from r2v.emulator.answers import load_answer
from r2v.slurm.client.command import through
from r2v.slurm.site.site_profile import project_profile
from r2v.storage.files import write_text
from r2v.storage.paths import SCRIPTS
from tests import warm
from tests.docs.pages import PAGES, PLACEHOLDER, REPOSITORY, Block, blocks_of
from tests.seeds.workspace import standing_in
from tests.slurm.fake_in_process import FAKE, FAKE_INSIDE, FakeInProcess

TINY = REPOSITORY / "r2v" / "bundled" / "weights" / "tiny"
OWN_MODEL = (
    "data.num_episodes=6 training.bc.max_examples=4 verifier.num_tasks=4 candidates.num_tasks=2 router.num_tasks=3 "
    "router.num_calibration_tasks=2 evaluation.num_tasks=2 inference.max_new_tokens=4"
)
STAND_INS = (
    (r"--num-episodes (?!140)\d+", "--num-episodes 2"),
    (r"--num-episodes 140", "--num-episodes 6"),  # with fewer tasks no router can be imputed
    (r"num_epochs=10", "num_epochs=1"),
    (r"(r2v pilot .*)", r"\1 evaluation.pilot_tasks=2"),
    (r"--num-interactions \d+|--interactions \d+", "--interactions 2"),
    (r"policy\.model_name=(FOLDER|outputs/\S+/final)", f"policy.model_name={TINY}"),
    (
        r"(r2v evaluate .*)",
        r"\1 evaluation.num_tasks=2 evaluation.seeds=[1] evaluation.conditions=[clean] logging.report=false",
    ),
    (r"(r2v run --config examples/own_model.yaml)", rf"\1 --overrides {OWN_MODEL}"),
    (r"(r2v train_policy .*FOLDER.*)", r"\1 training.num_epochs=1"),
    (r"(python scripts/collect_trajectories.py .*)", r"\1 --num-episodes 2 --seeds 1"),
    (r"(teacher\.provider=\w+)", r"\1 teacher.poll_seconds=0.05"),
    (r"teacher\.base_url=\S+", "teacher.base_url=$OPENAI_BASE_URL"),
    (r"(python examples/\w+\.py .*|r2v game run .*)", r"\1 --overrides poll_seconds=0.05 figures=[]"),
    (r"(r2v game run .*) --replicates \d+", r"\1 --replicates 1"),
)
"""Replacements in a command, so that it takes a second instead of hours and finds the emulator."""

BEFORE = {
    "interchange.md": (
        "r2v collect --overrides data.num_episodes=6 data.seeds=[1]",  # with fewer tasks no router can be imputed
        "r2v export chat.jsonl --trajectories RUN",
    ),
    "slurm-failures.md": ("bash run_all.sh desk",),
    "your-own-model.md": ("r2v collect --num-episodes 2 --seeds 1", "r2v perturb"),
}
"""Preconditions of a page: trajectories to train on, a chain in the queue."""

FILES = {"adding-a-benchmark.md": "shop.py"}
"""Pages whose first block of Python the reader saves as a file."""

EXITS = {"r2v logs bc": {3}}
"""Commands that end with another code than 0 here: a job that is still queued has no log."""

HUB = "tests/pipeline/test_hub.py::test_bundle_run_and_report_come_back_unchanged"
EXPLAINED = "tests/serve/test_answering.py::test_a_session_is_explained_turn_by_turn"
RECORDED = "tests/stages/test_impute_router.py::test_recorded_sessions_become_a_served_router"
ELSEWHERE = {
    "python -m benchmarks.decision --checkout ../before": "reads what `make mrp` leaves, and another checkout",
    "python benchmarks/waves.py --draws 8": "takes minutes",
    "python benchmarks/slurm_chain.py": "takes minutes on a real Slurm",
    "python benchmarks/scale.py --episodes 4000 --runs 400": "takes minutes",
    "git clone https://github.com/r2v-agent/r2v": "fetches from the network",
    "cd r2v": "is where the rest of a page is typed: each test is in a checkout already",
    "pip install 'r2v[serve] @ git+https://github.com/r2v-agent/r2v'": "fetches from the network",
    "pip install 'r2v[train,serve] @ git+https://github.com/r2v-agent/r2v'": "fetches from the network",
    "r2v serve outputs/bundles/rehearsal --llm openai:gpt-6.1-terra --overrides teacher.max_usd=20": (
        "tests/test_wheel.py::test_the_first_page_on_serving_holds_from_the_wheel_alone"
    ),
    "r2v ablations --config configs/mrp.yaml --names no_dpo with_verifier": (
        "tests/test_mrp.py::test_ablation_none_reproduces_the_main_run"
    ),
    "make install": "installs; it is how this environment was made",
    "make release": "builds HEAD; tests/test_wheel.py builds the same of the work tree",
    "pip install 'dist/r2v-0.1.0-py3-none-any.whl[train,serve]'": "installs from an index",
    "pip install --no-deps --target DIR dist/r2v-0.1.0-py3-none-any.whl": (
        "tests/test_wheel.py::test_in_a_folder_of_its_own_it_runs_too"
    ),
    "r2v serve --record --llm anthropic:claude-opus-5-5 --overrides teacher.max_usd=20": (
        "tests/cli/test_serve.py::test_it_says_where_it_listens_and_ends_when_told"
    ),
    "r2v record --llm openai:gpt-6.1-terra --overrides teacher.max_usd=20 --task bug-7 -- mini --model-class "
    "litellm_response -m openai/llm -t 'Fix the failing test.' -y": (
        "tests/cli/test_serve.py::test_record_ends_as_its_command_does"
    ),
    "r2v serve outputs/bundles/desk --llm openai:gpt-6.1-terra --overrides teacher.max_usd=20": (
        "tests/serve/pair/test_pair.py::test_it_acts_as_the_evaluation_did"
    ),
    "r2v run --from perturb --overrides env.benchmark=logs router.label=imputed router.model=case_support "
    "policy.provider=openai policy.model_name=gpt-6-luna teacher.max_usd=5": RECORDED,
    "r2v export outputs/bundles/mine --config outputs/router/logs_noisy/config.yaml": RECORDED,
    "r2v serve outputs/bundles/mine --llm anthropic:claude-opus-5-5 --overrides teacher.max_usd=20": RECORDED,
    "r2v push outputs/bundles/desk ME/desk --private": HUB,
    "r2v pull ME/desk outputs/bundles/again": HUB,
    "r2v explain SESSION": EXPLAINED,
    "r2v explain --sessions": EXPLAINED,
    "r2v import data/served/default": "tests/serve/test_record.py::test_a_recorded_session_becomes_an_episode",
    "r2v pilot --tasks tasks.txt --cmd 'mini --model-class litellm_response -m openai/llm -t {task} -y' --overrides "
    "teacher.provider=openai teacher.model_name=gpt-6.1-terra policy.provider=openai policy.model_name=gpt-6-luna "
    "teacher.max_usd=20": ("tests/pipeline/test_pilot.py::test_a_pilot_plays_an_agent_by_both_models"),
    "r2v engine install": "tests/llm/engines/test_install.py::test_pip_that_fails_is_one_line",
    "r2v engine show": "tests/cli/cluster/test_engine.py::test_an_absent_engine_is_one_line_and_exit_5",
    "r2v engine serve --config FILE --host 0.0.0.0 --port 8000": (
        "tests/cli/cluster/test_engine.py::test_a_server_that_ends_hands_its_exit_code_on"
    ),
    "pip install -e '.[miniwob]'": "installs; `make browser` does it from the locks",
    "make browser": "installs packages; `make test` has done so",
    "r2v check-env miniwob": "plays in a browser: tests/envs/browser plays the same worlds",
    "r2v run --config configs/miniwob/clean.yaml --overrides teacher.provider=scripted teacher.model_name=expert-v1": (
        "tests/envs/browser/test_pipeline.py::test_the_shipped_configuration_ends_well_in_a_real_browser"
    ),
    "r2v swebench install": "fetches from PyPI; `make test` has done so",
    "r2v check-env --num-tasks 1 --overrides env.benchmark=swebench": (
        "tests/envs/swe/test_recipes.py::test_the_expert_solves_it_and_a_change_of_nothing_does_not"
    ),
    "r2v swebench images --config configs/swebench/noisy.yaml": (
        "tests/envs/swe/test_containers.py::test_images_are_made_once_and_one_that_fails_stops_no_other"
    ),
    "pip install -e '.[webarena]'": "installs; the extra asks for nothing more than the core",
    "r2v webarena install": "fetches from PyPI; `make test` has done so",
    "r2v webarena check": "tests/cli/test_worlds.py::test_check_tells_site_by_site",
    "r2v run --config configs/webarena/noisy.yaml": (
        "tests/envs/webarena/test_pipeline.py::test_the_shipped_configuration_ends_well_on_stub_sites"
    ),
    "r2v webarena regrade": "tests/envs/webarena/test_pipeline.py::test_a_collection_is_recorded_and_graded_again",
    "r2v report results/mrp": "tests/report/test_build.py::test_made_again_it_is_the_same",
    "r2v status mrp": "tests/slurm/views/test_local.py::test_status_tells_each_stage_and_how_to_go_on",
    "r2v logs mrp bc": "tests/slurm/views/test_local.py::test_logs_and_cost",
    "r2v cost mrp": "tests/slurm/views/test_local.py::test_logs_and_cost",
    "r2v status --watch": "tests/slurm/views/test_status.py::test_it_ends_when_nothing_is_active",
    "make mrp": "tests/test_mrp.py::test_everything_the_seed_names_is_there",
    "make sandbox": "installs a package of the system; `make test` has done so",
    "r2v run --config configs/mrp.yaml": "tests/test_mrp.py::test_everything_the_seed_names_is_there",
    "r2v run --config configs/mrp.yaml --from router": (
        "tests/test_mrp.py::test_a_router_change_reruns_the_router_and_what_follows"
    ),
    "r2v run --config configs/mrp.yaml --without ablations": "tests/test_mrp.py::test_a_second_run_does_nothing",
    "r2v train_router --config configs/mrp.yaml --overrides router.budget=0.1": (
        "tests/test_mrp.py::test_a_router_change_reruns_the_router_and_what_follows"
    ),
    "r2v providers emulate --port 8765 --answer desk": (
        "tests/emulator/test_state.py::test_a_killed_process_is_continued_by_the_same_command"
    ),
    "r2v providers emulate --answer judge desk": (
        "tests/emulator/test_models.py::test_several_answers_are_asked_in_turn"
    ),
    "r2v collect --num-episodes 50 --overrides teacher.provider=openai teacher.model_name=gpt-7-nova teacher.usd_in=2 "
    "teacher.usd_out=8 'teacher.model.effort=[low,high]' teacher.model.tools=responses teacher.model.batch_price=0.5 "
    "teacher.model.cached_price=0.1": (
        "tests/llm/providers/test_teacher.py::test_a_current_model_demonstrates_by_configuration_alone"
    ),
    "r2v train_hierarchical --config configs/hierarchical.yaml": (
        "tests/seeds/test_hierarchical.py::test_the_command_needs_no_argument"
    ),
    "r2v train_hierarchical --config configs/hierarchical/gsm8k.yaml --overrides "
    "hierarchical.problems.path=gsm8k.jsonl": (
        "tests/stages/test_train_hierarchical.py::test_gsm8ks_configuration_trains_a_small_model_to_the_end"
    ),
    "r2v run --config configs/hierarchical/desk.yaml": (
        "tests/stages/test_train_hierarchical.py::test_an_actor_is_trained_on_states_of_tasks_and_then_evaluated"
    ),
    "python scripts/run_memory_optimized.py": "tests/seeds/test_hierarchical.py::test_the_command_needs_no_argument",
    "r2v resume desk_noisy --from preference --overrides training.preference.batch_size=1": (
        "tests/slurm/test_run_all.py::test_resume_prints_the_difference_and_keeps_what_waits"
    ),
    "PYTHONPATH=. r2v train_hierarchical --config configs/hierarchical.yaml --overrides "
    "hierarchical.problems.checker=mychecks:close": (
        "tests/hrl/test_extending.py::test_one_file_adds_a_checker_and_a_reward"
    ),
    "r2v export outputs/bundles/desk --config configs/mrp.yaml": (
        "tests/serve/bundle/test_manifest.py::test_the_command_writes_checks_and_refuses"
    ),
    "r2v export outputs/bundles/desk --check": (
        "tests/serve/bundle/test_manifest.py::test_the_command_writes_checks_and_refuses"
    ),
    "r2v game label results/batch_jobs/JOB --sample 40 --output labels.jsonl": (
        "tests/cli/game/test_labels.py::test_a_sample_is_shown_recorded_and_gone_on_with"
    ),
    "python benchmarks/hrl_study.py --table": "shows what its runs left; they take hours of CPU",
    "python benchmarks/hrl_learning.py": "trains for six minutes of CPU",
    "python benchmarks/hrl_speed.py": "measures for minutes, beside TRL",
}
"""Commands that are not run here: the test that runs each, as file::name, or the reason why none can."""


@dataclass(frozen=True)
class Checkout:
    """A fresh clone to type a page's commands in."""

    root: Path

    def small(self, command: str) -> str:
        """Return the command with its stand-ins; the newest run replaces RUN, a game's job JOB."""
        for pattern, instead in STAND_INS:
            command = re.sub(pattern, instead, command)
        for job in (self.root / "results" / "batch_jobs").glob("*"):
            command = command.replace("/JOB", f"/{job.name}")
        runs = sorted(path.name for path in (self.root / "data" / "runs").glob("*"))
        return command.replace(" RUN", f" {runs[-1]}") if runs else command

    def run(self, command: str) -> tuple[int, str]:
        """Return exit code and output of a command."""
        words = shlex.split(os.path.expandvars(command))
        with standing_in(self.root), through(FakeInProcess()), redirect_stdout(StringIO()) as printed:
            if words[0] == "export":
                os.environ.update(dict(word.split("=", 1) for word in words[1:]))
                return 0, ""
            words = [path for word in words for path in (map(str, Path().glob(word)) if "*" in word else [word])]
            if words[0] == "r2v" or words[:3] == ["python", "-m", "r2v"]:
                return r2v(words[1 if words[0] == "r2v" else 3 :]), printed.getvalue()
            done = subprocess.run(["bash", "-c", shlex.join(words)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


def any_answer(question: EmulatedRequest) -> str:
    """Return the answer of a player of the Secret Game if a secret is at stake, else of the desk's expert."""
    return (game if "secret" in question.messages[0].content else load_answer("desk"))(question)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    folder = tmp_path_factory.mktemp("emulator")
    with Emulator(answer=any_answer, lifecycle=Lifecycle(seconds=0), folder=folder) as running:
        yield running


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulator: Emulator) -> Checkout:
    """Make a checkout with scripts, configurations and examples; `python` and `r2v` are those of these tests."""
    root = tmp_path / "clone"
    for name in ("scripts", "configs", "examples", "benchmarks"):
        shutil.copytree(REPOSITORY / name, root / name)
    for name in ("run_all.sh", "bg_experiment.sh"):
        shutil.copy(REPOSITORY / name, root)
    for name in ("bin", "logs", "slurm"):
        (root / name).mkdir()
    for name, start in (("python", ""), ("r2v", "-m r2v")):
        (root / "bin" / name).write_text(f'#!/bin/sh\nexec {shlex.quote(warm.python())} {start} "$@"\n')
        (root / "bin" / name).chmod(0o755)
    settings = {
        "PATH": f"{FAKE}:{root / 'bin'}:{os.environ['PATH']}",
        "SLURM_CONF": str(root / "slurm" / "slurm.conf"),
        "PYTHONPATH": f"{FAKE_INSIDE}:{REPOSITORY}",
        "OPENAI_API_KEY": "any",
        "ANTHROPIC_API_KEY": "any",
        "OPENAI_BASE_URL": emulator.openai_url,
        "ANTHROPIC_BASE_URL": emulator.anthropic_url,
        "OMP_NUM_THREADS": "1",
    }
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    monkeypatch.syspath_prepend(str(root))
    return Checkout(root)


WITH_COMMANDS = [page for page in PAGES if any(block.language == "bash" for block in blocks_of(page))]
COMMANDS = [
    command for page in PAGES for block in blocks_of(page) if block.language == "bash" for command in block.commands
]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_every_command_of_a_page_works_in_the_order_of_the_page(page: Path, checkout: Checkout) -> None:
    commands = [command for block in blocks_of(page) if block.language == "bash" for command in block.commands]
    if page.name in FILES:
        (checkout.root / FILES[page.name]).write_text(next(b.text for b in blocks_of(page) if b.language == "python"))
    for command in (*BEFORE.get(page.name, ()), *commands):
        if command in ELSEWHERE:
            continue
        assert command.startswith("export ") or not PLACEHOLDER.search(command), (
            f"{command}: cannot be typed as it stands"
        )
        code, output = checkout.run(checkout.small(command))
        assert code in EXITS.get(command, {0}), f"{command}\n{output}"


def test_what_is_not_run_here_has_its_test_or_its_reason() -> None:
    assert set(ELSEWHERE) <= set(COMMANDS) and set(EXITS) <= set(COMMANDS)
    for command, elsewhere in ELSEWHERE.items():
        file, separator, name = elsewhere.partition("::")
        if separator:
            assert f"def {name}(" in (REPOSITORY / file).read_text(), f"{command}: {elsewhere} is not there"


def python_blocks() -> list[Block]:
    """Return the Python blocks of every page but three: library.md, whose blocks are the cells of one notebook, and
    those whose block asks a served bundle. They have tests of their own."""
    pages = (page for page in PAGES if page.name not in ("library.md", "README.md", "quickstart-serve.md"))
    return [block for page in pages for block in blocks_of(page) if block.language == "python"]


@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: block.page)
def test_the_python_of_a_page_runs(block: Block, checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = checkout.run("r2v collect --num-episodes 2 --seeds 1")
    assert code == 0, output
    with standing_in(checkout.root), redirect_stdout(StringIO()):
        monkeypatch.setitem(sys.modules, "page", page := ModuleType("page"))
        exec(compile(block.text, block.page, "exec"), page.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_yaml_of_a_page_is_a_configuration(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.language == "yaml":
            if page.name == "slurm-sites.md":
                write_text(tmp_path / SCRIPTS / "site.yaml", block.text)
                assert "account" in project_profile(tmp_path).directives(gpus=0)
                continue
            (tmp_path / "page.yaml").write_text(block.text)
            load(tmp_path / "page.yaml")
