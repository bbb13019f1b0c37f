"""Cancelling what an experiment has in Slurm's queue, whoever submitted it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from r2v.errors import InputError
from r2v.experiments.records import SPEC_COPY, chosen, read_record, write_record
from r2v.experiments.slurm_looks import SlurmLooks
from r2v.experiments.slurm_runs import submitted_run
from r2v.experiments.spec import read_spec
from r2v.experiments.views import LEASE
from r2v.storage.lease import lease


def cancel_runs(folder: Path) -> int:
    """Cancel every run of an experiment that is in the queue, and note it as pending; how many there were. What other
    chains wait for goes on. Raises LeaseConflict where a process works on the experiment: stop that one first."""
    with lease(folder / LEASE):
        record = read_record(folder)
        submitted = [run for run in record.runs if run.status == "running" and run.chain is not None]
        if not submitted:
            return 0
        spec, looks = read_spec(folder / SPEC_COPY), SlurmLooks()
        for run in submitted:
            submitted_run(folder, spec, run, looks).stop(0.0)
            record = record.with_run(replace(run, status="pending", started_at=None, chain=None))
            write_record(folder, record)
    return len(submitted)


def cancel_newest(name: str) -> int:
    """The same of the newest experiment of a name; 0 where there is none."""
    try:
        folder = chosen(name)
    except InputError:
        return 0
    return cancel_runs(folder)
