"""New project: a folder of one's own in which an installed R2V runs, here or on a cluster, without a checkout.

    begin(Path("mine"), profile="nersc", benchmark="parcels:Parcels")

It gets the shipped configurations, the sbatch scripts with `run_all.sh`, a site profile, and for a benchmark of one's
own `configs/<name>/{noisy,clean}.yaml`. The scripts use the Python that made it, which `scripts/slurm/env.sh` names.
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
    """Write the project; returns its files. teacher, student: the models of the configurations of its benchmark, or of
    configs/paid where it has none of its own: `provider:model`, of a student also the name of weights.

    Raises UsageError for a profile, benchmark or model that cannot be, InputError where a file of it is there already:
    nothing is ever replaced, and nothing is then written."""
    shipped(profile)
    texts = {name: read_script(path) for name, path in shipped_files().items()}
    texts[f"{SCRIPTS}/env.sh"] = _with_python(texts[f"{SCRIPTS}/env.sh"], folder)
    texts[".gitignore"] = "".join(f"/{name}/\n" for name in _FOLDERS)
    if benchmark or teacher or student:
        texts |= _configurations(benchmark, _models(teacher, student), set(texts))
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
    """The files that a project begins with, by their places in it: data of a wheel, else those of
    the checkout that R2V is run from. Raises InputError where neither has them."""
    top = Path(str(files("r2v") / PROJECT_FILES))
    if not top.is_dir():
        top = OWN_PACKAGE.parent
    found = [*(top / CONFIGS).rglob("*.yaml"), *(top / SCRIPTS).glob("*.sh"), top / "run_all.sh"]
    if not found[-1].exists():
        raise InputError(f"{OWN_PACKAGE}: no configurations lie beside it; install R2V again: pip install r2v")
    return {path.relative_to(top).as_posix(): path for path in sorted(found)}


def restore_headers(root: Path = Path()) -> list[Path]:
    """Give every script the header that it was shipped with, then what the site profile says of it; returns the files
    that changed. Raises UsageError in R2V's own checkout, whose scripts are what is shipped."""
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
    """env.sh with the environment that runs this, unless the project has its own."""
    before = "if [ -f .venv/bin/activate ]; then source .venv/bin/activate; fi\n"
    if before not in text:
        raise InputError(f"{SCRIPTS}/env.sh: not as it was shipped; copy that of R2V's release into {folder}")
    own = shlex.quote(str(Path(sys.prefix) / "bin"))
    return text.replace(before, before.replace("fi\n", f"else PATH={own}:$PATH; fi  # as `r2v init` found it\n"))


def _configurations(benchmark: str | None, models: str, taken: set[str]) -> dict[str, str]:
    """The configurations of a benchmark of one's own, or of the desk by other models, by their place."""
    name, env = "paid", "env:\n  benchmark: desk\n"
    if benchmark is not None:
        module, colon, name = benchmark.partition(":")
        if not (module and colon and name.isidentifier()):
            raise UsageError(f"--benchmark {benchmark}: written package.module:Class, as in env.benchmark")
        env = f"env:\n  benchmark: {benchmark}\n"
    places = {condition: f"{CONFIGS}/{name.lower()}/{condition}.yaml" for condition in _CONDITIONS}
    if clash := [place for place in places.values() if place in taken]:
        raise UsageError(f"--benchmark {benchmark}: {clash[0]} is R2V's own; give the class another name")
    head = f"# {benchmark or 'The desk by models of your own'}. What is not said here is a default: "
    return {
        places[condition]: f"{head}r2v config --reference\n{models}{env}{text}"
        for condition, text in _CONDITIONS.items()
    }


def _models(teacher: str | None, student: str | None) -> str:
    """The lines of a configuration that name both models, and its size. Raises UsageError for a model that cannot be
    what it is named for."""
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
    load(sections)  # refuses what is no configuration
    return write(sections)


def _named(model: str) -> tuple[str, str]:
    """(provider, model) of `provider:model`; the provider is empty for a model of weights."""
    provider, colon, name = model.partition(":")
    return (provider, name) if colon and provider in API_PROVIDERS else ("", model)
