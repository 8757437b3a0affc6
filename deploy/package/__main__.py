"""Build the package into dist/, or write the locked requirements of the images."""

import argparse
import sys
from pathlib import Path

from deploy.package.distribution import DistributionError, build, check_committed
from deploy.package.locked_requirements import ROOT, RequirementsError, requirements_files


def main() -> int:
    """Run a command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.package", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    dist = commands.add_parser("dist", help="build sdist, wheel and bill of materials of HEAD")
    dist.add_argument("--folder", type=Path, default=ROOT / "dist", help="where; default: dist")
    commands.add_parser("requirements", help="write server.txt, spark.txt and build.txt")
    given = parser.parse_args()
    try:
        if given.command == "requirements":
            for path, text in requirements_files().items():
                path.write_text(text, encoding="utf-8")
            return 0
        check_committed()
        for path in build(given.folder):
            sys.stdout.write(f"{path}\n")
    except (DistributionError, RequirementsError) as error:
        sys.stderr.write(f"deploy.package: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
