"""The bill of materials of a server: its locked packages, as CycloneDX 1.6."""

import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deploy.package.locked_requirements import LockedPackage, project_requirements
from pidlease import __version__

_SPEC: Final = "1.6"
_INDENT: Final = 2


def bill_of_materials(packages: Sequence[LockedPackage], epoch_s: int) -> str:
    """Return the document; the same for the same arguments.

    Parameters:
        packages: of a server.
        epoch_s: time of the commit, in seconds since 1970.
    """
    own = f"pkg:pypi/pidlease@{__version__}"
    names = {each.name for each in packages}
    direct = sorted(_purl(each) for each in packages if each.name in project_requirements("server"))
    document: dict[str, Any] = {
        "$schema": f"http://cyclonedx.org/schema/bom-{_SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": _SPEC,
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "pidlease",
                "version": __version__,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [_component(each) for each in packages],
        "dependencies": [
            {"ref": own, "dependsOn": direct},
            *({"ref": _purl(each), "dependsOn": _needs(each, packages)} for each in packages),
        ],
    }
    if len(names) != len(packages):
        raise AssertionError("a package occurs twice")
    text = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    return json.dumps(document, indent=_INDENT) + "\n"


def _purl(package: LockedPackage) -> str:
    return f"pkg:pypi/{package.name}@{package.version}"


def _component(package: LockedPackage) -> dict[str, Any]:
    """The hashes are those of the package's files: one of them is installed."""
    return {
        "type": "library",
        "bom-ref": _purl(package),
        "name": package.name,
        "version": package.version,
        "purl": _purl(package),
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"urn:sha256:{each}",
                "hashes": [{"alg": "SHA-256", "content": each}],
            }
            for each in sorted(package.hashes)
        ],
    }


def _needs(package: LockedPackage, packages: Sequence[LockedPackage]) -> list[str]:
    return sorted(_purl(each) for each in packages if package.name in each.needed_by)
