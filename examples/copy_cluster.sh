#!/usr/bin/env bash
# Copy topics to another cluster, each record once and in order, and compare both sides.
#
#   ./copy_cluster.sh kafka-a:9092 pidlease-b:9092 http://pidlease-b:8080 orders,payments
#
# The source is any Kafka; the destination is a pidlease. Options of `pidlease copy` may follow.
# A copier that was killed is started again and continues after its last saved offset. To copy
# what is written from now on as well, run `pidlease copy` without --once as a service.
set -euo pipefail

from=$1 to=$2 leases=$3 topics=$4
shift 4
copy=(pidlease copy --from "$from" --to "$to" --leases "$leases" --topics "$topics"
      --group "pidlease-copy-to-$to" "$@")

until "${copy[@]}" --once; do
    code=$?
    # 2: it cannot continue, and says why. 3: another copier has taken over.
    if ((code < 128)); then exit "$code"; fi
    echo "the copier was killed (exit code $code): starting it again" >&2
done

"${copy[@]}" --verify   # exit code 1: the sides differ
