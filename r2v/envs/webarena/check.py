"""Check of WebArena's set-up before a long run: installed packages, language data, and every site's answer."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

from r2v.envs.browser.chromium import find_chromium
from r2v.envs.webarena.addresses import TASK_SITES, UNSET_SITE, site_set, variable
from r2v.envs.webarena.home import INSTALL_WEBARENA, is_installed, webarena_home
from r2v.errors import UsageError

_SECONDS = 10.0


def check_set_up() -> Iterator[tuple[bool, str]]:
    """Yield (True if present, line) for the interpreter, the language data and the browser."""
    home = webarena_home()
    if not is_installed():
        yield False, f"no child interpreter at {home}; run `{INSTALL_WEBARENA}`"
    else:
        versions = json.loads((home / "versions.json").read_text())
        yield True, ", ".join(f"{package} {version}" for package, version in versions.items())
        data = home / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
        there = data.is_dir() and any(data.iterdir())
        yield there, f"punkt_tab at {data}" if there else f"no punkt_tab; remove {home} and run `{INSTALL_WEBARENA}`"
    try:
        yield True, f"browser {find_chromium()}"
    except UsageError as error:
        yield False, str(error)


def check_sites(name: str | None) -> Iterator[tuple[bool, str]]:
    """Yield (True if fine, line) for each site of a set. Raises UsageError for a bad address or a set without sites."""
    sites = site_set(name, ())
    if all(url == UNSET_SITE for url in sites.urls.values()):
        sites = site_set(name, TASK_SITES)
    for site, url in sites.urls.items():
        if url == UNSET_SITE:
            yield True, f"{site}: {variable(site, name)} is not set; name the others in env.options.sites"
        else:
            yield _answers(site, url)
    if sites.reset is not None:
        yield _answers("reset server", f"{sites.reset}/status")


def _answers(site: str, url: str) -> tuple[bool, str]:
    """Return (True if a site serves its first page, line)."""
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            return True, f"{site}: {url} answers {answer.status}"
    except urllib.error.HTTPError as error:
        return error.code < 500, f"{site}: {url} answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        return False, f"{site}: {url} does not answer ({' '.join(str(reason).split())[:120]})"
