"""Doctor: each problem that keeps a pipeline from running is named with its remedy; headers are set all at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from r2v.cli import main as cli
from r2v.envs.webarena.home import webarena_home
from r2v.slurm.doctor.check_results import Finding
from r2v.slurm.doctor.doctor import examine, worlds
from r2v.slurm.site import headers
from r2v.storage import paths
from tests.envs.webarena import listed
from tests.envs.webarena.stubs import Stub
from tests.slurm.faked import Faked
from tests.slurm.faked import faked as faked

REPOSITORY = Path(__file__).parents[3]
SCRIPTS = len(headers.scripts(REPOSITORY))
"""Scripts with a header."""


@pytest.fixture
def clone(faked: Faked, monkeypatch: pytest.MonkeyPatch) -> Faked:
    """Make a checkout on a login node of a cluster with the partitions cpu and gpu."""
    shutil.copytree(REPOSITORY / "scripts" / "slurm", faked.root / "scripts" / "slurm")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return faked


def found(state: str) -> list[Finding]:
    return [one for one in examine() if one.state == state]


def test_a_healthy_cluster_has_nothing_bad(
    clone: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "debug")
    monkeypatch.setenv("PMI_RANK", "0")
    with (clone.root / paths.SCRIPTS / "02_perturb.sh").open("ab") as script:
        script.write(b"# gr\xfcn\n")
    assert cli.main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert "ok    kept from Slurm's programs: SQUEUE_PARTITION" in told
    assert "ok    not given to stages: PMI_RANK (a launcher's)" in told
    assert "warn  scripts/slurm/02_perturb.sh: line 19 has byte 0xFC" in told and "-> iconv -f latin1 -t utf-8" in told
    assert "ok    Slurm answers; partitions cpu, gpu" in told
    assert f"ok    {SCRIPTS} of {SCRIPTS} headers are accepted by sbatch --test-only" in told
    assert "ok    accounting answers" in told and "a lease is given to one process at a time" in told
    assert "srun --partition=gpu --gres=gpu:a100:2 --time=5" in told and "bad" not in told
    assert "ok    a sentinel's own line is accepted by sbatch --test-only" in told
    assert clone.calls.count("sbatch") == SCRIPTS + 2 and not (clone.folder / "jobs.json").exists()


def test_an_unknown_partition_is_named_with_the_nearest(clone: Faked) -> None:
    headers.rewrite(headers.scripts(), {"partition": "gpus", "cpu_partition": "cpu"})
    bad = found("bad")
    assert len(bad) == 1 and bad[0].what.startswith("01_collect.sh, 03_train_policy.sh, ")
    assert bad[0].what.endswith("teacher.sh: no partition gpus; did you mean gpu?")
    assert bad[0].remedy == "r2v cluster set partition=NAME cpu_partition=NAME"


def test_an_unknown_gpu_type_is_named_with_what_there_is(clone: Faked) -> None:
    headers.rewrite(headers.scripts(), {"gpu": "h100"})
    bad = found("bad")
    assert bad[0].what.startswith("01_collect.sh, ")
    assert bad[0].what.endswith(": partition gpu has gpu:a100:2, asked for gpu:h100")
    assert bad[0].remedy == "r2v cluster set gpu=a100"


def test_no_gpu_in_the_partition(clone: Faked) -> None:
    headers.rewrite(headers.scripts(), {"partition": "cpu"})
    assert "partition cpu has no GPU" in found("bad")[0].what


def test_a_qos_that_sbatch_lets_pass_is_told(clone: Faked) -> None:
    headers.rewrite(headers.scripts(), {"qos": "nightly"})
    bad = found("bad")
    assert len(bad) == 1 and bad[0].what.count(".sh") == SCRIPTS
    assert bad[0].what.endswith(": no QOS nightly; did you mean high?")
    assert bad[0].remedy == "r2v cluster set qos=NAME, or qos= for none"


def test_more_time_than_the_partition_gives(clone: Faked) -> None:
    (clone.folder / "limits.json").write_text(json.dumps({"gpu": "1-00:00:00"}))
    bad = found("bad")
    assert [one.what.split(":")[0] for one in bad] == ["03_train_policy.sh, 09_ablations.sh, 10_train_hierarchical.sh"]
    assert "asks for 2880 minutes, partition gpu gives 1440" in bad[0].what and "1-00:00:00" in bad[0].remedy


@pytest.mark.parametrize(
    ("size", "told", "remedy"),
    [
        ("cpus", "--cpus-per-task asks for 8, its largest node has 4", "r2v cluster set collect.cpus-per-task=4"),
        ("memory", "M, its largest node has 1000M", "r2v cluster set collect.mem=1000M"),
    ],
)
def test_a_node_that_is_too_small_is_the_cause_of_a_refusal(size: str, told: str, remedy: str, clone: Faked) -> None:
    (clone.folder / f"{size}.json").write_text(json.dumps({"cpus": "4", "memory": "1000"}[size]))
    assert not found("bad"), "sbatch takes the headers: a partition's other nodes may be larger"
    clone.down("sbatch", "sbatch: error: Batch job submission failed: Requested node configuration is not available")
    first = found("bad")[0]
    assert "sbatch refuses it: Batch job submission failed: Requested node" in first.what and first.what.endswith(told)
    assert first.remedy.startswith(remedy)


def test_what_sbatch_alone_knows_is_handed_on(clone: Faked) -> None:
    clone.down(
        "sbatch",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
    )
    bad = found("bad")
    assert (
        sum(one.what.count(".sh") for one in bad[:-1]) == SCRIPTS
        and "a sentinel's own line is refused: Batch job submission" in bad[-1].what
    )
    assert "sbatch refuses it: Batch job submission failed: Invalid account" in bad[0].what


def test_a_wrong_directive_is_named_by_file_and_line(clone: Faked) -> None:
    path = clone.root / paths.SCRIPTS / "02_perturb.sh"
    path.write_text(path.read_text().replace("--partition", "--partitoin"))
    bad = found("bad")
    assert "02_perturb.sh: sbatch refuses it: unrecognized option '--partitoin=cpu'" in bad[0].what


def test_accounting_down_is_a_warning_and_CR_LF_in_env_sh_is_none(clone: Faked) -> None:
    clone.down("sacct", "sacct: error: Connection refused")
    environment = clone.root / paths.SCRIPTS / "env.sh"
    environment.write_bytes(environment.read_bytes().replace(b"\n", b"\r\n"))
    told = list(examine())
    assert any("accounting does not answer" in one.what for one in told if one.state == "warn")
    (bad,) = (one for one in told if one.state == "bad")
    assert "env.sh: line 1 ends in CR LF, at which the shell of every job ends" in bad.what
    assert bad.remedy == "sed -i 's/\\r$//' scripts/slurm/env.sh"


def test_a_controller_that_does_not_answer(clone: Faked) -> None:
    clone.down("sinfo", "slurm_load_partitions: Unable to contact slurm controller (connect failure)")
    bad = found("bad")
    assert len(bad) == 1 and "Unable to contact" in bad[0].what and "scontrol ping" in bad[0].remedy


def test_no_slurm_at_all(clone: Faked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(clone.root / "nowhere"))
    assert cli.main(["doctor"]) == 5
    assert "bad   Slurm's commands are not on PATH\n      -> log in" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written(clone: Faked) -> None:
    (clone.root / "results").write_text("a file where a folder belongs")
    assert any(one.what.startswith("results cannot be written") for one in found("bad"))


def test_inside_a_job_without_a_gpu(clone: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    found("ok")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for name in ("SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    told = [one.what for one in found("ok")]
    assert any(one.startswith("this node sees what") for one in told) and "this job was given no GPU" in told
    assert "this node may submit jobs" in told
    clone.down("sbatch", "sbatch: error: Batch job submission failed: Access/permission denied")
    (refused,) = found("bad")
    assert "this node may not submit: Batch job submission failed: Access" in refused.what
    assert "submit_host" in refused.remedy


def test_inside_a_job_on_a_node_that_sees_another_folder(clone: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "the folder is not shared" in found("warn")[0].remedy


def test_inside_a_job_with_a_gpu_that_this_machine_cannot_use(clone: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver, or a torch without CUDA, as on a laptop."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU that works")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    monkeypatch.setenv("PATH", str(clone.root / "nowhere"))
    bad = found("bad")
    assert "NVIDIA driver does not answer" in bad[0].what and "--exclude=" in bad[0].remedy
    assert len(bad) == 3 and "torch" in bad[1].what and "download.pytorch.org" in bad[1].remedy
    assert "this node may not submit: no Slurm here" in bad[2].what


def test_doctor_and_views_load_nothing_heavy_on_a_login_node(clone: Faked) -> None:
    for name, job in clone.chain().jobs.items():
        assert job.latest is not None
        clone.done(job.latest.id, name)  # nothing to repair: a view that repairs submits, and loads submitit
    clone.answer()
    code = (
        "import sys\nfrom r2v.cli.main import main\n"
        "for words in ('doctor', 'status', 'explain', 'graph', 'cost', 'cluster show'): main(words.split())\n"
        "print(sorted(sys.modules.keys() & {'torch', 'numpy', 'transformers', 'submitit', 'accelerate', 'scipy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_cluster_set_prints_what_now_holds(clone: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", "set", "partition=batch", "account=lab7", "gpu=h100"]) == 0
    told = capsys.readouterr()
    assert f"files_changed={SCRIPTS}" in told.err
    rows = {line.split()[0]: line.split()[1:] for line in told.out.splitlines()}
    assert rows["03_train_policy.sh"] == ["batch", "lab7", "gpu:h100:2", "16", "60G", "48:00:00"]
    assert cli.main(["cluster", "show"]) == 0 and capsys.readouterr().out == told.out


@pytest.mark.parametrize(
    "words", [["set", "partition"], ["set", "partitions=x"], ["show", "gpu=x"], ["set", "headers=own"]]
)
def test_cluster_refuses_in_one_line(words: list[str], clone: Faked, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cluster", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"partition": "gpus"}, "invalid partition specified: gpus"),
        ({"gpu": "h100"}, "Requested node configuration is not available"),
    ],
)
def test_run_all_asks_sbatch_before_it_submits_anything(
    values: dict[str, str], told: str, clone: Faked, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(REPOSITORY / "configs", clone.root / "configs")
    headers.rewrite(headers.scripts(), values)
    assert cli.main(["run_all", "desk", "--overrides", "policy.device=cuda"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "01_collect.sh" in error and told in error and "r2v doctor" in error
    assert not (clone.folder / "jobs.json").exists()


@pytest.fixture(autouse=True)
def no_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("WA_"):
            monkeypatch.delenv(name)


def of_worlds() -> list[tuple[str, str]]:
    return [(finding.state, finding.what) for finding in worlds()]


def test_who_has_nothing_of_webarena_is_told_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert of_worlds() == []


def test_sites_are_asked_set_by_set_and_what_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    stub = Stub()
    monkeypatch.setenv("WA_MAP", stub.url("map"))
    monkeypatch.setenv("WA_B_MAP", "http://127.0.0.1:9")
    monkeypatch.setenv("WA_C_SHOPPING_ADMIN", "host:7780")
    findings = of_worlds()
    stub.close()
    assert ("bad", f"webarena: no child interpreter at {webarena_home()}; run `r2v webarena install`") in findings
    assert ("ok", f"webarena: map: {stub.url('map')} answers 200") in findings
    assert any(
        state == "bad" and what.startswith("webarena b: map: http://127.0.0.1:9 does") for state, what in findings
    )
    assert findings[-1] == ("bad", "WA_C_SHOPPING_ADMIN=host:7780: an address begins with http:// or https://")


def test_language_data_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    webarena_home().mkdir(parents=True)
    (webarena_home() / "versions.json").write_text('{"webarena-verified": "1.2.3"}')
    findings = of_worlds()
    assert findings[0] == ("ok", "webarena: webarena-verified 1.2.3")
    assert findings[1][0] == "warn" and findings[1][1].startswith("webarena: no punkt_tab; remove ")


@listed
def test_an_installation_tells_its_versions_and_that_its_language_data_is_there() -> None:
    states, what = zip(*of_worlds(), strict=True)
    assert states[:2] == ("ok", "ok") and "libwebarena 0.0.4, webarena-verified 1.2.3" in what[0]
    assert what[1].startswith("webarena: punkt_tab at ")
