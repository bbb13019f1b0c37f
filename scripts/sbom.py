"""Make dist/sbom.cdx.json: a CycloneDX bill of materials, every locked package with its version and files' SHA-256.

    make sbom

It is made from requirements/*.txt alone, by the CycloneDX project's own library, with the same bytes each time. R2V's
dependencies are `required`, those of CUDA and a benchmark `optional`, and those of tests and checks alone `excluded`.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

import r2v

ROOT = Path(__file__).resolve().parents[1]
SETS = {
    "core": ComponentScope.REQUIRED,
    "cuda": ComponentScope.OPTIONAL,
    "miniwob": ComponentScope.OPTIONAL,
    "dev": ComponentScope.EXCLUDED,
    "mutate": ComponentScope.EXCLUDED,
    "lock": ComponentScope.EXCLUDED,
}
"""Files of requirements/ to the scope of their packages; the first file that names a package decides."""
PACKAGE = re.compile(r"^([\w.-]+)==([^\s;]+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
VIA = re.compile(r"^ +# (?:via |  )([\w.-]+)( \(pyproject\.toml\))?$", re.MULTILINE)


def component(name: str, version: str, hashes: list[str], scope: ComponentScope) -> Component:
    """Return a package with the hashes of all its files, one of which is installed."""
    address = PackageURL("pypi", None, name, version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(address)),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=value) for value in hashes],
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=str(address),
        purl=address,
        scope=scope,
        external_references=[files],
    )


def bill() -> Bom:
    """Return the bill of materials of requirements/*.txt."""
    own = Component(
        type=ComponentType.APPLICATION,
        name="r2v",
        version=r2v.__version__,
        bom_ref="r2v",
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
    )
    components, needs = {"r2v": own}, set[tuple[str, str]]()
    for name, scope in SETS.items():
        for package, version, rest in PACKAGE.findall((ROOT / "requirements" / f"{name}.txt").read_text()):
            hashes = re.findall(r"--hash=sha256:(\w{64})", rest)
            components.setdefault(package, component(package, version, hashes, scope))
            needs |= {(user, package) for user, _ in VIA.findall(rest)}
    bom = Bom(components=[item for name, item in components.items() if name != "r2v"])
    bom.metadata.component = own
    for name, item in components.items():
        bom.register_dependency(item, [components[to] for user, to in sorted(needs) if user == name])
    return bom


def main(path: Path) -> None:
    """Write the bill as JSON."""
    bom = bill()
    text = (ROOT / "requirements" / "dev.txt").read_text()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, text)
    path.parent.mkdir(parents=True, exist_ok=True)
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    document = json.loads(outputter.output_as_string())
    del document["metadata"]["timestamp"]
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    print(f"{path}: {len(bom.components)} packages")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "sbom.cdx.json")
