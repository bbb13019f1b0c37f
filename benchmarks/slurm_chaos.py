"""Random chains under a failing Slurm: every command may fail, hang, or answer late or twice.

    python benchmarks/slurm_chaos.py                        # 200 random chains
    python benchmarks/slurm_chaos.py --chains 20 --seed 7 --share 0.3

Each chain is a random graph of stages, which succeed, fail in ways that healing repairs, or fail in one that it cannot;
runners, sentinels and submitters are killed in the middle of a call. Reconciliation, its files and the Slurm client are
R2V's own; tests/slurm/simulator.py replaces Slurm. Every second time two chains of one checkout begin alike: their
first stage is one job, which one chain submits and both wait for. Printed, each with the aim 0:

    hangs           jobs neither done nor given up, nor blocked by such a job, after the last command
    orphans         jobs left in the queue that no chain waits for
    duplicates      stages made twice, or by two jobs at once
    lost attempts   jobs that worked at a stage and are recorded in no chain
    false waiting   jobs that `r2v status` calls waiting, and whose condition can never be met

"left to a person" counts chains that did not continue by themselves, until a command of R2V was typed; "never begun"
those of them whose submitter was killed or refused, with a message, before it had submitted anything.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from r2v.config import load  # noqa: E402
from r2v.errors import R2VError  # noqa: E402
from r2v.pipeline import jobs as jobs_table  # noqa: E402
from r2v.pipeline.graph import as_configured  # noqa: E402
from r2v.pipeline.inputs import fingerprint_of  # noqa: E402
from r2v.randomness import generator  # noqa: E402
from r2v.slurm.chain import chain as chains  # noqa: E402
from r2v.slurm.chain import job_record  # noqa: E402
from r2v.slurm.chain.chain import (  # noqa: E402
    Attempt,
    Chain,
    ChainJob,
    config_sha,
)
from r2v.slurm.client import client  # noqa: E402
from r2v.slurm.client.command import through  # noqa: E402
from r2v.slurm.healing.comparison import Comparison  # noqa: E402
from r2v.slurm.healing.reconcile import bring_in_line, by_sentinel, from_job, reconcile, surplus  # noqa: E402
from r2v.slurm.healing.shared_stages import publish_for_waiters, share  # noqa: E402
from r2v.slurm.site.headers import Resources  # noqa: E402
from r2v.slurm.site.site_profile import SiteProfile  # noqa: E402
from r2v.slurm.views.chain_status import fold  # noqa: E402
from r2v.slurm.views.sources import ChainFiles, SlurmSnapshot  # noqa: E402
from r2v.storage.artifact import build, look  # noqa: E402
from r2v.storage.files import write_json  # noqa: E402
from r2v.storage.integrity import hashed  # noqa: E402
from r2v.storage.paths import ARTIFACTS  # noqa: E402
from tests.slurm.simulator import FAULTS, Faults, Killed, SimulatedJob, SimulatedSlurm  # noqa: E402

MEASURES = ("hangs", "orphans", "duplicates", "lost attempts", "false waiting")
SETTLES = (0.0, 1.0, 8.0)
"""Delays in seconds until dependents and accounting learn of a job's end; one is drawn per chain."""
SHARED = "hierarchical"
"""The stage without inputs from a chain: two chains begin with it, and publish it for each other."""
FATES = {
    "done": (0, "COMPLETED", "0:0"),
    "host_oom": (137, "FAILED", "137:0"),
    "killed": (137, "FAILED", "137:0"),
    "bug": (1, "FAILED", "1:0"),
    "timeout": (None, "TIMEOUT", "0:0"),
    "node_fail": (None, "NODE_FAIL", "0:0"),
    "no_log": (None, "FAILED", "0:53"),
}
"""The exit code in its own record (None: no record), and Slurm's state."""


@dataclass(kw_only=True)
class ChaosRun:
    """One chain, from its submission to its end."""

    root: Path
    slurm: SimulatedSlurm
    draw: random.Random
    worked: list[tuple[str, str, float, float, bool]] = field(default_factory=list)
    """Every job that worked at a stage: (artifact, id, start, end, True if it succeeded)."""
    ends: list[tuple[float, SimulatedJob, str]] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    names: tuple[str, ...] = ("chaos",)

    def submit(self) -> None:
        """Submit as run_all does: plan, write, reconcile."""
        list(map(self._submit, self.names))

    def _submit(self, name: str) -> None:
        count = self.draw.randint(2, 6)
        jobs = {}
        for at in range(count):
            needs = {f"s{self.draw.randrange(at)}" for _ in range(self.draw.randint(1, 2))} if at else set()
            planned = Attempt(id="", resources={"mem": "1G", "time": "60"}, reason="first")
            jobs[f"s{at}"] = ChainJob(needs=tuple(sorted(needs)), command=("stamp",), script="", planned=planned)
        if len(self.names) > 1:
            jobs = _beginning_alike(jobs)
        text = f"seed: 0\nprefix: {name}\nhierarchical: {{enabled: true}}\n"
        directives, sha = SiteProfile().sentinel_directives({}), config_sha(text)
        chain = Chain(name=name, benchmark="desk", condition="noisy", config_sha=sha, sentinel=directives, jobs=jobs)
        resources = {job: Resources(directives={"mem": "1G", "time": "60"}) for job in jobs}
        drawn, self.slurm.faults.share = self.slurm.faults.share, 0.0
        chain, _ = share(self.root, chain, list(jobs), resources)
        self.slurm.faults.share = drawn
        chains.write(self.root, chain)
        (chains.folder(self.root, name) / "config.yaml").write_text(text)
        with suppress(R2VError, Killed), chains.lock(self.root, name):
            bring_in_line(self.root, chain, strict=True)

    def play(self) -> None:
        """Advance the simulation until nothing happens by itself."""
        for _ in range(2000):
            if self.slurm.begun:
                self._begin(self.slurm.begun.pop(0))
            elif self.ends:
                self.ends.sort(key=lambda item: item[0])
                due, job, fate = self.ends.pop(0)
                self.slurm.sleep(max(0.0, due - self.slurm.now))
                self._end(job, fate)
            elif self.slurm.settling:
                self.slurm.sleep(1.0)
            else:
                return
        raise RuntimeError("the chain goes on for ever")

    def look(self) -> None:
        """Reconcile every chain, as `r2v status` does for a person."""
        for name in self.names:
            with suppress(R2VError, Killed):
                reconcile(name, root=self.root)

    def _begin(self, job: SimulatedJob) -> None:
        os.environ["SLURM_JOB_ID"] = job.id
        try:
            mark = chains.parse_comment(job.options.get("comment", ""))
            assert mark is not None
            if mark.sentinel:
                self._watch(mark.name, mark.job)
                self.slurm.finish(job, "COMPLETED")
                return
            if surplus(self.root, mark.name, mark.job, mark.attempt, job.id):
                self.slurm.finish(job, "FAILED", "6:0")
                return
            fate = "done" if self.draw.random() < 0.6 else self.draw.choice([*FATES])
            if fate != "no_log":
                self._record(job, "start.json", {"job": mark.job, "restart": 0, "at": chains.now(), "gpus": 0})
                artifact = SHARED if mark.job == SHARED else f"{mark.name}/{mark.job}"
                self.worked.append((artifact, job.id, self.slurm.now, -1.0, False))
            self.ends.append((self.slurm.now + self.draw.uniform(1, 100), job, fate))
            from_job(self.root, mark.name, job.id)
        except Killed:
            if all(job is not ending for _, ending, _ in self.ends):
                self.slurm.finish(job, "FAILED", "0:9")
        finally:
            os.environ.pop("SLURM_JOB_ID", None)

    def _watch(self, name: str, job: str) -> None:
        """Run a sentinel's script; up to three times if it is killed."""
        for _ in range(2):
            with suppress(Killed):
                by_sentinel(name, job, root=self.root)
                return
        by_sentinel(name, job, root=self.root)

    def _end(self, job: SimulatedJob, fate: str) -> None:
        code, state, slurm_code = FATES[fate]
        well = fate == "done" and job.state == "RUNNING"
        self.worked = [
            (name, id_, begun, self.slurm.now, well) if id_ == job.id else (name, id_, begun, ended, was)
            for name, id_, begun, ended, was in self.worked
        ]
        if job.state != "RUNNING":
            return
        self.failures[fate] += fate != "done"
        mark = chains.parse_comment(job.options["comment"])
        assert mark is not None
        if well and mark.job == SHARED:
            _finish_artifact(self.root, mark.name)
        os.environ["SLURM_JOB_ID"] = job.id
        try:
            if code is not None:
                kind = None if fate == "done" else fate
                record = {"rc": code, "signal": 0, "kind": kind, "line": fate, "at": chains.now(), "restart": 0}
                self._record(job, "exit.json", record)
                if not code:
                    publish_for_waiters(self.root, mark.name, mark.job)
                from_job(self.root, mark.name, job.id, failed=bool(code))
        except Killed:
            pass
        finally:
            os.environ.pop("SLURM_JOB_ID", None)
        self.slurm.finish(job, state, slurm_code)

    def _record(self, job: SimulatedJob, file: str, value: Mapping[str, object]) -> None:
        mark = chains.parse_comment(job.options["comment"])
        assert mark is not None
        write_json(job_record.record_folder(self.root, mark.name, job.id) / file, hashed(dict(value)))

    def measures(self) -> Counter[str]:
        """Return the measures of all chains in their current state."""
        everybody = client.queue(ended=True)
        wrong, latest, all_ids = Counter(dict.fromkeys(MEASURES, 0)), set[str | None](), set[str]()
        for name in self.names:
            wrong.update(self._measures_of(name, everybody, latest, all_ids))
        alive = [job for job in self.slurm.jobs.values() if job.state in ("PENDING", "RUNNING")]
        wrong["orphans"] = sum(job.id not in latest for job in alive)
        wrong["lost attempts"] = sum(id_ not in all_ids for _, id_, *_ in self.worked)
        for artifact in {name for name, *_ in self.worked}:
            spans = sorted((begun, ended, well) for name, _, begun, ended, well in self.worked if name == artifact)
            wrong["duplicates"] += max(0, sum(well for *_, well in spans) - 1)
            wrong["duplicates"] += sum(a[1] > b[0] for a, b in zip(spans, spans[1:], strict=False))
        return wrong

    def _measures_of(
        self, name: str, everybody: list[client.Queued], latest: set[str | None], all_ids: set[str]
    ) -> Counter[str]:
        """Return the measures of one chain; its live jobs are added to `latest`, all of its jobs to `known`."""
        chain, wrong = chains.read(self.root, name), Counter[str]()
        rows = {row.id: row for row in client.of_chain(everybody, name, self.root)}
        now = Comparison(root=self.root, chain=chain, rows=rows)
        now.everybody = everybody
        given_up = {job for job in chain.jobs if now.standing(job) == "failed" and now.latest(job).failure}
        settled = given_up | set(chain.after(given_up)) | {job for job in chain.jobs if now.standing(job) == "done"}
        for job, entry in chain.jobs.items():
            if entry.latest and now.standing(job) == "active":
                latest |= {entry.latest.id, entry.latest.sentinel}
        all_ids |= chain.slurm_ids
        wrong["hangs"] = len(set(chain.jobs) - settled)
        records = {id_: job_record.record(self.root, name, id_) for id_ in chain.slurm_ids}
        queue = {id_: row for id_, row in rows.items() if row.state in ("PENDING", "RUNNING")}
        accounting = client.accounting([id_ for id_ in chain.slurm_ids if id_ not in queue])
        files = ChainFiles(chain=chain, records=records)
        report = fold(files, SlurmSnapshot(queue=queue, accounting=accounting), self.root, {})
        never = {row.id for row in queue.values() if row.reason == "DependencyNeverSatisfied"}
        wrong["false waiting"] = sum(job.state == "waiting" and job.id in never for job in report.jobs)
        return wrong


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _beginning_alike(jobs: dict[str, ChainJob]) -> dict[str, ChainJob]:
    """Return the chain with its first job as one that another chain makes too."""
    renamed = {job: job for job in jobs} | {"s0": SHARED}
    needs = {job: tuple(renamed[need] for need in entry.needs) for job, entry in jobs.items()}
    recipes = {"s0": "alike"}
    return {renamed[job]: replace(jobs[job], needs=needs[job], recipe=recipes.get(job, "")) for job in jobs}


def _finish_artifact(root: Path, name: str) -> None:
    """Write the artifact of the shared stage."""
    config = load(chains.folder(root, name) / "config.yaml")
    row = as_configured(config, jobs_table.job(SHARED))
    key, store = fingerprint_of(config, row, {}), root / ARTIFACTS
    if look(store, SHARED, key) is None:
        with build(store, SHARED, key, row.stage, "", {}, root) as work:
            write_json(work.folder / "metrics.json", {})


def play(root: Path, seed: int, share: float) -> tuple[Counter[str], str, Faults, Counter[str]]:
    """Play one random chain; return its violations, why it was left to a person ("" if not), faults and failures."""
    faults = Faults(seed=seed, share=share)
    settle = generator(seed, "settle").choice(SETTLES)
    slurm = SimulatedSlurm(faults=faults, folder=str(root.resolve()), settle=settle)
    names = ("chaos", "chaos2") if seed % 2 else ("chaos",)
    run = ChaosRun(root=root, slurm=slurm, draw=generator(seed, "chaos"), names=names)
    with through(slurm):
        run.submit()
        run.play()
        person = "" if not _quietly(run)["hangs"] else "never begun" if not slurm.jobs else "stood still"
        for _ in range(8):
            if not sum(_quietly(run).values()):
                break
            run.look()
            run.play()
        return _quietly(run), person, faults, run.failures


def _quietly(run: ChaosRun) -> Counter[str]:
    """Return the measures, read from a Slurm without faults."""
    share, run.slurm.faults.share = run.slurm.faults.share, 0.0
    try:
        return run.measures()
    finally:
        run.slurm.faults.share = share


def main() -> int:
    """Play the chains and print the measures; return 1 if any is above 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=200, help="random chains (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first chain (default: 0)")
    parser.add_argument("--share", type=float, default=0.2, help="share of the calls that fail (default: 0.2)")
    values = parser.parse_args()
    total, injected, failures = Counter(dict.fromkeys(MEASURES, 0)), Counter[tuple[str, str]](), Counter[str]()
    persons, calls, shared, begun = Counter[str](), 0, 0, time.process_time()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        for seed in range(values.seed, values.seed + values.chains):
            wrong, person, faults, failed = play(Path(folder) / str(seed), seed, values.share)
            if sum(wrong.values()):
                print(f"seed {seed}: {dict(+wrong)}")
            total.update(wrong)
            injected.update(faults.injected)
            failures.update(failed)
            persons[person] += 1
            shared += '"made by the chain' in _text(Path(folder, str(seed), "outputs/.chains/chaos2/chain.json"))
            calls += faults.calls
    print(f"{values.chains} plays, {calls} calls, {sum(injected.values())} faults, {sum(failures.values())} failures")
    print(f"shared    {shared} stages made once for two chains")
    print("faults   ", ", ".join(f"{kind} {sum(n for (_, k), n in injected.items() if k == kind)}" for kind in FAULTS))
    print("failures ", ", ".join(f"{kind} {count}" for kind, count in sorted(failures.items())))
    print("\n".join(f"{name:14} {total[name]}" for name in MEASURES))
    left = ", ".join(f"{persons[why]} {why}" for why in ("never begun", "stood still"))
    print(f"left to a person: {left}, of {values.chains} plays; {time.process_time() - begun:.0f} CPU-seconds")
    return int(any(total.values()))


if __name__ == "__main__":
    sys.exit(main())
