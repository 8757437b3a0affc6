"""The command line: break, test, and tell; exit 1 if a mutant survives or the control fails."""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.client_mutants import CLIENT
from tests.mutants.coordination_mutants import COORDINATION
from tests.mutants.copier_mutants import COPIER
from tests.mutants.damage_mutants import DAMAGE
from tests.mutants.engine_mutants import ENGINE
from tests.mutants.follower_mutants import FOLLOWERS
from tests.mutants.groups_mutants import GROUPS
from tests.mutants.idempotency_mutants import IDEMPOTENCY
from tests.mutants.job_mutants import JOBS
from tests.mutants.leased_mutants import LEASED
from tests.mutants.mutant import Mutant
from tests.mutants.quota_mutants import QUOTAS
from tests.mutants.run import Result, check, control, prepare
from tests.mutants.security_mutants import SECURITY
from tests.mutants.sharing_mutants import SHARING
from tests.mutants.spark_mutants import SPARK
from tests.mutants.storage_mutants import STORAGE
from tests.mutants.stream_mutants import STREAMS
from tests.mutants.upstream_mutants import UPSTREAM

MUTANTS = (
    *STORAGE, *ENGINE, *DAMAGE, *LEASED, *GROUPS, *UPSTREAM, *SHARING, *COORDINATION,
    *FOLLOWERS, *CLIENT, *COPIER, *STREAMS, *IDEMPOTENCY, *SECURITY, *QUOTAS, *JOBS, *SPARK,
)  # fmt: skip


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; all, where there is none")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    given = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if not given.names or any(part in mutant.name for part in given.names)
    ]
    if not chosen:
        parser.error("no mutant has such a name")
    started = time.monotonic()
    with TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(given.jobs) as pool:
        prepare(Path(scratch))
        # The control runs beside the mutants: it takes longest, so it comes first.
        jobs = [pool.submit(partial(control, Path(scratch), chosen))]
        jobs += [pool.submit(partial(check, Path(scratch), mutant)) for mutant in chosen]
        results = []
        for job in jobs:
            results.append(job.result())
            _show(results[-1])
    bad = [result for result in results if not result.good]
    print(f"\n{len(chosen)} mutants, {len(bad)} problems, {time.monotonic() - started:.0f} s")
    for result in bad:
        print(f"\n=== {result.name}: {result.verdict}\n{result.output}")
    return 1 if bad else 0


def _show(result: Result) -> None:
    mark = "ok " if result.good else "BAD"
    print(f"{mark} {result.name:<55} {result.seconds:5.1f} s  {result.verdict}", flush=True)


__all__ = ["Mutant", "main"]

if __name__ == "__main__":
    sys.exit(main())
