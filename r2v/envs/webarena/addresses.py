"""Addresses: where the sites of WebArena are, by variables as BrowserGym names them, and what an agent sees of them.

    WA_MAP=http://host:3000            the site set without a name
    WA_B_MAP=http://other:3000         the same site of the set `b` (rollout.sites=[b])

An agent sees and types each site's public name (http://openstreetmap.org), as WebArena's own agents do: what was played
on one site set can be played on another, and no record holds a host.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from r2v.errors import UsageError

PUBLIC_NAMES = {
    "shopping": "http://onestopmarket.com",
    "shopping_admin": "http://luma.com/admin",
    "reddit": "http://reddit.com",
    "gitlab": "http://gitlab.com",
    "wikipedia": "http://wikipedia.org",
    "map": "http://openstreetmap.org",
    "homepage": "http://homepage.com",
}
"""The public name of each site, as the official package has them."""
UNSET_SITE = "todo"
"""What BrowserGym takes for a site that is not hosted."""


@dataclass(frozen=True, kw_only=True)
class SiteSet:
    """The sites of one set."""

    name: str | None
    urls: Mapping[str, str]
    """Of every site; UNSET_SITE where it is not hosted."""
    reset: str | None
    """Root of the server that puts the sites back (WA_FULL_RESET); None: they are put back by hand."""

    def variables(self) -> dict[str, str]:
        """What BrowserGym reads, and without WA_ the evaluators."""
        known = {f"{prefix}{site.upper()}": url for site, url in self.urls.items() for prefix in ("WA_", "")}
        return {**known, **({"WA_FULL_RESET": self.reset} if self.reset else {})}

    def shown(self) -> dict[str, str]:
        """Address -> the public name under which it is shown."""
        return {url: PUBLIC_NAMES[site] for site, url in self.urls.items() if url != UNSET_SITE}


def variable(site: str, name: str | None = None) -> str:
    """The variable of a site in a set.

    >>> variable("shopping_admin"), variable("map", "b")
    ('WA_SHOPPING_ADMIN', 'WA_B_MAP')
    """
    return "_".join(["WA", *([name.upper()] if name else []), site.upper()])


def site_names() -> list[str | None]:
    """The site sets that the process's variables name: None for the one without a name, which is first."""
    found: set[str] = set()
    for set_variable, value in os.environ.items():
        for site in sorted(PUBLIC_NAMES, key=len, reverse=True):
            if value and set_variable.startswith("WA_") and set_variable.endswith(f"_{site.upper()}"):
                found.add(set_variable[3 : -len(site)].rstrip("_").lower())
                break
    return [name or None for name in sorted(found)]


def site_set(name: str | None, needed: Collection[str]) -> SiteSet:
    """The set of this name, of the process's variables. Raises UsageError where a needed site is not there, or an
    address is none."""
    urls, missing = {}, []
    for site in PUBLIC_NAMES:
        url = os.environ.get(variable(site, name), "").rstrip("/")
        if url and not url.startswith(("http://", "https://")):
            raise UsageError(f"{variable(site, name)}={url:.60}: an address begins with http:// or https://")
        if not url and site in needed:
            missing.append(variable(site, name))
        urls[site] = url or UNSET_SITE
    if missing:
        raise UsageError(
            f"env.benchmark=webarena: {', '.join(missing)} not set; give the addresses of your sites, as in "
            f"{missing[0]}=http://host:7770, or play those you host alone (env.options.sites)"
        )
    reset = os.environ.get(variable("full_reset", name), "").rstrip("/")
    return SiteSet(name=name, urls=urls, reset=reset or None)
