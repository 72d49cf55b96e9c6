"""A small ETL of each kind of stage, for the classes that its JVM loads (tools/jvm_classes.py).

spark-submit --master local[1] tests/workers/spark_classes.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from howdah.config import loader
from howdah.etl import pipeline
from tests.support.models.tiny_model import write_tiny_model

ROWS = 60


def main() -> None:
    """CSV to shards, with duplicates looked for and a report."""
    builder = SparkSession.builder.config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "rows.csv"
        lines = [f"text of row {n} and {n * 7919},{'ab'[n % 2]}" for n in range(ROWS)]
        source.write_text("\n".join(["text,label", *lines, ""]))
        model = write_tiny_model(f"{place}/model")
        data = {"source": str(source), "dataset": f"{place}/dataset"}
        config = loader.from_dict({"data": data, "model": {"base": model}})
        pipeline.run(config, progress=print)
    session.stop()


if __name__ == "__main__":
    main()
