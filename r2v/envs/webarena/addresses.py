"""Addresses of WebArena's sites, from BrowserGym's variables, and the public names that agents see.

    WA_MAP=http://host:3000            the site set without a name
    WA_B_MAP=http://other:3000         the same site of the set `b` (rollout.sites=[b])

An agent sees and types each site's public name (http://openstreetmap.org), as WebArena's own agents do. So an episode
of one site set can be replayed on another, and no record names a host.
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
"""Public name by site, as in the official package."""
TASK_SITES = tuple(site for site in PUBLIC_NAMES if site != "homepage")
"""Sites that tasks need."""
UNSET_SITE = "todo"
"""BrowserGym's value for a site that is not hosted."""


@dataclass(frozen=True, kw_only=True)
class SiteSet:
    """Sites of one set."""

    name: str | None
    urls: Mapping[str, str]
    """Address by site; UNSET_SITE if it is not hosted."""
    reset: str | None
    """Root of the server that resets the sites (WA_FULL_RESET); None: they are reset by hand."""

    def variables(self) -> dict[str, str]:
        """Return the environment variables of BrowserGym and, without WA_, of the evaluators."""
        addresses = {f"{prefix}{site.upper()}": url for site, url in self.urls.items() for prefix in ("WA_", "")}
        return {**addresses, **({"WA_FULL_RESET": self.reset} if self.reset else {})}

    def shown(self) -> dict[str, str]:
        """Return address -> public name for the hosted sites."""
        return {url: PUBLIC_NAMES[site] for site, url in self.urls.items() if url != UNSET_SITE}


def variable(site: str, name: str | None = None) -> str:
    """Return the variable of a site in a set.

    >>> variable("shopping_admin"), variable("map", "b")
    ('WA_SHOPPING_ADMIN', 'WA_B_MAP')
    """
    return "_".join(["WA", *([name.upper()] if name else []), site.upper()])


def site_names() -> list[str | None]:
    """Return the site sets in the process's variables; None, for the unnamed set, comes first."""
    names: set[str] = set()
    for set_variable, value in os.environ.items():
        for site in sorted(PUBLIC_NAMES, key=len, reverse=True):
            if value and set_variable.startswith("WA_") and set_variable.endswith(f"_{site.upper()}"):
                names.add(set_variable[3 : -len(site)].rstrip("_").lower())
                break
    return [name or None for name in sorted(names)]


def site_set(name: str | None, needed: Collection[str]) -> SiteSet:
    """Return a site set from the process's variables. Raises UsageError for a missing needed site or a bad address."""
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
