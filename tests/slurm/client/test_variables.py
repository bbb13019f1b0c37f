"""Environment variables: an allow-list for Slurm's query commands, the user's own environment for sbatch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from r2v.randomness import generator
from r2v.slurm.client import client
from r2v.slurm.client.variables import (
    CONNECTION,
    KEEP_SUBMITTED,
    QUERY_VARIABLES,
    SLURMS_OWN,
    SUBMITTED,
    kept_from_queries,
    of_program,
    on_login_node,
)

REPOSITORY = Path(__file__).resolve().parents[3]
ASKING = ("squeue", "sacct", "sinfo", "scontrol", "scancel", "sacctmgr")
SLURMS = (
    *("SQUEUE_PARTITION", "SQUEUE_STATES", "SQUEUE_FORMAT2", "SQUEUE_", "SACCT_FORMAT", "SACCT_LOCAL", "SINFO_ALL"),
    *("SCANCEL_STATE", "SCANCEL_CTLD", "SALLOC_PARTITION", "SBATCH_EXPORT", "SBATCH_ACCOUNT", "SRUN_CPUS_PER_TASK"),
    *("SLURM_TIME_FORMAT", "SLURM_CLUSTERS", "SLURM_MEM_PER_CPU", "SLURM_EXPORT_ENV", "SLURM_JOB_ID", "SLURM_CONF_OUT"),
    *("SUBMITIT_EXECUTOR", "SLURM_JWT_KEY", "SLURM_CONF_SERVERS"),
)
"""Variables that Slurm's programs read, or set in a job, and names close to the allowed ones."""
NEEDED = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "PATH", "HOME", "USER", "KRB5CCNAME", "KRB5_CONFIG", "TZ")
USERS = (
    *("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MODULEPATH", "LOADEDMODULES", "CONDA_PREFIX", "PYTHONPATH", "HF_HOME"),
    *("http_proxy", "WANDB_API_KEY", "SQUEUE", "SLURMY", "MY_SLURM_CONF", "slurm_conf", "SACCTMGR_X", "BASH_FUNC_ml%%"),
)


def test_of_200_environments_queries_get_the_allow_list_and_sbatch_all_but_slurms_own() -> None:
    for seed in range(200):
        draw = generator(seed, "environment")
        names = [name for name in (*SLURMS, *NEEDED, *USERS) if draw.random() < 0.5]
        values = {name: f"{name} {draw.random()}" for name in names}
        for program in ASKING:
            passed = of_program(program, values)
            assert passed == {name: values[name] for name in names if name in NEEDED} | {"LC_ALL": "C"}
        submitted = of_program("sbatch", values)
        assert submitted == {name: values[name] for name in names if name not in SLURMS}
        assert kept_from_queries(names) == sorted(name for name in names if name in SLURMS)


def test_on_a_login_node_slurms_own_variables_are_unset_whatever_its_profile_says() -> None:
    profile = {**dict.fromkeys(SLURMS, "a 'b'\nSLURM_CONF=c"), **dict.fromkeys(CONNECTION, "1"), "MINE": "x y"}
    line = on_login_node(["sh", "-c", 'printf "%s|" "$MINE" "$1"; env', "sh", "it's $HOME"])
    done = subprocess.run(["sh", "-c", line], env={**os.environ, **profile}, capture_output=True, text=True, check=True)
    printed, _, environment = done.stdout.rpartition("|")
    assert printed == "x y|it's $HOME"
    assert {name for name in (*SLURMS, *CONNECTION) if f"\n{name}=" in f"\n{environment}"} == set(CONNECTION)


def test_every_variable_on_the_list_is_there_once_and_none_of_slurms_own_is_there_but_three() -> None:
    listed = QUERY_VARIABLES
    assert len(listed) == len(set(listed))
    assert {name for name in listed if name.startswith(("S", "*")) and name != "SSH_AUTH_SOCK"} == set(CONNECTION)
    page = (REPOSITORY / "docs/slurm-sites.md").read_text()
    assert {name for name in (*listed, *(f"{prefix}*" for prefix in SLURMS_OWN)) if f"`{name}`" not in page} == set()


ENV_SH = """
export LD_PRELOAD=/lib/late.so PATH=/modules/bin:$PATH LOADEDMODULES=cuda SLURM_CONF=/etc/other.conf
export OPENAI_API_KEY=sk-2; unset MODULEPATH; ml() { false; }; export -f ml
"""
PASSED_ON = (
    "import os, sys; from r2v.slurm.client.variables import of_program; "
    "sys.stdout.buffer.write(b''.join(os.fsencode(f'{n}={v}') + bytes(1)"
    " for n, v in of_program('sbatch', os.environ).items()))"
)


def passed_on(values: dict[bytes, bytes]) -> tuple[dict[bytes, bytes], bytes]:
    """Return the environment that a job with these variables passes to a job that it submits, and its errors."""
    script = "\n".join([*KEEP_SUBMITTED, ENV_SH, 'exec "$@"'])
    command = ["bash", "-c", script, "job", sys.executable, "-c", PASSED_ON]
    done = subprocess.run(command, env=values, capture_output=True, check=True)
    name_and_value = (entry.partition(b"=") for entry in done.stdout.split(b"\0")[:-1])
    return {name: value for name, _, value in name_and_value}, done.stderr


def test_a_job_passes_on_the_environment_that_it_was_submitted_with() -> None:
    own = {
        b"PATH": os.environ["PATH"].encode(),
        b"PYTHONPATH": str(REPOSITORY).encode(),
        b"MODULEPATH": b"/m",
        b"OPENAI_API_KEY": b"sk-1",
        b"BASH_FUNC_ml%%": b"() {  true\n}",
        b"ODD": b"a 'b'\n=\xff\"$HOME",
        b"NO": b"",
    }
    given = {**own, b"SLURM_JOB_ID": b"7", b"SLURM_CONF": b"/etc/slurm.conf"}
    seen, _ = passed_on(given)
    for left_by_bash in (b"_", b"PWD", b"SHLVL"):
        seen.pop(left_by_bash, None)
    assert seen == {**own, b"SLURM_CONF": b"/etc/other.conf"}
    seen, errors = passed_on({**given, b"HUGE": b"x" * 100_000})
    assert seen[b"LOADEDMODULES"] == b"cuda" and SUBMITTED.encode() not in seen
    assert b"large environment" in errors


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of Slurm programs, first on PATH; each writes its environment into a file beside it."""
    for program in (*ASKING, "sbatch"):
        path = tmp_path / program
        path.write_text("#!/bin/sh\ntr '\\0' '\\n' < /proc/$$/environ > \"$0.seen\"\necho 7\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(tmp_path)
    for name in (*SLURMS, *NEEDED[:3], *USERS):
        monkeypatch.setenv(name, "1")
    return tmp_path


def test_each_program_sees_these_alone(seen: Path) -> None:
    client.queue()
    client.accounting(["7"])
    client.partitions()
    client.show("7")
    client.cancel(["7"])
    client.qos()
    assert client.sbatch(["--comment=x"], "#!/bin/bash\ntrue\n") == "7"
    environments = {
        path.stem: dict(line.split("=", 1) for line in path.read_text().splitlines()) for path in seen.glob("*.seen")
    }
    assert set(environments) == {*ASKING, "sbatch"}
    for program in ASKING:
        assert environments[program].keys() & {*SLURMS, *NEEDED[:3], *USERS} == set(CONNECTION), program
        assert environments[program]["PATH"] == os.environ["PATH"]
    assert environments["sbatch"].keys() & {*SLURMS, *NEEDED[:3], *USERS} == {*CONNECTION, *USERS}
