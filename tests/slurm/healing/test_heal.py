"""Healing where a site kills what waits, on a real Slurm with stand-in work."""

from __future__ import annotations

import json

from tests.slurm.project import NAME, Project

CHANGE = ("--overrides", "training.preference.lr=3e-4")
KILLED, COUSIN = "router_features", "ablations"


def test_what_slurm_killed_with_its_parent_comes_back_and_what_a_person_cancelled_does_not(made: Project) -> None:
    """`--kill-on-invalid-dep=no` is stronger than a site's kill_invalid_depend, so a site that kills all the same
    (by a plugin that takes the option away) is played: one waiting job is exchanged for one without it."""
    made.behave(preference={"hold": "go", "cuda_oom_above": 4})
    made.r2v("run_all", "desk", *CHANGE)
    made.cluster.wait(lambda: "began" in made.log("preference"))
    before = made.ids()
    other = made.cluster.sbatch(
        "--kill-on-invalid-dep=yes",
        f"--dependency=afterok:{before['preference']}",
        "-o",
        "/dev/null",
        "--mem=1G",
        f"--comment=r2v:{NAME}/{KILLED}/{made.chain()['config_sha']}",
        f"--chdir={made.folder}",
        "--wrap=exit 7",
    )
    path = made.folder / "outputs/.chains" / NAME / "chain.json"
    chain = json.loads(path.read_text())
    chain["jobs"][KILLED]["attempts"][-1]["id"] = other
    path.write_text(json.dumps(chain))
    made.cluster.run("scancel", before[KILLED], before[COUSIN])
    (made.folder / "go").touch()
    made.cluster.wait(lambda: made.ids()[KILLED] not in (other, before[KILLED]))
    made.drained()
    now = made.ids()
    assert made.attempts(KILLED)[-1]["reason"] == "dependency" and made.attempts(KILLED)[-1]["counted"] is False
    assert (now["router"], now["evaluate"], now[COUSIN]) == (before["router"], before["evaluate"], before[COUSIN])
    states = made.cluster.states()
    assert {states[now[job]] for job in ("preference", KILLED, "router", "evaluate")} == {"COMPLETED"}
    assert states[before[COUSIN]].startswith("CANCELLED")
    log = "".join(one.read_text() for one in made.folder.glob("logs/heal_preference_*"))
    assert f"job {other} comes back as {now[KILLED]}" in log
