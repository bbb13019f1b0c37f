"""Each shipped profile on its fake site: submitted, healed from a node, ended; without the profile the site refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.slurm.chain import chain as chains
from r2v.slurm.healing.reconcile import by_sentinel
from r2v.slurm.site import site_profile
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked
from tests.slurm.sites import SITES

ROOT = Path(__file__).resolve().parents[2]
RUN = ["run_all", "desk", "--overrides", "policy.device=cuda"]
NAME = "desk_noisy"


def at(site: str, checkout: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a checkout on a site whose login nodes are reached by ssh."""
    for name in ("scripts/slurm", "configs"):
        shutil.copytree(ROOT / name, checkout.root / name)
    checkout.answer()
    (checkout.folder / "partitions.json").write_text(json.dumps(SITES[site].partitions))
    (checkout.folder / "site").write_text(site)
    ssh = checkout.root / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        '#!/bin/bash\nunset FAKE_NODE\necho "$@" >> "$(dirname "$SLURM_CONF")/ssh.log"\nexec bash -c "${@: -1}"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")


@pytest.mark.parametrize("site", sorted(SITES))
def test_a_shipped_profile_submits_heals_and_ends_on_its_site(
    site: str, faked: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at(site, faked, monkeypatch)
    assert cli.main(RUN) != 0 and not (faked.folder / "jobs.json").read_text().strip("[]"), "refused without a profile"
    assert cli.main(["cluster", "set", f"profile={site}", *(["gpu=a100"] if site == "gpu" else [])]) == 0
    assert cli.main(RUN) == 0, capsys.readouterr().err
    queue = json.loads((faked.folder / "jobs.json").read_text())
    first = chains.read(faked.root, NAME)
    assert len(queue) == len(first.jobs) + 1
    lost = first.jobs["bc"].latest
    assert lost is not None
    (faked.folder / "jobs.json").write_text(json.dumps([row for row in queue if row["JobID"] != lost.id]))
    faked.failed(lost.id, "killed", "killed by signal 9", 137)
    perturb = first.jobs["perturb"].latest
    assert perturb is not None
    faked.done(perturb.id, "perturb")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("FAKE_NODE", "1")
    assert by_sentinel(NAME, "bc") == 0
    assert (faked.folder / "ssh.log").exists() == bool(site_profile.shipped(site).submit_host)
    monkeypatch.delenv("SLURM_JOB_ID")
    healed = chains.read(faked.root, NAME).jobs["bc"]
    assert len(healed.attempts) == 2 and healed.latest is not None and healed.latest.sentinel
    (faked.folder / "jobs.json").write_text("[]")
    for name, job in chains.read(faked.root, NAME).jobs.items():
        assert job.latest is not None
        faked.done(job.latest.id, name)
    assert cli.main(["status", NAME]) == 0


def test_every_rule_says_who_told_of_it_and_when() -> None:
    assert sorted(SITES) == site_profile.names()
    for site in SITES.values():
        assert all(rule.source.startswith("github.com/") and ", 20" in rule.source for rule in site.rules)
