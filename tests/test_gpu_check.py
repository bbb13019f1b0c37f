"""The GPU check, on a machine without a GPU: its names exist, and its CPU parts run."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import warm

PATH = Path(__file__).parents[1] / "benchmarks" / "gpu_check.py"
PARTS = PATH.with_name("gpu_parts.py")


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_name_that_its_parts_import_is_there() -> None:
    imported = [node for node in ast.walk(ast.parse(PARTS.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in imported:
        if node.module and node.module.startswith("r2v"):
            module = importlib.import_module(node.module)
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_override_and_option_of_its_parts_is_one_that_is_taken(check: ModuleType) -> None:
    from r2v.config import load

    parts = sys.modules["benchmarks.gpu_parts"]
    for overrides in (parts.EVERY_ROLE, parts.OFFLOADED):
        load(PATH.parents[1] / "configs/hierarchical.yaml", [*parts.SHORT_TRAINING.split(), *overrides.split()])
    for _, (program, *options) in check.PROGRAMS.values():
        text = (PATH.parents[1] / program).read_text()
        for option in (word for word in options if word.startswith("--")):
            assert f'"{option}"' in text or f'("{option[2:]}"' in text or f'"{option[2:]}"' in text, (program, option)


def test_all_parts_end_within_ten_minutes_and_the_speeds_come_first(check: ModuleType) -> None:
    limits = {name: limit for name, (limit, _) in check.limits().items()}
    assert sum(limits.values()) <= check.TOTAL_SECONDS <= 600
    assert list(limits)[:2] == ["speed-beside-vllm", "speed-beside-trl"]
    assert set(check.BY_NAME) | set(limits) == set(check.PARTS) | set(check.PROGRAMS)


@pytest.mark.whole
def test_the_engines_benchmark_measures_the_local_decoder_on_a_cpu() -> None:
    words = "--requests 3 --problems 2 --new 2"
    program = [warm.python(), str(PATH.with_name("engine_speed.py")), *words.split()]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0 and "vLLM: not on a CPU" in done.stdout, done.stderr
    assert "\nlocal: " in done.stdout and "\nlocal, 64 rows: " in done.stdout


def test_the_numbers_agree_on_a_cpu(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    check.PARTS["numbers"][1]("cpu")
    assert capsys.readouterr().out.count("same tokens") == 3


def test_both_decoders_say_the_same_on_a_cpu(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    check.PARTS["decoding"][1]("cpu")
    assert "same tokens 1.000" in capsys.readouterr().out


def test_a_part_whose_package_is_absent_is_skipped_by_name_and_a_failed_one_stops_none(
    check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PARTS", "PROGRAMS"):
        monkeypatch.setattr(check, name, {})
    monkeypatch.setitem(check.PROGRAMS, "lacking", (60, ["-c", ""]))
    monkeypatch.setitem(check.NEEDS, "lacking", ("no_such_package",))
    monkeypatch.setitem(check.PROGRAMS, "failing", (60, ["-c", "import sys; print('a | b'); sys.exit(3)"]))
    monkeypatch.setitem(check.PROGRAMS, "too long", (1, ["-c", "import time; time.sleep(60)"]))
    monkeypatch.setitem(check.PROGRAMS, "sound", (60, ["-c", "import r2v; print(r2v.__version__)"]))
    assert check.run_all(tmp_path, "cpu") == 1
    table = (tmp_path / "summary.txt").read_text()
    assert table in capsys.readouterr().out + "\n"
    lines = {line.split(" | ")[0][2:]: line for line in table.splitlines()[2:]}
    assert "skipped: no no_such_package" in lines["lacking"] and "over its limit" in lines["too long"]
    assert "**exit 3**" in lines["failing"] and "a / b" in lines["failing"] and "| ok |" in lines["sound"]


def test_without_a_gpu_it_says_so(check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here: make gpu-check")
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "out")])
    assert check.main() == 5 and not (tmp_path / "out").exists()


def test_prompts_that_grow_are_read_on_a_cpu(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    check.PARTS["prefixes"][1]("cpu")
    assert capsys.readouterr().out.count("states kept") == 2


def test_all_weights_train_in_bfloat16_on_a_cpu(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    check.PARTS["full-weights"][1]("cpu")
    assert "placement=full devices=cpu " in capsys.readouterr().err


def test_the_stages_it_runs_are_asked_for_in_words_that_they_take(check: ModuleType) -> None:
    """Regression: a part passed options that its stage refused, which no CPU run had shown."""
    from r2v.config import load

    parts = sys.modules["benchmarks.gpu_parts"]
    load(parts.MICRO, [*parts.ADAPTERS.split()])
    load(parts.MICRO, [word for words in parts.STAGES.values() for word in words if "=" in word])


def test_the_speed_benchmark_runs_on_a_cpu() -> None:
    words = "--prompts 2 --samples 2 --completion 4 --rounds 1 --problems 1 --micro 2"
    done = subprocess.run(
        [warm.python(), str(PATH.with_name("hrl_speed.py")), *words.split()], capture_output=True, text=True
    )
    assert done.returncode == 0 and "TRL GRPO" in done.stdout, done.stderr
