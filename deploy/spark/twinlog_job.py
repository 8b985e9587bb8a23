"""The command line of twinlog as a Spark application, for ``spark-submit``.

    spark-submit --master spark://spark1:7077 twinlog_job.py spark verify --path /mnt/store

The words behind the file are those of ``twinlog``. The session is the one that spark-submit set up.
"""

from __future__ import annotations

import sys

from twinlog.__main__ import main

sys.exit(main())
