"""One vocabulary of failures: exit codes and kinds are defined in r2v.errors, everything else agrees with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from r2v import errors
from r2v.cli.main import build_parser
from r2v.errors import BY_EXIT_CODE, CUDA_OOM, EXIT_CODES, HOST_OOM, FailureKind, as_r2v_error, failure_of, kind_named
from r2v.slurm.healing import classify
from r2v.slurm.views.states import JobState

ROOT = Path(__file__).resolve().parents[1]
KINDS = set(get_args(FailureKind))


def section(page: str, title: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def first_column(text: str) -> list[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    return [word for cell in rows[2:] for word in re.findall(r"\w+", cell)]


def test_the_tree_of_exceptions_is_drawn_as_it_is() -> None:
    drawn = re.findall(r"── (\w+) +(\d+) +(\w+) ", str(errors.__doc__))
    assert drawn == [(error.__name__, str(code), error.kind) for code, error in BY_EXIT_CODE.items()]


def test_help_and_documentation_list_the_exit_codes() -> None:
    shown = " ".join(build_parser().format_help().split())
    assert all(f"{code} {meaning}" in shown for code, meaning in EXIT_CODES.items())
    assert list(map(int, first_column(section("pipeline.md", "Configuration")))) == list(EXIT_CODES)


def test_every_kind_has_a_remedy_a_line_in_the_classification_and_a_row_in_the_documentation() -> None:
    assert set(classify.REMEDIES) == KINDS
    assert all(re.search(rf"\b{kind}\b", str(classify.__doc__)) for kind in KINDS)
    assert sorted(first_column(section("slurm-failures.md", "Healing"))) == sorted(KINDS)


def test_every_state_is_documented() -> None:
    listed = section("slurm-watch.md", "States").split("one of these states:")[1].split("\n\n")[0]
    words = {word.strip() for word in re.sub(r"\([^)]*\)", "", " ".join(listed.split())).rstrip(".").split(",")}
    assert words == set(get_args(JobState))


def test_only_kinds_have_names() -> None:
    assert {kind_named(name) for name in KINDS} == KINDS
    assert kind_named("no such kind") is None and kind_named(None) is None


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
    ],
)
def test_a_gpu_out_of_memory_is_known_in_logs_and_exceptions_alike(line: str) -> None:
    assert CUDA_OOM.search(line) and failure_of(RuntimeError(line)) == ("cuda_oom", 1)
    killed = classify.Evidence(log=f"step 3\n{line}\n", scontrol={"JobState": "FAILED", "ExitCode": "0:9"})
    error_class = classify.classify(killed)
    assert error_class is not None and (error_class.kind, error_class.line) == ("cuda_oom", line)


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch. Some of the processes have been OOM Killed.",
        "slurmstepd: error: Exceeded job memory limit",
        "slurmstepd: error: Exceeded step memory limit at some point.",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory",
        "OSError: [Errno 12] Cannot allocate memory",
        "kernel: Out of memory: Killed process 4711 (python)",
    ],
)
def test_a_machine_out_of_memory_is_known_in_logs_and_exceptions_alike(line: str) -> None:
    assert HOST_OOM.search(line) and not CUDA_OOM.search(line)
    assert failure_of(RuntimeError(line)) == ("host_oom", 1)
    killed = classify.Evidence(log=f"step 3\n{line}\n", scontrol={"JobState": "FAILED", "ExitCode": "0:9"})
    error_class = classify.classify(killed)
    assert error_class is not None and error_class.kind == "host_oom"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("r2v.data.gone", "r2v.data.gone, a part of R2V itself, is missing: .* install R2V again"),
        ("bitsandbytes", r"bitsandbytes is not installed, which this command needs: pip install 'r2v\[gpu\]'"),
    ],
)
def test_a_missing_module_names_its_installation(module: str, line: str) -> None:
    error = as_r2v_error(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert error is not None and re.search(line, str(error))
