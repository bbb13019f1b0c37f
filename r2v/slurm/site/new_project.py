"""New projects: folders in which an installed R2V runs, here or on a cluster, without a checkout.

    begin(Path("mine"), profile="nersc", benchmark="parcels:Parcels")

A project gets the shipped configurations, the sbatch scripts with `run_all.sh`, a site profile, and for a custom
benchmark `configs/<name>/{noisy,clean}.yaml`. Its scripts use the Python that made it, named in `scripts/slurm/env.sh`.
"""

from __future__ import annotations

import shlex
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from r2v.config import load
from r2v.config.models import API_PROVIDERS
from r2v.config.profiles import PAID_SMALL
from r2v.config.yaml_text import write
from r2v.errors import InputError, UsageError
from r2v.slurm.site import headers, write_headers
from r2v.slurm.site.script_text import read_script, write_script
from r2v.slurm.site.site_profile import NONE, SHIPPED, SITE, shipped
from r2v.storage.artifact_manifest import OWN_PACKAGE, PROJECT_FILES
from r2v.storage.files import write_text, writing
from r2v.storage.paths import CONFIGS, LOGS, ROOMS, SCRIPTS

_FOLDERS = (*ROOMS, str(LOGS))
_CONDITIONS = {
    "noisy": "data:\n  condition: noisy\nevaluation:\n  conditions: [clean, noisy]\n",
    "clean": "data:\n  condition: clean\nevaluation:\n  conditions: [clean]\n",
}


def begin(
    folder: Path,
    *,
    profile: str = NONE,
    benchmark: str | None = None,
    teacher: str | None = None,
    student: str | None = None,
) -> list[Path]:
    """Write the project; returns its files. teacher, student: the models in its benchmark's configurations, or in
    configs/paid without a benchmark: `provider:model`; for a student also the name of weights.

    Raises UsageError for an invalid profile, benchmark or model, InputError if one of its files exists: nothing is ever
    replaced, and nothing is then written."""
    shipped(profile)
    texts = {name: read_script(path) for name, path in shipped_files().items()}
    texts[f"{SCRIPTS}/env.sh"] = _with_python(texts[f"{SCRIPTS}/env.sh"], folder)
    texts[".gitignore"] = "".join(f"/{name}/\n" for name in _FOLDERS)
    if benchmark or teacher or student:
        texts |= _configurations(benchmark, _models(teacher, student), set(texts))
    # All paths are checked before the first write, so that a clash leaves the folder unchanged.
    if there := [name for name in texts if (folder / name).exists()]:
        raise InputError(f"{folder / there[0]}: is there already; name an empty folder, or move it away")
    for name, text in texts.items():
        write_script(folder / name, text)
        if name.endswith(".sh"):
            (folder / name).chmod(0o755)
    with writing(folder):
        for name in _FOLDERS:
            (folder / name).mkdir(exist_ok=True)
    if profile == NONE:
        write_text(folder / SITE, (SHIPPED / "template.yaml").read_text())
        write_headers.write(folder)
    else:
        write_headers.choose(profile, folder)
    return [*(folder / name for name in texts), folder / SITE]


def shipped_files() -> dict[str, Path]:
    """Return the files of a new project by their paths in it: a wheel's data, else those of the checkout that R2V runs
    from. Raises InputError if neither has them."""
    top = Path(str(files("r2v") / PROJECT_FILES))
    if not top.is_dir():
        top = OWN_PACKAGE.parent
    sources = [*(top / CONFIGS).rglob("*.yaml"), *(top / SCRIPTS).glob("*.sh"), top / "run_all.sh"]
    if not sources[-1].exists():
        raise InputError(f"{OWN_PACKAGE}: no configurations lie beside it; install R2V again: pip install r2v")
    return {path.relative_to(top).as_posix(): path for path in sorted(sources)}


def restore_headers(root: Path = Path()) -> list[Path]:
    """Restore every script's shipped header, then apply the site profile; returns the changed files. Raises UsageError
    in R2V's own checkout, whose scripts are the shipped ones."""
    sources, before = shipped_files(), {path: read_script(path) for path in headers.scripts(root)}
    if sources["run_all.sh"].resolve() == (root / "run_all.sh").resolve():
        raise UsageError(f"cluster set headers=shipped: these are R2V's own scripts; git checkout -- {SCRIPTS}")
    for path, text in before.items():
        source = sources.get(path.relative_to(root).as_posix())
        if source is not None:
            write_script(path, "".join([*headers.split(read_script(source))[0], *headers.split(text)[1]]))
    write_headers.write(root)
    return [path for path, text in before.items() if read_script(path) != text]


def _with_python(text: str, folder: Path) -> str:
    """Return env.sh with this process's environment as the fallback for a project's own."""
    before = "if [ -f .venv/bin/activate ]; then source .venv/bin/activate; fi\n"
    if before not in text:
        raise InputError(f"{SCRIPTS}/env.sh: not as it was shipped; copy that of R2V's release into {folder}")
    own = shlex.quote(str(Path(sys.prefix) / "bin"))
    return text.replace(before, before.replace("fi\n", f"else PATH={own}:$PATH; fi  # as `r2v init` found it\n"))


def _configurations(benchmark: str | None, models: str, existing: set[str]) -> dict[str, str]:
    """Return the configurations of a custom benchmark, or of the desk with other models, by path."""
    name, env = "paid", "env:\n  benchmark: desk\n"
    if benchmark is not None:
        module, colon, name = benchmark.partition(":")
        if not (module and colon and name.isidentifier()):
            raise UsageError(f"--benchmark {benchmark}: written package.module:Class, as in env.benchmark")
        env = f"env:\n  benchmark: {benchmark}\n"
    paths = {condition: f"{CONFIGS}/{name.lower()}/{condition}.yaml" for condition in _CONDITIONS}
    if clash := [path for path in paths.values() if path in existing]:
        raise UsageError(f"--benchmark {benchmark}: {clash[0]} is R2V's own; give the class another name")
    head = f"# {benchmark or 'The desk by models of your own'}. What is not said here is a default: "
    return {
        paths[condition]: f"{head}r2v config --reference\n{models}{env}{text}"
        for condition, text in _CONDITIONS.items()
    }


def _models(teacher: str | None, student: str | None) -> str:
    """Return the lines of a configuration that name both models and its profile. Raises UsageError for a bad model."""
    if teacher is None and student is None:
        return ""
    sections: dict[str, Any] = {"profile": PAID_SMALL}
    if teacher is not None:
        provider, model = _named(teacher)
        if not provider:
            raise UsageError(f"--teacher {teacher}: written provider:model, as openai:gpt-6.1-terra")
        sections["teacher"] = {"provider": provider, "model_name": model}
    if student is not None:
        provider, model = _named(student)
        sections["policy"] = {**({"provider": provider} if provider else {}), "model_name": model}
    load(sections)  # raises for an invalid configuration
    return write(sections)


def _named(model: str) -> tuple[str, str]:
    """Return (provider, model) of `provider:model`; the provider is "" for the name of weights."""
    provider, colon, name = model.partition(":")
    return (provider, name) if colon and provider in API_PROVIDERS else ("", model)
