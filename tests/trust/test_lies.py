"""Consistent lies: forged results with a better number, whose tables and hashes are made to fit."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import trust, warm
from tests.test_imports import HEAVY, REPOSITORY
from tests.trust import drawn
from tests.trust.alter import BYTES, hard_copy, read_records, rewrite, write_records
from tests.trust.tampering import KINDS, copy_results, files_of, make_consistent, read, rehash, verify, write


def _rewrite(results: Path, pattern: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every episode of the files that match."""
    for path in sorted(results.glob(pattern)):
        records = read(path)
        for record in records:
            change(record)
        write(path, records)


def _failures_as_faults(results: Path) -> None:
    def change(episode: dict[str, Any]) -> None:
        if not episode["success"]:
            episode["env_fault"] = "browser died"
        episode["total_cost"] /= 10

    _rewrite(results, "episodes/*/r2v.jsonl.zst", change)


def _failures_as_whole_faults(results: Path) -> None:
    """As above, with all fields of a fault."""

    def change(episode: dict[str, Any]) -> None:
        if not episode["success"]:
            episode.update(env_fault="browser died", termination="env_error")

    _rewrite(results, "episodes/*/r2v.jsonl.zst", change)


def _llm_as_slm(results: Path) -> None:
    """File llm_only's episodes as slm_only's, with edited bill and sources."""

    def change(episode: dict[str, Any]) -> None:
        tokens = episode["tokens"]
        tokens.update(slm_in=tokens["llm_in"], slm_out=tokens["llm_out"], llm_in=0, llm_out=0)
        episode.update(method="slm_only", total_cost=0.0001, num_llm_fallbacks=0)
        for step in episode["steps"]:
            step["action_source"] = "slm"

    path = results / "episodes" / "noisy" / "slm_only.jsonl.zst"
    write(path, read(path.with_name("llm_only.jsonl.zst")))
    _rewrite(results, "episodes/*/slm_only.jsonl.zst", change)


def _llm_as_slm_with_its_gains(results: Path) -> None:
    """As above, without the rows of the gains."""
    _llm_as_slm(results)
    for path in files_of(results, "gains"):
        write(path, [{**row, "slm_episode_success": True, "q_slm": 1.0} for row in read(path)])


def _oracle_as_r2v(results: Path) -> None:
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    write(path, read(path.with_name("oracle_router.jsonl.zst")))
    _rewrite(results, "episodes/*/r2v.jsonl.zst", lambda episode: episode.update(method="r2v"))


def _everything_by_the_slm(results: Path) -> None:
    """Relabel LLM steps, with decisions and counts to match, in the coin's episodes, which every run has."""
    relabelled = 0

    def change(episode: dict[str, Any]) -> None:
        nonlocal relabelled
        for step in episode["steps"]:
            relabelled += step["action_source"] == "llm_fallback"
            step["action_source"] = "slm"
            step["decision"]["escalated"] = False
        episode["num_llm_fallbacks"] = 0
        episode["tokens"].update(llm_in=0, llm_out=0)

    _rewrite(results, "episodes/*/random_router.jsonl.zst", change)
    assert relabelled


def _cheaper(results: Path) -> None:
    """Halve the tokens and the cost of every episode."""

    def change(episode: dict[str, Any]) -> None:
        episode["total_cost"] /= 2
        episode["tokens"] = {name: count // 2 for name, count in episode["tokens"].items()}

    _rewrite(results, "episodes/*/*.jsonl.zst", change)


def _cheaper_prices(results: Path) -> None:
    """Lower the LLM's prices in setup.json, and every cost with them."""
    (setup,) = read(results / "setup.json")
    setup["prices"]["llm"].update(input=0.003, output=0.012)
    write(results / "setup.json", [setup])
    _rewrite(results, "episodes/*/*.jsonl.zst", lambda episode: episode.update(total_cost=episode["total_cost"] / 1000))


def _no_injections(results: Path) -> None:
    def change(episode: dict[str, Any]) -> None:
        for step in episode["steps"]:
            step["perturbations"] = []
            step["label"] = None
        episode["perturbation_type"] = "none"

    _rewrite(results, "episodes/*/*.jsonl.zst", change)


def _a_method_less(results: Path) -> None:
    """Drop an inconvenient baseline, with its files."""
    (setup,) = read(results / "setup.json")
    setup["methods"].remove("random_router")
    setup["frontier"]["noisy"].pop("random_router")
    setup["router_scores"] = [scores for scores in setup["router_scores"] if scores["method"] != "random_router"]
    write(results / "setup.json", [setup])
    for path in results.glob("episodes/*/**/random_router*"):
        path.unlink()


def _a_task_less(results: Path) -> None:
    """Leave the failed task out everywhere."""
    (setup,) = read(results / "setup.json")
    gone = setup["tasks"]["noisy"].pop()
    write(results / "setup.json", [setup])
    for path in files_of(results, "episodes"):
        write(path, [episode for episode in read(path) if episode["metadata"]["task_id"] != gone])
    for path in files_of(results, "gains"):
        write(path, [row for row in read(path) if row["task_id"] != gone])


def _another_threshold(results: Path) -> None:
    """Move escalations to a threshold chosen afterwards, in decisions and calibration alike."""
    (calibration,) = read(results / "calibration.json")
    calibration["random_router@main"]["tau"] = 0.999
    write(results / "calibration.json", [calibration])

    def change(episode: dict[str, Any]) -> None:
        for step in episode["steps"]:
            step["decision"]["threshold"] = 0.999

    _rewrite(results, "episodes/*/random_router.jsonl.zst", change)


def _a_rival_that_never_asks(results: Path) -> None:
    """Set the coin's threshold to 1, and its episodes to those of the small policy."""
    (calibration,) = read(results / "calibration.json")
    for name, record in calibration.items():
        if name.startswith("random_router@"):
            record.update(tau=1.0, llm_call_rate=0.0, success=0.0, cost=0.0001)
    write(results / "calibration.json", [calibration])
    small = read(results / "episodes" / "noisy" / "slm_only.jsonl.zst")
    for path in results.glob("episodes/noisy/**/random_router*"):
        kept = {episode["episode_id"]: episode["extra"] for episode in read(path)}
        never = {**read(path)[0]["steps"][0]["decision"], "p_escalate": None, "threshold": 1.0, "escalated": False}
        write(
            path,
            [
                {
                    **episode,
                    "method": "random_router",
                    "extra": kept[episode["episode_id"]],
                    "steps": [{**step, "decision": never} for step in episode["steps"]],
                }
                for episode in small
                if episode["episode_id"] in kept
            ],
        )


def _a_rival_that_seldom_succeeds_in_calibration(results: Path) -> None:
    """As above, by calibration episodes marked as failed, so that another threshold is found."""

    def change(episode: dict[str, Any]) -> None:
        episode["success"] = False

    _rewrite(results, "calibration/random_router.jsonl.zst", change)


def _an_oracle_of_the_llm(results: Path) -> None:
    """Fill the upper bound with the episodes of the LLM alone."""
    path = results / "episodes" / "noisy" / "oracle_router.jsonl.zst"
    write(path, read(path.with_name("llm_only.jsonl.zst")))

    def change(episode: dict[str, Any]) -> None:
        episode["method"] = "oracle_router"
        for step in episode["steps"]:
            step["decision"] = {"p_escalate": None, "threshold": None, "escalated": True, "reason": "router"}
            step["decision"].update(candidates=[], chosen_index=0)

    _rewrite(results, "episodes/noisy/oracle_router.jsonl.zst", change)


def _an_oracle_and_its_branches(results: Path) -> None:
    """As above, with branches in which the small policy always fails and the LLM saves the episode."""
    _an_oracle_of_the_llm(results)
    path = results / "branches" / "noisy" / "oracle_router.jsonl.zst"
    own = {episode["episode_id"] for episode in read(path)}
    write(path, [episode for episode in read(path) if episode["episode_id"] not in own])


def _gains_everywhere(results: Path) -> None:
    """Let every branch of the gains succeed, in its record and in its row."""
    for path in files_of(results, "gains"):
        rows = [{**row, "q_llm": 1.0} if row["disagrees"] and row["actor"] == "slm" else row for row in read(path)]
        write(path, rows)

    def change(episode: dict[str, Any]) -> None:
        episode["success"] = episode["success"] or "branched_at" in episode["extra"]

    _rewrite(results, "branches/*/gains.jsonl.zst", change)


def _a_cheaper_calibration(results: Path) -> None:
    """Change the point that r2v was trained to, and every target that follows from it."""
    (calibration,) = read(results / "calibration.json")
    for name, record in calibration.items():
        if name.endswith("@main"):
            record.update(target=0.0625, llm_call_rate=0.0625 if record["tau"] < 1 else 0.0)
    write(results / "calibration.json", [calibration])


def _files_of_other_spellings(results: Path) -> None:
    for name in (
        "tmp/index.html",
        ".run_me.sh",
        "checkpoint-best/main_table.csv",
        "RESULTS.meta.json",
        "tmp-summary",
    ):
        (results / name).parent.mkdir(exist_ok=True)
        (results / name).write_text("r2v,0.999")


def _another_router(results: Path) -> None:
    """Name another stage as the source of the inputs, and remove one."""
    (attempt,) = read(results / "attempt.meta.json")
    attempt["inputs"]["router"]["stage"] = "r2v.stages.evaluate:STAGE"
    del attempt["inputs"]["bc"]
    write(results / "attempt.meta.json", [attempt])


def _fewer_resamples(results: Path) -> None:
    (setup,) = read(results / "setup.json")
    setup.update(resamples=1, level=0.5)
    write(results / "setup.json", [setup])


def _another_configuration(results: Path) -> None:
    """Change configuration and setup alike, but the hash of neither episode nor fingerprint."""
    (config,) = read(results / "config.yaml")
    config["evaluation"]["bootstrap"] = 60
    write(results / "config.yaml", [config])
    (setup,) = read(results / "setup.json")
    setup["resamples"] = 60
    write(results / "setup.json", [setup])


def _better_table(results: Path) -> None:
    """Change a table alone, with its hashes in both manifests."""
    path = results / "structured_results" / "main_table.csv"
    rewrite(path, path.read_bytes().replace(b"0.333333", b"0.933333").replace(b",0,", b",1,"))


def _no_manifest(results: Path) -> None:
    (results / "artifact.json").unlink()


def _no_configuration(results: Path) -> None:
    (results / "config.yaml").unlink()


def _a_file_more(results: Path) -> None:
    rewritten = results / "episodes" / "noisy" / "r2v_best.jsonl.zst"
    rewritten.write_bytes((results / "episodes" / "noisy" / "r2v.jsonl.zst").read_bytes())


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "failures as faults": (_failures_as_faults, "claimed fault"),
    "failures as whole faults": (_failures_as_whole_faults, "claimed fault"),
    "llm_only filed as slm_only": (_llm_as_slm, "small policy's action"),
    "llm_only filed as slm_only, gains too": (_llm_as_slm_with_its_gains, "small policy's action"),
    "oracle_router filed as r2v": (_oracle_as_r2v, "decision"),
    "LLM steps as the small policy's": (_everything_by_the_slm, "tokens"),
    "half the tokens": (_cheaper, "tokens"),
    "lower prices": (_cheaper_prices, "prices"),
    "no injections": (_no_injections, "perturbations"),
    "a method less": (_a_method_less, "setup.json methods"),
    "a task less": (_a_task_less, "setup.json tasks"),
    "another threshold": (_another_threshold, "calibration.json"),
    "a rival that never asks": (_a_rival_that_never_asks, "calibration.json"),
    "a rival that seldom succeeds": (_a_rival_that_seldom_succeeds_in_calibration, "executed success"),
    "an oracle of the LLM": (_an_oracle_of_the_llm, "oracle"),
    "an oracle without branches": (_an_oracle_and_its_branches, "no branch was tried"),
    "gains everywhere": (_gains_everywhere, "executed success"),
    "a cheaper calibration": (_a_cheaper_calibration, "calibration.json"),
    "files of other spellings": (_files_of_other_spellings, "stray file"),
    "another router": (_another_router, "attempt.meta.json"),
    "fewer resamples": (_fewer_resamples, "resamples"),
    "another configuration": (_another_configuration, "config_sha256"),
    "a better table": (_better_table, "tables"),
    "no manifest": (_no_manifest, "artifact.json"),
    "no configuration": (_no_configuration, "config.yaml"),
    "a file more": (_a_file_more, "stray file"),
}
"""Lies of more than one leaf, by a forger who wants a better number. With each, the word that names it."""


@pytest.mark.parametrize("name", LIES)
def test_a_lie_that_fits_in_itself_is_named(name: str, small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    tell, word = LIES[name]
    tell(results)
    if name != "a better table":
        make_consistent(results)
    else:
        rehash(results)
    code, _, err = verify(results, *(["--all"] if name == "a rival that seldom succeeds" else []))
    assert code == 3 and err.count("\n") == 1 and word in err, err


def test_another_small_policys_episodes_are_not_told_apart_and_the_audit_says_so(
    small_results: Path, tmp_path: Path
) -> None:
    results = copy_results(small_results, tmp_path / "results")
    path = results / "episodes" / "noisy" / "slm_bc_only.jsonl.zst"
    write(path, [{**episode, "method": "slm_bc_only"} for episode in read(path.with_name("slm_only.jsonl.zst"))])
    make_consistent(results)
    code, out, err = verify(results)
    assert code == 0 and "not proved: whose replies slm_bc_only and slm_base hold" in out, err
    write(path, [{**episode, "method": "slm_bc_only"} for episode in read(path.with_name("oracle_router.jsonl.zst"))])
    make_consistent(results)
    assert "decision" in verify(results)[2], "what the LLM did is told apart"


@pytest.mark.parametrize(("kind", "damage"), drawn([*itertools.product(KINDS, sorted(BYTES))], 8, "bytes of results"))
def test_a_damaged_file_is_named(kind: str, damage: str, small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    path = files_of(results, kind)[0]
    whole = path.read_bytes()
    BYTES[damage](path)
    code, _, err = verify(results)
    if code == 0 and (kind, damage) == ("attempt", "bit flip"):  # it hit a figure that docs/trust.md lists
        assert _without_summaries(path.read_bytes()) == _without_summaries(whole)
        return
    assert code == 3 and err.count("\n") == 1 and path.stem.partition(".")[0] in err, err


def _without_summaries(attempt: bytes) -> Any:
    record = json.loads(attempt)
    return {**record, "inputs": {name: {**one, "summary": None} for name, one in record["inputs"].items()}}


def test_an_honest_folder_holds_and_says_what_it_does_not_prove(small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    code, out, err = verify(results)
    assert code == 0 and "not proved: the small policy's replies" in out, err
    (digest,) = [line.split()[1] for line in out.splitlines() if line.startswith("content ")]
    assert re.fullmatch(r"[0-9a-f]{64}", digest)
    moved = copy_results(small_results, tmp_path / "elsewhere")
    assert f"content {digest}" in verify(moved)[1]


def test_an_honest_folder_without_routers_and_of_wild_samples_holds(micro_run: Path, tmp_path: Path) -> None:
    """Without routing there are no gains, and a sample may hold special tokens, which no text shows."""
    project = hard_copy(micro_run, tmp_path / "project")
    small = ("evaluation.num_tasks=3", "evaluation.conditions=[noisy]", "evaluation.budgets=[]")
    wild = ("evaluation.methods=[slm_only,best_of_k]", "inference.temperature=3", "inference.top_p=1.0")
    made = warm.run(project, "evaluate", "--config", str(trust.MICRO), "--overrides", *small, *wild)
    assert made.returncode == 0, made.stderr
    code, out, err = verify(project / "results" / "micro")
    assert code == 0 and "6 episodes replayed" in out, err


def test_every_kind_of_record_in_a_results_folder_is_in_the_table(small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    covered = {path for kind in KINDS for path in files_of(results, kind)}
    rest = {path for path in results.rglob("*") if path.is_file() and path not in covered}
    assert {path.suffix for path in rest} <= {".csv", ".md", ".tex"}


def test_an_audit_loads_no_torch(small_results: Path) -> None:
    """Tokens are counted without it, so an audit takes a quarter of the memory and works with a broken torch."""
    code = "import sys; from r2v.cli.main import main; code = main(['verify-results', 'results/micro'])"
    shown = (
        "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; {shown}"],
        cwd=small_results,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.rpartition("LOADED")[2].split())
    assert "tokenizers" in loaded
    assert loaded & (HEAVY - {"scipy", "sklearn", "transformers"}) == set()


def test_results_whose_cells_are_plain_are_audited_alike(small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    for path in files_of(results, "episodes"):
        write_records(path.with_suffix(""), read(path))
        path.unlink()
    rehash(results)
    code, out, err = verify(results)
    assert code == 0 and "identical" in out, err


def test_a_packed_cell_that_lies_or_is_damaged_is_found(small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    first, *rest = read_records(path)
    write_records(path, [{**first, "success": not first["success"]}, *rest])
    rehash(results)
    assert "executed success" in verify(results)[2]
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        rewrite(path, damaged)
        code, _, err = verify(results)
        assert code == 3 and err.count("\n") == 1 and "noisy/r2v.jsonl.zst is damaged" in err, err


def test_a_cell_that_is_there_twice_is_a_stray_file(small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    write_records(path.with_suffix(""), read(path))
    make_consistent(results)
    code, _, err = verify(results)
    assert code == 3 and "stray file" in err and "r2v.jsonl is no part" in err
