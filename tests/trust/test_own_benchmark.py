"""An audit of results without R2V's own benchmarks and expert: a user's benchmark, its held-out tasks, and an LLM
behind a provider's API (the emulator's). The promises for desk hold here too, under --trust."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.own_benchmark import put, read_label
from r2v.emulator import EmulatedRequest, Emulator
from r2v.llm.types import Request
from tests import warm
from tests.trust.tampering import copy_results, make_consistent, read, verify, write

MODULE = (
    (Path(__file__).parents[2] / "examples" / "own_benchmark.py").read_text()
    + '''

class Carts(Parcels):
    """Parcels that says itself of which split each task is."""

    name = "carts"

    def tasks(self):
        splits = ("train", "calibration", "evaluation", "heldout")
        return [
            Task(task_id=one.task_id, goal=one.goal, payload=one.payload, split=splits[index % 4])
            for index, one in enumerate(super().tasks())
        ]
'''
)
CONFIGURATION = """
prefix: micro
env: {benchmark: "carts:Carts", options: {num_tasks: 40, parcels: 2}}
teacher: {provider: openai, model_name: gpt-5.2, mode: concurrent, max_tokens: 64, max_usd: 50}
inference: {max_steps: 5}
evaluation:
  {methods: [llm_only, slm_base], conditions: [noisy, heldout], seeds: [1], num_tasks: 3, budgets: [], bootstrap: 50}
"""
FILE = "episodes/heldout/llm_only.jsonl.zst"


def answer(request: EmulatedRequest) -> str:
    """Return the action of a careful reader of labels, behind an API."""
    label = read_label(Request(messages=request.messages, key=()))
    return '{"tool":"scan"}' if label is None else put(label)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "carts").with_suffix(".py").write_text(MODULE)
    (folder / "carts.yaml").write_text(CONFIGURATION)
    with Emulator(answer=answer) as emulator:
        made = warm.run(
            folder,
            *("evaluate", "--config", "carts.yaml", "--overrides", f"teacher.base_url={emulator.openai_url}"),
            env={"OPENAI_API_KEY": "of the emulator"},
        )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture
def results(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    return copy_results(project, tmp_path / "results")


def test_an_honest_folder_of_a_benchmark_of_ones_own_holds_where_its_code_is_trusted(results: Path) -> None:
    code, out, err = verify(results, "--trust")
    assert code == 0, err
    assert "importing extension: key=env.benchmark path=carts:Carts file=" in err
    assert "12 episodes replayed" in out
    assert "not proved: the LLM's replies and tokens" in out
    assert "not proved: whose replies slm_bc_only and slm_base hold" in out


def test_without_trust_nothing_is_imported(results: Path) -> None:
    code, _, err = verify(results)
    assert code == 3 and "carts:Carts, which is code" in err and "importing" not in err


def test_code_that_moved_on_is_named(project: Path, results: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    code = (other / "carts").with_suffix(".py")
    code.write_text(MODULE.replace('"parcels", "1"', '"parcels", "2"'))
    moved = warm.run(other, "verify-results", str(results), "--trust")
    assert moved.returncode == 3 and "this R2V has version 2" in moved.stderr.replace("\n", " "), moved.stderr
    code.unlink()
    gone = warm.run(other, "verify-results", str(results), "--trust")
    assert gone.returncode in (2, 3) and gone.stderr.strip().count("\n") == 0 and "carts" in gone.stderr, gone.stderr


def _of_each(change: Callable[[dict[str, Any]], None], pattern: str = FILE) -> Callable[[Path], None]:
    def tell(results: Path) -> None:
        for path in sorted(results.glob(pattern)):
            records = read(path)
            for record in records:
                change(record)
            write(path, records)

    return tell


def _dearer(episode: dict[str, Any]) -> None:
    episode["total_cost"] *= 10


def _fewer_tokens(episode: dict[str, Any]) -> None:
    episode["tokens"]["llm_in"] //= 2


def _failed(episode: dict[str, Any]) -> None:
    episode["success"] = False


def _succeeded(episode: dict[str, Any]) -> None:
    episode.update(success=True, partial_score=1.0)


def _a_fault(episode: dict[str, Any]) -> None:
    episode.update(env_fault="site 500", termination="env_error", success=False)


def _another_split(episode: dict[str, Any]) -> None:
    episode["metadata"]["split"] = "evaluation"


def _by_the_small_policy(episode: dict[str, Any]) -> None:
    tokens = episode["tokens"]
    tokens.update(slm_in=tokens["llm_in"], slm_out=tokens["llm_out"], llm_in=0, llm_out=0)
    episode.update(num_llm_fallbacks=0, total_cost=0.0)
    for step in episode["steps"]:
        step["action_source"] = "slm"


def _other_tasks(results: Path) -> None:
    """Play the easier tasks of the usual split in place of the held-out ones."""
    (setup,) = read(results / "setup.json")
    setup["tasks"]["heldout"] = setup["tasks"]["noisy"]
    write(results / "setup.json", [setup])
    for method in setup["methods"]:
        episodes = read(results / f"episodes/noisy/{method}.jsonl.zst")
        write(results / f"episodes/heldout/{method}.jsonl.zst", [{**one, "condition": "heldout"} for one in episodes])


def _another_options(results: Path) -> None:
    """Make the cart smaller, in configuration and setup alike."""
    (setup,), (config,) = read(results / "setup.json"), read(results / "config.yaml")
    setup["world"]["env"]["options"]["parcels"] = config["env"]["options"]["parcels"] = 1
    write(results / "setup.json", [setup])
    write(results / "config.yaml", [config])


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "dearer replies": (_of_each(_dearer), "total_cost"),
    "fewer tokens at the old cost": (_of_each(_fewer_tokens), "tokens.llm_in"),
    "failures": (_of_each(_failed), "executed success=true"),
    "successes of the small policy": (_of_each(_succeeded, "episodes/*/slm_base.jsonl.zst"), "executed success=false"),
    "faults": (_of_each(_a_fault), "claimed fault"),
    "held-out tasks as usual ones": (_of_each(_another_split), "split"),
    "usual tasks as held-out ones": (_other_tasks, "setup.json tasks"),
    "a provider's replies as the small policy's": (_of_each(_by_the_small_policy), "action_source"),
    "an easier world": (_another_options, "config_sha256"),
}
"""Lies, each with the word that names it."""


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_a_benchmark_of_ones_own_is_named(name: str, results: Path) -> None:
    tell, word = LIES[name]
    tell(results)
    make_consistent(results)
    code, _, err = verify(results, "--trust")
    said = [line for line in err.splitlines() if not line.startswith("importing")]
    assert code == 3 and len(said) == 1 and re.search(re.escape(word), said[0]), err
