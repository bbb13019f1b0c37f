"""Payloads: code in a third party's folder, configuration, checkpoint or model never runs.

Every payload leaves a mark when it runs; no mark may be there, whatever the exit code.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from r2v.cli.main import main
from tests.trust import MICRO, drawn
from tests.trust.alter import rewrite, rewrite_text, text_of
from tests.trust.tampering import copy_results, make_consistent, read, verify, write

MODULE = "hostile_module"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the path of the payloads' mark. A module that leaves it when imported lies in the folder of the command,
    which may well be a third party's folder."""
    path = tmp_path / "mark"
    folder = tmp_path / "here"
    package = folder / MODULE
    package.mkdir(parents=True)
    text = f"open({str(path)!r}, 'a').write(__name__)\nclass B:\n    pass\n"
    (package / "__init__.py").write_text(text)
    (package / "deep.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield path
    assert not path.exists(), f"a payload ran: {path.read_text()}"


class Payload:
    """A pickle that leaves the mark when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return exec, (f"open({str(self.path)!r}, 'a').write('pickle')",)


def dotted(mark: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return names that a careless reader would import or call, with their arguments."""
    return [
        (f"{MODULE}:B", {}),
        (f"{MODULE}.deep:B", {}),
        ("os:system", {"command": f"touch {mark}"}),
        ("subprocess:Popen", {"args": ["touch", str(mark)]}),
        ("builtins:exec", {"source": f"open({str(mark)!r}, 'w')"}),
        ("runpy:run_path", {"path_name": f"{MODULE}/deep.py"}),
        ("json:dumps", {"obj": 1}),
        ("r2v.storage.files:write_text", {"path": str(mark), "text": "x"}),
    ]


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("only_in_setup", [False, True])
def test_a_benchmark_that_results_name_is_not_imported(
    number: int, only_in_setup: bool, mark: Path, small_results: Path, tmp_path: Path
) -> None:
    results = copy_results(small_results, tmp_path / "results")
    spec, options = dotted(mark)[number]
    (setup,) = read(results / "setup.json")
    setup["world"]["env"] = {"benchmark": spec, "options": options}
    write(results / "setup.json", [setup])
    if not only_in_setup:
        (config,) = read(results / "config.yaml")
        config["env"] = {"benchmark": spec, "options": options}
        write(results / "config.yaml", [config])
    make_consistent(results)
    code, _, err = verify(results)
    assert code == 3 and err.count("\n") == 1, err
    assert ("setup.json world" if only_in_setup else "--trust") in err, err


@pytest.mark.parametrize("number", range(2, 8))
def test_trust_uses_a_benchmark_and_nothing_else(number: int, mark: Path, small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    spec, options = dotted(mark)[number]
    (setup,) = read(results / "setup.json")
    setup["world"]["env"] = {"benchmark": spec, "options": options}
    write(results / "setup.json", [setup])
    code, _, err = verify(results, "--trust")
    assert code == 3 and err.count("\n") == 1, err


def test_a_perturbation_that_results_name_is_not_imported(mark: Path, small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    extra = {f"{MODULE}.deep:B": {"prob": 0.5}}
    (setup,) = read(results / "setup.json")
    setup["world"]["perturbations"]["extra"] = extra
    write(results / "setup.json", [setup])
    (config,) = read(results / "config.yaml")
    config["perturbations"]["extra"] = extra
    write(results / "config.yaml", [config])
    make_consistent(results)
    code, _, err = verify(results)
    assert code == 3 and err.count("\n") == 1 and "--trust" in err, err


def test_a_category_that_an_episode_names_is_not_imported(mark: Path, small_results: Path, tmp_path: Path) -> None:
    results = copy_results(small_results, tmp_path / "results")
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    records = read(path)
    applied = {"category": f"{MODULE}.deep:B", "mode": "x", "params": {}, "canary": None}
    for record in records:
        record["steps"][0]["perturbations"] = [applied]
    write(path, records)
    make_consistent(results)
    code, _, err = verify(results)
    assert code == 3 and "perturbations" in err, err


def _outside(results: Path, tmp_path: Path) -> None:
    """Replace an episodes file by a link to a file of the reader's own."""
    secret = tmp_path / "secret.jsonl"
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    shutil.copy(path, secret)
    path.unlink()
    path.symlink_to(secret)


def _link_folder(results: Path, tmp_path: Path) -> None:
    shutil.move(results / "episodes", tmp_path / "elsewhere")
    (results / "episodes").symlink_to(tmp_path / "elsewhere")


def _loop(results: Path, tmp_path: Path) -> None:
    (results / "gains" / "loop").symlink_to(results)


def _device(results: Path, tmp_path: Path) -> None:
    (results / "setup.json").unlink()
    (results / "setup.json").symlink_to("/dev/zero")


def _pipe(results: Path, tmp_path: Path) -> None:
    (results / "calibration.json").unlink()
    os.mkfifo(results / "calibration.json")


def _control(results: Path, tmp_path: Path) -> None:
    (results / "episodes" / "\x1b]0;title\x07\x1b[2J.jsonl").write_text("{}\n")


def _way_out(results: Path, tmp_path: Path) -> None:
    """Write names that lead out of the folder, in every field that becomes part of a path."""
    (setup,) = read(results / "setup.json")
    setup["tasks"] = {"../../../../etc": setup["tasks"]["noisy"]}
    write(results / "setup.json", [setup])


def _point_out(results: Path, tmp_path: Path) -> None:
    (setup,) = read(results / "setup.json")
    setup["frontier"]["noisy"]["r2v"] = ["../../../../../etc/passwd"]
    write(results / "setup.json", [setup])


def _listed_out(results: Path, tmp_path: Path) -> None:
    (record,) = read(results / "artifact.json")
    record["files"]["../../../etc/passwd"] = "0" * 64
    record.pop("sha256")
    write(results / "artifact.json", [record])


def _title(results: Path, tmp_path: Path) -> None:
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    records = read(path)
    records[0]["episode_id"] = "\x1b]0;owned\x07\x1b[2J" + records[0]["episode_id"]
    write(path, records)
    make_consistent(results)


def _memory(results: Path, tmp_path: Path) -> None:
    """Ask for 72 TiB of bootstrap, in setup.json and config.yaml alike."""
    (setup,) = read(results / "setup.json")
    setup["resamples"] = 10**12
    write(results / "setup.json", [setup])
    (config,) = read(results / "config.yaml")
    config["evaluation"]["bootstrap"] = 10**12
    write(results / "config.yaml", [config])


def _many_tasks(results: Path, tmp_path: Path) -> None:
    for name, keys in (("setup.json", ("world", "env", "options")), ("config.yaml", ("env", "options"))):
        (record,) = read(results / name)
        inner = record
        for key in keys:
            inner = inner[key]
        inner["num_tasks"] = 10**11
        write(results / name, [record])


def _nested(results: Path, tmp_path: Path) -> None:
    rewrite(results / "setup.json", b"[" * 200_000)


def _nested_yaml(results: Path, tmp_path: Path) -> None:
    rewrite(results / "config.yaml", b"a: " + b"[" * 20_000)


def _nested_action(results: Path, tmp_path: Path) -> None:
    path = results / "episodes" / "noisy" / "llm_only.jsonl.zst"
    records = read(path)
    records[0]["steps"][0]["action"]["raw_text"] = '{"tool":' * 50_000
    write(path, records)


def _long_line(results: Path, tmp_path: Path) -> None:
    (results / "episodes" / "noisy" / "r2v.jsonl.zst").unlink()
    with (results / "episodes" / "noisy" / "r2v.jsonl").open("wb") as file:
        file.truncate(20 << 30)  # a hole: 20 GiB of zeros that take no room on the disk


def _twice(results: Path, tmp_path: Path) -> None:
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    rewrite_text(path, text_of(path).replace(b'"success":false', b'"success":true,"success":false', 1))
    make_consistent(results)


def _surrogate(results: Path, tmp_path: Path) -> None:
    path = results / "episodes" / "noisy" / "r2v.jsonl.zst"
    rewrite_text(path, text_of(path).replace(b'"raw_text":"', b'"raw_text":"\\ud800', 1))
    make_consistent(results)


def _tag(results: Path, tmp_path: Path) -> None:
    text = (results / "config.yaml").read_text()
    mark = tmp_path / "mark"
    rewrite(results / "config.yaml", f"{text}\nnotes: !!python/object/apply:os.system ['touch {mark}']\n".encode())


def _folder(results: Path, tmp_path: Path) -> None:
    (results / "setup.json").unlink()
    (results / "setup.json").mkdir()


def _binary(results: Path, tmp_path: Path) -> None:
    for name in ("setup.json", "calibration.json"):
        rewrite(results / name, bytes(range(256)))


HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    function.__name__.strip("_"): function
    for function in (
        _outside,
        _link_folder,
        _loop,
        _device,
        _pipe,
        _control,
        _way_out,
        _point_out,
        _listed_out,
        _title,
        _memory,
        _many_tasks,
        _nested,
        _nested_yaml,
        _nested_action,
        _long_line,
        _twice,
        _surrogate,
        _tag,
        _folder,
        _binary,
    )
}


@pytest.mark.parametrize("name", drawn(sorted(HOSTILE), 12, "hostile results"))
def test_a_hostile_folder_is_one_line_and_exit_code_3(
    name: str, mark: Path, small_results: Path, tmp_path: Path
) -> None:
    results = copy_results(small_results, tmp_path / "results")
    HOSTILE[name](results, tmp_path)
    code, _, err = verify(results)
    assert code == 3 and err.count("\n") == 1, err
    assert "Traceback" not in err and all(char.isprintable() for char in err.rstrip("\n")), err


def run(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its standard error."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            code = main(list(words))
        except SystemExit as end:
            code = int(end.code or 0)
    return code, err.getvalue()


READERS = (
    ("config", "--config", "hostile.yaml"),
    ("stages", "--config", "hostile.yaml"),
    ("plan", "--config", "hostile.yaml"),
    ("plan", "bc", "--config", "hostile.yaml"),
    ("run_all", "--dry-run", "--config", "hostile.yaml"),
    ("registry",),
    ("registry", "rebuild"),
    ("status",),
    ("explain",),
    ("graph",),
    ("cost",),
)


def _hostile_configuration(mark: Path) -> str:
    name = f"{MODULE}.deep:B"
    return "\n".join(
        (
            "prefix: hostile",
            f"env: {{benchmark: '{name}', options: {{command: 'touch {mark}'}}}}",
            f"teacher: {{provider: '{name}'}}",
            f"router: {{model: '{name}'}}",
            f"perturbations: {{extra: {{'{name}': {{prob: 0.2}}}}}}",
            f"hierarchical: {{enabled: true, problems: {{checker: '{name}'}}, guidance: {{reward: '{name}'}}}}",
        )
    )


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_strangers_configuration_runs_nothing_through_the_commands_that_only_read(
    words: tuple[str, ...], mark: Path
) -> None:
    Path("hostile.yaml").write_text(_hostile_configuration(mark))
    chain = Path("outputs/.chains/hostile")
    chain.mkdir(parents=True)
    shutil.copy("hostile.yaml", chain / "config.yaml")
    _, err = run(*words)
    assert "Traceback" not in err and "importing" not in err, err


def _planted(folder: Path, mark: Path) -> None:
    """Write every file of a checkpoint or model that some library would unpickle or import, with a payload in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in UNPICKLED:
        with (folder / name).open("wb") as file:
            pickle.dump(Payload(mark), file)
    (folder / "modeling_hostile.py").write_text(f"open({str(mark)!r}, 'a').write('auto_map')\n")
    code = {"AutoConfig": "modeling_hostile.C", "AutoModelForCausalLM": "modeling_hostile.M"}
    records = {
        "config.json": {"model_type": "hostile", "auto_map": code},
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["modeling_hostile.T", None]}},
        "adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": str(folder)},
    }
    for name, record in records.items():
        (folder / name).write_text(json.dumps(record))


UNPICKLED = ("optimizer.pt", "scheduler.pt", "rng_state.pth", "pending.pt", "training_args.bin", "pytorch_model.bin")
MODELS = (
    ("train_policy", "--stage", "bc", "--overrides", "policy.model_name=model"),
    ("train_policy", "--stage", "bc", "--resume", "model"),
    ("train_verifier", "--overrides", "policy.model_name=model"),
    ("evaluate", "--overrides", "policy.model_name=model", "evaluation.methods=[slm_base]"),
    ("train_hierarchical", "--overrides", "policy.model_name=model"),
    ("plan", "bc", "--overrides", "policy.model_name=model"),
    ("verify-results", "model"),
)


@pytest.mark.parametrize("words", drawn(MODELS, 4, "hostile models"), ids=lambda words: " ".join(words)[:60])
def test_a_strangers_model_runs_nothing_through_any_command_that_takes_it(words: tuple[str, ...], mark: Path) -> None:
    _planted(Path("model"), mark)
    code, err = run(*words)
    assert code in (2, 3, 4) and "Traceback" not in err, err


@pytest.mark.parametrize("adapters", [False, True])
def test_resuming_a_strangers_checkpoint_imports_nothing_before_it_says_so(adapters: bool, mark: Path) -> None:
    checkpoint = Path("outputs/.artifacts/bc-0123456789abcdef/checkpoint-10")
    _planted(checkpoint, mark)
    if not adapters:
        (checkpoint / "adapter_config.json").unlink()
    (checkpoint.parent / "config.yaml").write_text(_hostile_configuration(mark))
    (checkpoint.parent / "attempt.meta.json").write_text(json.dumps({"job": "bc", "inputs": {}}))
    code, err = run("train_policy", "--stage", "bc", "--resume", str(checkpoint))
    assert code in (2, 3) and "Traceback" not in err, err


def test_a_stored_router_of_another_class_is_not_imported(mark: Path) -> None:
    from r2v.errors import InputError
    from r2v.router.models import load

    record = {"kind": f"{MODULE}:B", "part_class": f"{MODULE}.deep:B", "names": [], "calibration": {}, "part": {}}
    Path("r2v.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="nothing of it was imported"):
        load(Path("r2v.json"), "logistic")


def test_the_fixture_would_see_a_payload_run(tmp_path: Path) -> None:
    path = tmp_path / "seen"
    pickle.loads(pickle.dumps(Payload(path)))
    assert path.exists() and stat.S_ISREG(path.stat().st_mode) and MICRO.exists()
