"""Build the package into dist/, write the locked requirements of the images, or audit them."""

import argparse
import sys
from pathlib import Path

from deploy.package.advisories import AdvisoryError, Audited, audit
from deploy.package.distribution import DistributionError, build, check_committed
from deploy.package.locked_requirements import ROOT, RequirementsError, requirements_files


def main() -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.package", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    dist = commands.add_parser("dist", help="build sdist, wheel and bill of materials of HEAD")
    dist.add_argument("--folder", type=Path, default=ROOT / "dist", help="where; default: dist")
    commands.add_parser("requirements", help="write server.txt, spark.txt and build.txt")
    advisories = commands.add_parser("advisories", help="look for published vulnerabilities")
    advisories.add_argument("--program", type=Path, required=True, help="pip-audit")
    given = parser.parse_args()
    try:
        if given.command == "requirements":
            for path, text in requirements_files().items():
                path.write_text(text, encoding="utf-8")
            return 0
        if given.command == "advisories":
            sys.stdout.write(_summary(audit(given.program, ROOT / "requirements" / "dev.txt")))
            return 0
        check_committed()
        for path in build(given.folder):
            sys.stdout.write(f"{path}\n")
    except (AdvisoryError, DistributionError, RequirementsError) as error:
        sys.stderr.write(f"deploy.package: {error}\n")
        return 1
    return 0


def _summary(audited: Audited) -> str:
    if not audited.known:
        reason = f" ({audited.reason})" if audited.reason else ""
        return (
            f"the advisory service does not answer{reason}; vulnerabilities were not looked for\n"
        )
    text = f"{audited.known} locked packages without a published vulnerability"
    return text + (f"; unknown: {audited.unknown}\n" if audited.unknown else "\n")


if __name__ == "__main__":
    sys.exit(main())
