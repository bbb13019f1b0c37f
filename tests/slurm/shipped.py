"""`bash run_all.sh <benchmark>` as typed, with the shipped configuration and headers, until the queue is empty."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from r2v.emulator import Emulator
from r2v.emulator.answers import Answer
from tests.llm.talk import environment
from tests.slurm.cluster import Cluster
from tests.slurm.project import JOBS, ROOT, Project


def ten_jobs(
    slurm: Cluster,
    folder: Path,
    benchmark: str,
    words: Sequence[str],
    answer: Answer,
    variables: Mapping[str, str] | None = None,
) -> Project:
    """Return a project in which all ten jobs are done, by an emulated provider that was paid, and whose results verify
    without the provider. Print the output of the user's commands; `variables` are the user's own environment."""
    chain = f"{benchmark}_noisy"
    project = Project(slurm, folder, fake_stages=False)
    shutil.copytree(ROOT / "configs" / benchmark, project.folder / "configs" / benchmark)
    with Emulator(answer=answer) as emulator:
        project.env |= {**environment(emulator), **(variables or {})}
        print(project.run("bash", "run_all.sh", benchmark, "--overrides", *words).stdout)
        project.drained(3600)
        paid = len(emulator.ledger().paid())
    print(project.r2v("status", chain, check=False).stdout)
    (told,) = json.loads(project.r2v("status", chain, "--json", check=False).stdout)["chains"]
    assert {job["job"]: job["state"] for job in told["jobs"]} == dict.fromkeys(JOBS, "done")
    assert paid, "the emulated provider taught and judged"
    audit = project.r2v("verify-results", f"results/{chain}").stdout
    assert "replayed with the recorded results" in audit
    print(audit.splitlines()[0])
    return project
