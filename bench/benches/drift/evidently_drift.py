"""Evidently on the three columns that both look at: the peer of `python -m bench drift`.

    python bench/benches/drift/evidently_drift.py REFERENCE.npz CURRENT.npz PAGE.html

Runs in an environment that has Evidently; nothing of Howdah is imported. Prints one JSON
line: seconds of the import and of the run, bytes of the page, PSI of each column, and PSI and
Jensen-Shannon distance of histograms of the same bins, by Evidently's own functions.
"""

from __future__ import annotations

import json
import sys
import time


def main(reference: str, current: str, page: str) -> None:
    """Compare two files with arrays label, confidence, length (and histogram)."""
    began = time.perf_counter()
    import numpy as np
    import pandas as pd
    from evidently import DataDefinition, Dataset, Report
    from evidently.presets import DataDriftPreset

    imported = time.perf_counter() - began
    both = [dict(np.load(path)) for path in (reference, current)]
    columns = {"categorical_columns": ["label"], "numerical_columns": ["confidence", "length"]}
    frames = []
    for arrays in both:
        frame = pd.DataFrame({name: arrays[name] for name in ("label", "confidence", "length")})
        frame["label"] = frame["label"].astype(str)
        frames.append(Dataset.from_pandas(frame, data_definition=DataDefinition(**columns)))
    began = time.perf_counter()
    made = Report([DataDriftPreset(method="psi")]).run(frames[1], frames[0])
    made.save_html(page)
    ran = time.perf_counter() - began
    result = {
        metric["metric_name"].partition("column=")[2].partition(",")[0]: metric["value"]
        for metric in made.dict()["metrics"]
        if "column=" in metric["metric_name"]
    }
    same = {}
    for name in ("confidence", "length"):
        key = f"bins_{name}"
        same[name] = _on_the_same_bins(both[0][key], both[1][key])
    with open(page, "rb") as file:
        size = len(file.read())
    print(
        json.dumps(
            {"import": imported, "run": ran, "page": size, "found": result, "same": same},
            default=float,
        )
    )


def _on_the_same_bins(reference_B, current_B) -> dict[str, float]:
    """PSI and Jensen-Shannon distance of histograms, which Evidently sees as categories."""
    import numpy as np
    import pandas as pd
    from evidently.legacy.calculations.stattests import get_stattest, psi_stat_test  # noqa: F401
    from evidently.legacy.calculations.stattests.jensenshannon import jensenshannon_stat_test
    from evidently.legacy.calculations.stattests.psi import psi_stat_test as psi
    from evidently.legacy.core import ColumnType

    series = [
        pd.Series(np.repeat(np.arange(len(counts)), counts).astype(str))
        for counts in (reference_B, current_B)
    ]
    return {
        name: float(test.func(*series, ColumnType.Categorical, 0.1)[0])
        for name, test in (("psi", psi), ("js", jensenshannon_stat_test))
    }


if __name__ == "__main__":
    main(*sys.argv[1:4])
