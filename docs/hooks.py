"""MkDocs hooks: the pages of the site that nobody writes by hand, and links that leave docs/.

Every package of r2v gets an API page made from its docstrings; the changelog and the contributor's page are taken from
the root of the repository; the configuration reference is what `r2v config --reference` prints; a page that `nav` in
mkdocs.yml does not list is added under "Quickstarts" or "Topics", so that adding a page is adding a file. A link to a
file outside docs/ leads to the repository.
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

REPOSITORY = Path(__file__).parents[1]
ROOT_PAGES = {"CHANGELOG.md": "Changelog", "CONTRIBUTING.md": "Contributing"}
_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")


def _packages() -> list[str]:
    """Modules and packages directly under r2v, without private ones."""
    entries = [*(REPOSITORY / "r2v").glob("*/__init__.py"), *(REPOSITORY / "r2v").glob("*.py")]
    names = {path.parent.name if path.name == "__init__.py" else path.stem for path in entries}
    return sorted(name for name in names if not name.startswith("_") and name != "r2v")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API pages and those of the repository's root, and everything to the navigation."""
    for name in _packages():
        text = f"# r2v.{name}\n\n::: r2v.{name}\n"
        files.append(File.generated(config, f"api/{name}.md", content=text))
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
    listed = set(re.findall(r"[\w./-]+\.md", repr(config.nav)))
    topics = [
        file.src_uri
        for file in files.documentation_pages()
        if file.src_uri not in listed and not file.src_uri.startswith("api/") and file.src_uri not in ROOT_PAGES
    ]
    config.nav = [
        *(config.nav or []),
        {"Quickstarts": sorted(name for name in topics if name.startswith("quickstart-"))},
        {"Topics": sorted(name for name in topics if not name.startswith("quickstart-"))},
        {"API": [{f"r2v.{name}": f"api/{name}.md"} for name in _packages()]},
        {"Project": [{title: name} for name, title in ROOT_PAGES.items()]},
    ]
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Send links to files that are not pages of the site to the repository."""
    # Pages at the root of the repository link as if they stood there, all others as if in docs/.
    base = "" if page.file.src_uri in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def resolved(match: re.Match[str]) -> str:
        opening, target, rest = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(base, target))
        page_uri = path.removeprefix("docs/")
        if (path.startswith("docs/") or path in ROOT_PAGES) and files.get_file_from_path(page_uri) is not None:
            return f"{opening}{posixpath.relpath(page_uri, posixpath.dirname(page.file.src_uri) or '.')}{rest}"
        if not (REPOSITORY / path).exists():
            return match[0]  # left as it is, so that the strict build names it
        kind = "tree" if (REPOSITORY / path).is_dir() else "blob"
        return f"{opening}{(config.repo_url or '').rstrip('/')}/{kind}/main/{path}{rest}"

    return _LINK.sub(resolved, markdown)
