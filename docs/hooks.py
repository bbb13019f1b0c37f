"""MkDocs hooks: pages that are generated, links that leave docs/, and what the search finds.

`api/r2v.md` documents the public names; each package of r2v has an API page made from its docstrings, which is internal
and neither in the menu nor in the search. The changelog and the contributor's page are taken from the root of the
repository; the configuration reference is what `r2v config --reference` prints. A page that mkdocs.yml does not list is
added to the last section of the menu. A link to a file outside docs/ leads to
the repository.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import r2v

REPOSITORY = Path(__file__).parents[1]
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
PUBLIC = "api/r2v.md"
UNSEARCHED = ("LOG.md", "moved-modules.md", "CHANGELOG.md", "all-baselines.md")
"""Besides the internal API pages: long, and never where a reader's question is answered."""
LOOKED_UP = ("api/r2v.md", "reference.md", "configuration.md", "glossary.md")
"""Pages that name nearly everything, ranked below those that explain it."""
_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
_ASKS_GITHUB = ' data-md-component="source"'


def _packages() -> list[str]:
    """Modules and packages directly under r2v, without private ones."""
    entries = [*(REPOSITORY / "r2v").glob("*/__init__.py"), *(REPOSITORY / "r2v").glob("*.py")]
    names = {path.parent.name if path.name == "__init__.py" else path.stem for path in entries}
    return sorted(name for name in names if not name.startswith("_") and name != "r2v")


def _public() -> str:
    """The page of the public names, each documented where it is defined."""
    guide = posixpath.relpath("library.md", posixpath.dirname(PUBLIC))
    lines = ["# Public names", "", f"Import them from `r2v`: [From Python]({guide}) shows them at work.", ""]
    for name in sorted(set(r2v.__all__) - {"__version__"}):
        value = getattr(r2v, name)
        lines += [f"::: {value.__module__}.{value.__qualname__}", "    options:", "      show_root_heading: true"]
        lines += ["      show_root_toc_entry: true", f"      heading: {name}", f"      toc_label: {name}", ""]
    modules = ", ".join(f"[{name}]({name}.md)" for name in _packages())
    return "\n".join([*lines, "## Internal modules", "", f"These may change in any version: {modules}.", ""])


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API pages, those of the repository's root and the configuration reference."""
    for name in _packages():
        files.append(File.generated(config, f"api/{name}.md", content=f"# r2v.{name}\n\n::: r2v.{name}\n"))
    files.append(File.generated(config, PUBLIC, content=_public()))
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, content=(REPOSITORY / name).read_text()))
    reference = subprocess.run(
        [sys.executable, "-m", "r2v", "config", "--reference"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    files.append(File.generated(config, "reference.md", content=f"# Configuration reference\n\n{reference.stdout}"))
    pages = [file.src_uri for file in files.documentation_pages()]
    listed = {*re.findall(r"[\w./-]+\.md", repr(config.nav)), *config.not_in_nav.match_files(pages)}
    ((_, last),) = config.nav[-1].items()
    last.extend(sorted(set(pages) - listed))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Say what the search may find, and send links to files that are not pages to the repository."""
    name = page.file.src_uri
    if name in UNSEARCHED or (name.startswith("api/") and name != PUBLIC):
        page.meta["search"] = {"exclude": True}
    elif name in LOOKED_UP:
        page.meta["search"] = {"boost": 0.3}
    # Pages at the root of the repository link as if they stood there, all others as if in docs/.
    base = "" if name in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(name))

    def resolved(match: re.Match[str]) -> str:
        opening, target, rest = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(base, target))
        page_uri = path.removeprefix("docs/")
        if (path.startswith("docs/") or path in ROOT_PAGES) and files.get_file_from_path(page_uri) is not None:
            return f"{opening}{posixpath.relpath(page_uri, posixpath.dirname(name) or '.')}{rest}"
        if not (REPOSITORY / path).exists():
            return match[0]  # left as it is, so that the strict build names it
        kind = "tree" if (REPOSITORY / path).is_dir() else "blob"
        return f"{opening}{(config.repo_url or '').rstrip('/')}/{kind}/main/{path}{rest}"

    return _LINK.sub(resolved, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Keep the link to the repository, without the script that asks api.github.com for its stars."""
    return output.replace(_ASKS_GITHUB, "")


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Do the same for 404.html, which is no page."""
    return output.replace(_ASKS_GITHUB, "")
