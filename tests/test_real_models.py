"""Models that R2V did not make, on a benchmark outside the package, through all ten stages with adapters.

The first has random weights and never succeeds: the chain ends well all the same, and names the parts that could not
learn. The second was trained before on other carts, so it sometimes succeeds.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from examples.hub_models import hub_model
from examples.own_benchmark import Parcels
from r2v.llm.types import Request
from r2v.wire.message import Message
from tests import trust, warm

pytestmark = pytest.mark.numerical

PARCELS = "examples.own_benchmark:Parcels"
MINIMAL = """
prefix: real
env: {{benchmark: "{benchmark}", options: {{num_tasks: {tasks}}}}}
policy: {{model_name: {model}, lora_r: 8, max_seq_len: 512}}
data: {{num_episodes: 60, seeds: [1]}}
training: {{num_epochs: 1, lr: 3e-3, bc: {{max_examples: 40}}}}
inference: {{max_steps: 6, max_new_tokens: 16}}
verifier: {{num_tasks: 10}}
candidates: {{num_samples: 2, num_tasks: 6, num_folds: 2}}
router: {{num_tasks: 6, num_calibration_tasks: 4}}
evaluation:
  num_tasks: 4
  seeds: [1]
  conditions: [noisy]
  methods: [slm_only, llm_only, slm_base, slm_bc_only, entropy_router, verifier_router, r2v]
  budgets: [0.2]
  bootstrap: 200
ablations: {{names: [none], seeds: [1]}}
"""


def transcripts() -> list[str]:
    """Return pages and actions of the expert, as text for a tokenizer."""
    benchmark, texts = Parcels(num_tasks=20), []
    for task in benchmark.tasks():
        world, over = benchmark.make(), False
        page, _ = world.reset(seed=0, task=task)
        while not over:
            request = Request(messages=(Message(role="tool", content=page),), key=(), max_tokens=16)
            texts += [task.goal, page, benchmark.expert(request)]
            page, _, over, _, _ = world.step(texts[-1])
    return texts


def configured(folder: Path, model: Path, tasks: int = 300) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "own.yaml"
    path.write_text(MINIMAL.format(benchmark=PARCELS, model=model, tasks=tasks))
    return path


def run(folder: Path, *words: str) -> str:
    """Return the output of a command that must succeed."""
    done = warm.run(folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def main_table(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "results/real/structured_results/main_table.csv").open() as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def random_model(folder: Path, family: str) -> Path:
    shape: dict[str, Any] = {} if family != "gpt_neox" else {"rotary_pct": 0.25}
    return hub_model(family, folder / "model", transcripts(), **shape)


FAMILIES = ["llama", "qwen2", "qwen3", "gemma", "phi3", "mistral"]
CHAINS = [(family, changes) for family in FAMILIES for changes in ([], ["policy.lora_r=0"])]
FOUR_BITS = [("llama", ["policy.load_in_4bit=true"])]


@pytest.mark.parametrize(
    ("family", "changes"),
    [*CHAINS, *FOUR_BITS] if trust.whole_suites else CHAINS[:1],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "lora",
)
def test_all_ten_stages_end_well_on_a_model_that_never_succeeds(
    family: str, changes: list[str], tmp_path: Path
) -> None:
    config = configured(tmp_path, random_model(tmp_path, family))
    alone = "candidates.continuation=slm"  # with the teacher's continuations there are pairs even for such a model
    said = run(tmp_path, "run", "--config", str(config), "--overrides", alone, *changes)
    assert "stages_run=10/10" in said
    assert "no preference pairs (preference.pair_mode=outcome): margin" in said
    assert "preference training skipped, the cloned policy is published: reason=there are no preference pairs" in said
    assert "router constant, training labels of one class: label=counterfactual" in said
    assert float(main_table(tmp_path)["slm_only"]["success_rate"]) == 0
    caveats = [c["text"] for c in json.loads((tmp_path / BUNDLE).read_text())["caveats"]]
    assert any("gives every step the same score" in text for text in caveats)
    assert any("preference training changed no figure" in text for text in caveats)
    assert "replayed with the recorded results" in run(tmp_path, "verify-results", "results/real", "--trust")


BUNDLE = "results/real/structured_results/eval_bundle.json"
SUCCEEDS = [
    "training.lr=5e-4",
    "evaluation.num_tasks=40",
    "candidates.temperature=1.0",
    "candidates.num_samples=3",
    "router.num_tasks=10",
]


def test_a_student_that_sometimes_succeeds_is_routed(tmp_path: Path) -> None:
    """Full weights make the model; then all ten stages train adapters on it, on other carts."""
    base = hub_model("llama", tmp_path / "base", transcripts(), hidden_size=64, head_dim=16, num_hidden_layers=3)
    whole = ["policy.lora_r=0", "training.num_epochs=8", "training.bc.max_examples=200", "data.num_episodes=200"]
    made = configured(tmp_path / "made", base)
    for command in ("collect", "perturb", "train_policy"):
        stage = ["--stage", "bc"] if command == "train_policy" else []
        run(tmp_path / "made", command, *stage, "--config", str(made), "--overrides", *whole)
    config = configured(tmp_path / "own", tmp_path / "made/outputs/real/policy/bc/final", tasks=400)
    said = run(tmp_path / "own", "run", "--config", str(config), "--overrides", *SUCCEEDS)
    assert "stages_run=10/10" in said
    table = main_table(tmp_path / "own")
    assert 0 < float(table["slm_only"]["success_rate"]) < 1
    assert int(table["slm_only"]["n_tasks"]) == 40
    run(tmp_path / "own", "verify-results", "results/real", "--trust")
