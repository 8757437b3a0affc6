"""Load all modules of a server and its commands, so that Python compiles them and what they need.

Run in the build of the image, where the files may be written. It also shows that each module finds
what the build has left of the packages.
"""

import importlib
import pkgutil
import sys

import pidlease
import proxy

#: Left out: what needs Spark or pytest, and what does not return when it is loaded.
_LEFT_OUT = ("pidlease.spark", "pidlease.testing", "pidlease.__main__")


def main() -> None:
    """Load the modules; the first one that cannot be loaded ends the build."""
    if sys.dont_write_bytecode:
        sys.exit("PYTHONDONTWRITEBYTECODE is set: nothing would be compiled")
    for package in (pidlease, proxy):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(_LEFT_OUT):
                importlib.import_module(module.name)


if __name__ == "__main__":
    main()
