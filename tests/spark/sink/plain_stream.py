"""An application with a query as every user of Spark writes one; nothing is prepared."""

import json
import sys
from pathlib import Path

from pidlease.spark.errors import is_fenced, text_of
from tests.servers.spark import session_for_tests

#: Exit code: another run has taken over.
FENCED = 3


def main(folder: Path, read: dict[str, str], written: dict[str, str]) -> int:
    """Copy all there is.

    Parameters:
        read: options of the source.
        written: options of the sink.
    """
    spark = session_for_tests(folder)
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.readStream.format("kafka").options(**read).load()
    query = frame.writeStream.format("pidlease").options(**written).trigger(availableNow=True)
    try:
        query.start().awaitTermination()
    except Exception as error:
        if not is_fenced(error):
            raise
        print(f"fenced: {text_of(error)}", flush=True)
        return FENCED
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])))
