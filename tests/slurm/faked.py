"""A chain on disk and a fake Slurm that answers for it, for the tests of the views."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from r2v.slurm.chain import chain as chains
from r2v.slurm.chain import job_record
from r2v.slurm.chain.chain import Attempt, Chain, ChainJob
from r2v.slurm.client.command import through
from r2v.slurm.site.site_profile import SiteProfile
from tests.slurm.fake_in_process import FAKE, FakeInProcess

FAKE_PATH = f"{FAKE}:{Path(sys.executable).parent}"
"""The fake commands and this interpreter to run them: another python3 may be a slow shim."""
NEEDS: dict[str, tuple[str, ...]] = {
    "collect": (),
    "perturb": ("collect",),
    "bc": ("perturb",),
    "verifier": ("collect",),
    "candidates": ("bc", "verifier"),
    "preference": ("candidates",),
    "router_features": ("preference",),
    "router": ("router_features",),
    "evaluate": ("router",),
    "ablations": ("router",),
}
SCRIPTS = {
    "collect": "01_collect.sh",
    "perturb": "02_perturb.sh",
    "bc": "03_train_policy.sh",
    "verifier": "04_train_verifier.sh",
    "candidates": "05_generate_candidates.sh",
    "preference": "03_train_policy.sh",
    "router_features": "06_generate_router_features.sh",
    "router": "07_train_router.sh",
    "evaluate": "08_evaluate.sh",
    "ablations": "09_ablations.sh",
}


def ago(seconds: float) -> str:
    """Return the time that many seconds ago, in the format of the records."""
    return (datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=seconds)).isoformat()


@dataclass
class Faked:
    """A checkout with chains in it, and the answers of its fake Slurm."""

    root: Path
    queue: list[dict[str, str]] = field(default_factory=list)
    accounts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.root / "slurm"

    def chain(self, name: str = "desk_noisy", first: int = 100, **jobs: ChainJob) -> Chain:
        """Write a chain of the ten jobs, each submitted once, with the ids `first`, `first` + 2, ... and sentinels
        between; `jobs` replaces single ones."""
        made = {
            job: jobs.get(job)
            or ChainJob(
                needs=NEEDS[job],
                command=(job,),
                script=SCRIPTS[job],
                attempts=(Attempt(id=str(first + 2 * at), sentinel=str(first + 2 * at + 1), submitted_at=ago(3600)),),
            )
            for at, job in enumerate(NEEDS)
        }
        chain = Chain(
            name=name,
            benchmark="desk",
            condition="noisy",
            config_sha="abc123",
            commit="0123456789abcdef",
            created_at=ago(3600),
            sentinel=SiteProfile().sentinel_directives({}),
            jobs=made,
        )
        chains.write(self.root, chain)
        return chain

    def record(self, job_id: str, name: str = "desk_noisy", **files: Any) -> None:
        """Write a job's own records: start={...}, exit={...}, error={...}, events=[...]."""
        folder = job_record.record_folder(self.root, name, job_id)
        folder.mkdir(parents=True, exist_ok=True)
        for key, value in files.items():
            if key == "events":
                (folder / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in value))
            else:
                (folder / f"{key}.json").write_text(json.dumps(value))

    def done(self, job_id: str, job: str = "collect", name: str = "desk_noisy", **exit_: Any) -> None:
        """Record a job that ended well a while ago."""
        self.record(
            job_id,
            name,
            start={"job": job, "restart": 0, "at": ago(2000), "gpus": 1},
            exit={"rc": 0, "kind": None, "line": "", "restart": 0, "at": ago(800), **exit_},
        )

    def failed(self, job_id: str, kind: str, line: str, rc: int = 1, job: str = "bc") -> None:
        """Record a job that failed a while ago."""
        self.record(
            job_id,
            start={"job": job, "restart": 0, "at": ago(2000), "gpus": 1, "host": "g1"},
            exit={"rc": rc, "kind": kind, "line": line, "restart": 0, "at": ago(800)},
        )

    def queued(self, job_id: str, state: str = "PENDING", reason: str = "Priority", **others: str) -> None:
        """Add a row of squeue."""
        self.queue.append(
            {
                "JobID": job_id,
                "State": state,
                "Reason": reason,
                "Comment": "(null)",
                "TimeUsed": "0:00",
                "TimeLimit": "2-00:00:00",
                "Dependency": "(null)",
                "NodeList": "",
                **others,
            }
        )

    def accounted(self, job_id: str, state: str, **others: Any) -> None:
        """Add a row of sacct."""
        self.accounts.append(
            {
                "JobID": job_id,
                "State": state,
                "ExitCode": "0:0",
                "DerivedExitCode": "0:0",
                "ElapsedRaw": 1200,
                "ReqMem": "48G",
                "NodeList": "g1",
                "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=48G,node=1",
                **others,
            }
        )

    def answer(self) -> None:
        """Publish the rows added so far as the answers of the fake commands."""
        for name, told in (("jobs.json", self.queue), ("accounting.json", self.accounts)):
            new = self.folder / f".{name}"
            new.write_text(json.dumps(told))
            new.replace(self.folder / name)

    def down(self, command: str, words: str) -> None:
        """Let a command fail with this message."""
        (self.folder / f"{command}.fail").write_text(words)

    @property
    def calls(self) -> list[str]:
        """Return the names of the commands that were run, in order."""
        log = self.folder / "calls.log"
        return [json.loads(line)[0] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faked]:
    """Yield an empty checkout as working directory, with the fake Slurm first on PATH."""
    monkeypatch.setenv("PATH", f"{FAKE_PATH}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm" / "slurm.conf"))
    monkeypatch.setenv("R2V_SLURM_PATIENCE", "0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm").mkdir()
    (tmp_path / "logs").mkdir()
    with through(FakeInProcess()):
        yield Faked(tmp_path)
