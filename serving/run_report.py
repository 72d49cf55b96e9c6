"""`python -m howdah.serving.run_report RUN_DIRECTORY FILE [--baseline]`: a run's report as a file.

With --baseline it first measures the baseline if that takes seconds, since the verdict depends on
it. It prints lines for the user, and last the report's verdict in JSON, {verdict, verdict_reason};
{}: no split was evaluated.
"""

import json
import sys

from howdah import storage
from howdah.config import loader
from howdah.errors import HowdahError, render
from howdah.models.runs.run_json import CONFIG
from howdah.serving.report import report


def main(run_directory: str, path: str, *options: str) -> None:
    """Write the page to `path`, which the caller publishes."""
    if options:
        # Here, since the baseline's room renews reports by this one.
        from howdah.serving.baseline.run import measure_if_quick

        config = loader.load(storage.join(run_directory, CONFIG))
        run = config.run.model_copy(update={"directory": run_directory})
        storage.configure(
            retry_seconds=run.storage_retry_seconds, user=run.user, mode=config.most_open
        )
        measure_if_quick(
            config.model_copy(update={"run": run}), progress=lambda line: print(line, flush=True)
        )
    with open(path, "wb") as file:
        file.write(report.page(run_directory))
    judgement = report.judged(run_directory)
    print(json.dumps({} if judgement is None else judgement.recorded))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except HowdahError as error:
        sys.exit(render(error))
