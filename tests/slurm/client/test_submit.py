"""Submission: submitit writes a job's script, and follows the job by its id."""

from __future__ import annotations

from pathlib import Path

import submitit
from submitit.slurm.slurm import SlurmExecutor, SlurmInfoWatcher

from r2v.slurm import run_all
from r2v.slurm.site import headers
from r2v.storage.paths import SCRIPTS
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked
from tests.slurm.test_run_all import NAME, chain, ids
from tests.slurm.test_run_all import checkout as checkout

FOLDER = f"outputs/.chains/{NAME}/submitit/%j"
SUBMITITS = ("partition", "account", "qos", "constraint", "gres", "nodes", "cpus_per_task", "mem", "time")
"""Parameters for which submitit has a name of its own."""


class Anywhere(SlurmExecutor):
    """submitit's executor without its check for srun, which this machine lacks."""

    @classmethod
    def affinity(cls) -> int:
        """Return a value above that of other executors, so that this one is chosen."""
        return 2


class Alone(submitit.SlurmJob[object]):
    """submitit's job with a watcher of its own, which knows no jobs of other tests."""

    watcher = SlurmInfoWatcher()


def test_the_script_of_a_stage_is_what_submitit_writes_of_the_same_parameters(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    bc, perturb = ids(checkout)["bc"], ids(checkout)["perturb"]
    ours = Path(FOLDER.replace("%j", bc), f"{bc}_submission.sh").read_text()
    asked = headers.read(SCRIPTS / "03_train_policy.sh", "bc").directives
    header = {name.replace("-", "_"): value for name, value in asked.items() if name not in ("job-name", "open-mode")}
    named = {name: header.pop(name) for name in SUBMITITS if name in header}
    theirs = Anywhere(FOLDER)
    theirs.update_parameters(
        **named,
        job_name=f"bc_{NAME}",
        comment=f"r2v:{NAME}/bc/{chain(checkout).config_sha}@{chain(checkout).submitter}",
        setup=ours.split("# setup\n")[1].split("\n\n# command")[0].splitlines(),
        stderr_to_stdout=True,
        use_srun=False,
        wckey=None,
        additional_parameters={
            **{name: value or True for name, value in header.items()},
            "output": "logs/%x_%j.out",
            "chdir": str(checkout.root),
            "dependency": f"afterok:{perturb}",
            "kill_on_invalid_dep": "no",
        },
    )
    command = ours.split("export SUBMITIT_EXECUTOR=slurm\n")[1].removesuffix("\n")
    assert ours == theirs._make_submission_file_text(command, "any")


def test_submitits_job_answers_state_and_log(checkout: Faked) -> None:
    run_all.submit(benchmark="desk")
    id_ = ids(checkout)["bc"]
    job = Alone(FOLDER, id_)
    assert job.stdout() is None and not job.done()
    (checkout.root / f"logs/bc_{NAME}_{id_}.out").write_text("step 1\n")
    assert job.stdout() == "step 1\n"
    checkout.accounted(id_, "COMPLETED")
    checkout.answer()
    Alone.watcher.clear()  # the watcher asks Slurm once a millisecond at most
    assert job.get_info()["State"] == "COMPLETED"
