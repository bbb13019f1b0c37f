"""Check the licences of everything that R2V installs, as the installed packages state them.

    make licences

Every package of requirements/*.txt that is installed here is checked: its SPDX expression, else its licence field or
its classifiers. Permissive licences are allowed, and MPL-2.0, whose copyleft covers only its own files, which R2V does
not change; anything else, and a package without a licence, ends in exit 3. CUDA's libraries (requirements/cuda.txt) are
NVIDIA's, under terms of its own; PyTorch chooses them, and they are not checked.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETS = ("core", "dev", "miniwob")
"""Files of requirements/, with R2V's own dependencies first."""
PERMISSIVE = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT"),
    *("MIT-0", "MIT-CMU", "PSF-2.0", "Zlib", "LLVM-exception"),
}
OWN_FILES = {"MPL-2.0"}
"""Copyleft of the licensed files alone: allowed, and named."""
SPELLINGS = (
    (r"MPL-2\.0|Mozilla Public License 2\.0.*", "MPL-2.0"),
    (r"Apache([- ]Software)?([- ]License)?[-, ]*(Version )?(2\.0)?( License)?", "Apache-2.0"),
    (r"MIT( License)?(\s+Copyright .*)?", "MIT"),
    (r"BSD 2-Clause License", "BSD-2-Clause"),
    (r"BSD|BSD License|3-Clause BSD License|BSD 3-Clause License", "BSD-3-Clause"),
    (r"ISC License.*", "ISC"),
    (r"PSFL|Python Software Foundation License", "PSF-2.0"),
)
"""Common licence texts to SPDX identifiers; plain "BSD" maps to the stricter BSD-3-Clause."""
PACKAGE = re.compile(r"^([\w.-]+)==", re.MULTILINE)


def locked() -> dict[str, str]:
    """Return every package of the sets, with the first set that names it."""
    sets: dict[str, str] = {}
    for name in SETS:
        for package in PACKAGE.findall((ROOT / "requirements" / f"{name}.txt").read_text()):
            sets.setdefault(package, name)
    return sets


def licence(package: metadata.PackageMetadata) -> str:
    """Return the licence as an SPDX expression; an unknown text is returned as it is."""
    if expression := _field(package, "License-Expression"):
        return expression
    field = _field(package, "License").strip()
    classifiers = [
        text.rpartition(" :: ")[2] for text in package.get_all("Classifier") or [] if text.startswith("License ::")
    ]
    if "\n" not in field and _spdx(field) is not None:
        return str(_spdx(field))
    if classifiers:
        return " OR ".join(_spdx(text) or text for text in classifiers)
    return field.splitlines()[0] if field else "none stated"


def refused(expression: str) -> list[str]:
    """Return the parts of an expression that are not allowed; one allowed alternative suffices."""
    if " OR " in expression and "(" not in expression:
        each = [refused(part) for part in expression.split(" OR ")]
        return min(each, key=len)
    words = re.split(r" AND | WITH | OR |[()]", expression)
    return [word.strip() for word in words if word.strip() and word.strip() not in PERMISSIVE | OWN_FILES]


def main() -> int:
    counts: Counter[str] = Counter()
    copyleft, wrong, absent = [], [], []
    for package, origin in sorted(locked().items()):
        try:
            expression = licence(metadata.metadata(package))
        except metadata.PackageNotFoundError:
            absent.append(package)
            continue
        counts[expression] += 1
        if refused(expression):
            wrong.append(f"{package} ({origin}): {expression}")
        elif any(name in expression for name in OWN_FILES):
            copyleft.append(f"{package} ({origin}): {expression}")
    for name, count in counts.most_common():
        print(f"{count:4}  {name}")
    print(f"copyleft of their own files: {', '.join(copyleft) or 'none'}")
    print(f"not installed here, so not checked: {', '.join(absent) or 'none'}")
    if wrong:
        print(
            f"licences.py: not allowed: {'; '.join(wrong)}; another package, or a line in PERMISSIVE", file=sys.stderr
        )
        return 3
    print(f"{sum(counts.values())} packages, all allowed")
    return 0


def _field(package: metadata.PackageMetadata, name: str) -> str:
    return str((package.get_all(name) or [""])[0])


def _spdx(text: str) -> str | None:
    if all(word in PERMISSIVE | OWN_FILES for word in re.split(r" AND | OR | WITH ", text)):
        return text
    return next((name for pattern, name in SPELLINGS if re.fullmatch(pattern, text, re.DOTALL)), None)


if __name__ == "__main__":
    sys.exit(main())
