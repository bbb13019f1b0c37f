"""Graph: the edges are the stage table and squeue's dependencies, in every format."""

from __future__ import annotations

import json
import re

import pytest

from r2v.cli import main as cli
from r2v.config import Config
from r2v.pipeline.graph import selection
from tests.slurm.faked import NEEDS, Faked
from tests.slurm.faked import faked as faked

SEED_TABLE = {
    ("collect", "perturb"),
    ("perturb", "bc"),
    ("collect", "verifier"),
    ("bc", "candidates"),
    ("verifier", "candidates"),
    ("candidates", "preference"),
    ("preference", "router_features"),
    ("router_features", "router"),
    ("router", "evaluate"),
    ("router", "ablations"),
}


def submitted(faked: Faked) -> dict[str, str]:
    """Queue a chain as Slurm keeps it: collect is done, so no job waits for it any more. Return job -> id."""
    faked.chain()
    ids = {job: str(100 + 2 * at) for at, job in enumerate(NEEDS)}
    faked.done("100")
    for job, needs in list(NEEDS.items())[1:]:
        waits = [f"afterok:{ids[need]}(unfulfilled)" for need in needs if need != "collect"]
        faked.queued(
            ids[job], "PENDING", "Dependency" if waits else "Resources", Dependency=",".join(waits) or "(null)"
        )
    faked.answer()
    return ids


def test_the_fakes_needs_are_the_pipelines() -> None:
    assert NEEDS.items() <= {job.name: job.needs for job in selection(Config())[0]}.items()


def test_edges_are_the_seeds_and_squeues(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(faked)
    assert cli.main(["graph", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {(edge["from"], edge["to"]) for edge in told["edges"]} == SEED_TABLE
    unfinished = {node["id"] for node in told["nodes"] if node["state"] != "done"}
    dependencies = {
        (parent, row["JobID"]) for row in faked.queue for parent in re.findall(r"afterok:(\d+)", row["Dependency"])
    }
    assert {(edge["from_id"], edge["to_id"]) for edge in told["edges"] if edge["from_id"] in unfinished} == dependencies


def test_ascii_and_mermaid(faked: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(faked)
    assert cli.main(["graph", "desk_noisy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(NEEDS)
    assert lines[5].split() == ["candidates", "waiting", "108", "<-", "bc,", "verifier"]
    indents = [len(line) - len(line.lstrip()) for line in lines[1:]]
    assert indents == [2, 4, 6, 4, 8, 10, 12, 14, 16, 16]
    assert cli.main(["graph", "--format", "mermaid"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("flowchart LR\n") and set(re.findall(r"(\w+) --> (\w+)", text)) == SEED_TABLE
    assert 'collect["collect<br/>done 100"]' in text
