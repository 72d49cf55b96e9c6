"""The interface of operators to Airflow's OpenLineage provider."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from howdah.airflow.lineage import facets, touched


class ReportsLineage:
    """Base of operators: START, COMPLETE and FAIL events name the task's inputs and outputs.

    `answered` has the JSON object that each command of this execution printed. It is filled in the
    process that ends the task, also after a deferral; results of earlier tries are not used.
    """

    config: Any
    answered: dict[str, dict[str, Any]]

    def lineage(self) -> touched.Touched:
        """The task's inputs and outputs, from its fields and answers; the base class has none."""
        return touched.Touched()

    def lineage_places(self) -> touched.Places:
        """The storage and metastore that this task's paths and tables belong to."""
        from howdah.errors import HowdahError
        from howdah.hadoop import conf

        try:
            hadoop = conf.load(os.environ, names=("core-site.xml", "hive-site.xml")).values
        except HowdahError:
            hadoop = {}
        config = self.config if isinstance(self.config, Mapping) else {}
        return touched.places_of(config, hadoop, os.environ.get("AIRFLOW_HOME") or os.getcwd())

    def get_openlineage_facets_on_start(self) -> Any:
        """Inputs and outputs before the task runs."""
        return facets.of(self.lineage())

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Inputs and outputs after a success."""
        return facets.of(self.lineage())

    # After a failure: those that the task would have had, without versions.
    get_openlineage_facets_on_failure = get_openlineage_facets_on_complete
