"""Model card: a bundle's README.md, in the format of the Hugging Face hub.

Its table is the main table of the evaluation, as executed: success rates with their intervals, the share of LLM steps
and the cost of an episode. Nothing on the card is an estimate. That of an imputed router says why it has none.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from r2v.config.yaml_text import write
from r2v.errors import InputError
from r2v.serve.bundle.manifest import BUNDLE_MANIFEST, BundleManifest

_CHECKING = (
    f"\n`{BUNDLE_MANIFEST}` has the hash of every file: `r2v export DIR --check`, or "
    "`r2v.serve.bundle.manifest.read_bundle`, reads a bundle only where all hold.\n"
)
_COLUMNS = ("condition", "method", "success", "interval", "LLM steps", "USD an episode")
_LOADING = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

policy = AutoModelForCausalLM.from_pretrained("policy")     # a folder of this bundle{note}
tokenizer = AutoTokenizer.from_pretrained("policy")
```"""
_THINKING = """
Prompts were rendered with `enable_thinking={value}`. Pass it to `tokenizer.apply_chat_template`, and
`{{"chat_template_kwargs": {{"enable_thinking": {json}}}}}` in requests to a chat server such as vLLM's."""


def model_card(manifest: BundleManifest, table: Path, level: float) -> str:
    """Return the text of a card. `table`: main_table.csv of the evaluation; `level`: of its intervals, in (0, 1)."""
    rows = read_table(table)
    counts = {f"{row['n_tasks']} tasks x {row['n_seeds']} seeds" for row in rows}
    faults = sum(int(row["n_env_faults"] or 0) for row in rows)
    parts = [
        _head(manifest),
        f"# R2V: {_plain(manifest.benchmark)}\n",
        _parts(manifest),
        "## Executed results\n",
        _table(rows),
        f"\nEach row: {', '.join(sorted(counts))}. Every success was executed in the environment and replays; "
        f"intervals are {level:.0%} intervals over tasks. {_faults(faults)} Content of the evaluation: "
        f"`{manifest.results_sha256}`, as `r2v verify-results` prints it. Nothing is said of other tasks, other "
        "benchmarks, or another LLM.\n",
        "## Routing\n",
        f"The LLM acts at a step whose score is at least {manifest.threshold:g}. On calibration tasks that came to "
        f"{manifest.llm_call_rate:.1%} of the steps. The router reads features of version {manifest.feature_version}; "
        "prices are in `prices.json`.\n",
        "## Use\n",
        _loading(manifest),
        _CHECKING,
    ]
    return "\n".join(parts)


def _parts(manifest: BundleManifest) -> str:
    """Return the paragraph on a bundle's models."""
    benchmark, model = _plain(manifest.benchmark), _plain(manifest.base_model)
    of = f"the benchmark `{benchmark}` (version {_plain(manifest.benchmark_version) or 'not given'})"
    if manifest.weights == "none":
        return (
            f"A router for two models behind APIs, fitted by R2V on {of}: `{model}` acts, and the LLM is asked where "
            "that pays. Both are named in `settings.json`; a bundle holds no weights of theirs.\n"
        )
    return (
        f"A small policy distilled from an LLM on {of}, a verifier of its actions, and a router that asks the LLM "
        f"where that pays. Made by R2V from `{model}` ({manifest.weights} weights).\n"
    )


def imputed_card(manifest: BundleManifest, placed: dict[str, Any], report: dict[str, Any]) -> str:
    """Return the text of the card of an imputed router, whose figures are of records, not of executed episodes."""
    held = report["calibration"]
    agreement = placed["agreement_of_kept_steps"]
    model = _plain(manifest.base_model)
    about = (
        f"A router for two models behind APIs, fitted by R2V on recorded sessions with imputed labels: `{model}` acts, "
        "and the LLM is asked elsewhere. Both are named in `settings.json`; a bundle holds no weights of theirs.\n"
        if manifest.weights == "none"
        else f"A small policy cloned from recorded trajectories (`{_plain(manifest.benchmark)}`), and a router whose "
        f"labels are imputed. Made by R2V from `{model}` ({manifest.weights} weights).\n"
    )
    parts = [
        _head(manifest),
        f"# R2V: {_plain(manifest.benchmark)}, imputed router\n",
        about,
        "## Nothing was executed\n",
        "There is no table of results, because no episode was played: neither the policy's success nor what the LLM's "
        "steps would gain was measured. The router was fitted to tell where the policy, shown a state in which its "
        "teacher was recorded, acts otherwise than the teacher did. Another action may be as good and an equal one may "
        "fail, and the states are the teacher's own, not those that the policy would come to.\n",
        "## Imputed figures\n",
        "| on recorded tasks that it was calibrated on | |\n| --- | ---: |",
        f"| steps, of tasks | {held['steps']}, of {held['tasks']} |",
        f"| the policy acts as its teacher | {placed['agreement']:.3f} |",
        f"| the same, of the steps that the router keeps | {'-' if agreement is None else format(agreement, '.3f')} |",
        f"| AUROC of the router for disagreement | {'-' if held['auroc'] is None else format(held['auroc'], '.3f')} |",
        "\n## Routing\n",
        f"The LLM acts at a step whose score is at least {manifest.threshold:g}, which are "
        f"{manifest.llm_call_rate:.1%} of the recorded steps; of episodes that are played it may be another share. The "
        f"router reads features of version {manifest.feature_version}. Dollars and agreement at other shares: "
        "`records.html`.\n",
        "## Use\n",
        "```bash\nr2v serve DIR --llm PROVIDER:MODEL --overrides teacher.max_usd=20\n```",
        _CHECKING,
    ]
    return "\n".join(parts)


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows over all seeds of a main table. Raise InputError where it has none, or lacks a column."""
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["seed"] == "all"]
        for row in rows:
            float(row["success_rate"] or "nan"), float(row["llm_call_rate"] or "nan"), float(row["avg_cost"] or "nan")
            row["n_tasks"], row["n_seeds"], row["n_env_faults"], row["success_rate_ci"]
    except (OSError, KeyError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: not the main table of an evaluation ({error}); evaluate again") from error
    if not rows:
        raise InputError(f"{path}: has no row over all seeds; evaluate again")
    return rows


def _loading(manifest: BundleManifest) -> str:
    """Return the section on loading the policy and rendering its prompts."""
    if manifest.weights == "none":
        return "```bash\npython -m examples.play_bundle BUNDLE    # in a checkout of R2V, with the providers' keys\n```"
    note = "" if manifest.weights == "full" else ": adapters, so peft has to be installed"
    value = manifest.enable_thinking
    thinking = "" if value is None else "\n" + _THINKING.format(value=value, json=json.dumps(value))
    return _LOADING.format(note=note) + thinking


def _head(manifest: BundleManifest) -> str:
    """Return the YAML head that the hub reads."""
    tags = ["r2v", "agent", "routing"] if manifest.weights == "none" else ["r2v", "agent", "distillation", "routing"]
    head: dict[str, Any] = {"pipeline_tag": "text-generation", "tags": tags}
    if manifest.weights != "none":
        head = {"library_name": "transformers" if manifest.weights == "full" else "peft", **head}
    if (
        manifest.weights != "none"
        and "/" in manifest.base_model
        and not manifest.base_model.startswith((".", "/", "~"))
    ):
        head["base_model"] = manifest.base_model
    return f"---\n{write(head)}---\n"


def _table(rows: Sequence[dict[str, str]]) -> str:
    lines = [" | ".join(_COLUMNS), " | ".join(["---"] * 2 + ["---:"] * 4)]
    for row in rows:
        bounds = json.loads(row["success_rate_ci"] or "null")
        shown = "not computed" if not isinstance(bounds, list) else f"[{bounds[0]:.3f}, {bounds[1]:.3f}]"
        success = f"{float(row['success_rate']):.3f}" if row["success_rate"] else "not measured"
        lines.append(
            f"{_plain(row['condition'])} | {_plain(row['method'])} | {success} | {shown} | "
            f"{_number(row['llm_call_rate'], '.3f')} | {_number(row['avg_cost'], '.6f')}"
        )
    return "\n".join(f"| {line} |" for line in lines)


def _number(text: str, form: str) -> str:
    return format(float(text), form) if text else "-"


def _faults(count: int) -> str:
    return f"{count} episodes that a fault of the world ended are in no rate." if count else "No episode was left out."


def _plain(text: str) -> str:
    """Return text of a configuration without characters that Markdown or a terminal interprets."""
    return "".join(c if c.isprintable() and c not in "|`<>[]" else " " for c in text)[:200]
