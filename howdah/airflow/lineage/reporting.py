"""What Airflow's OpenLineage provider asks an operator for, from `lineage` of its class."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from howdah.airflow.lineage import facets, touched


class ReportsLineage:
    """Base of operators: START, COMPLETE and FAIL events name what the task reads and writes.

    `answered` has what the commands of this execution printed, by command. It is filled in the
    process that ends the task, also after a deferral; nothing is read of what was there before it.
    """

    config: Any
    answered: dict[str, dict[str, Any]]

    def lineage(self) -> touched.Touched:
        """What the task reads and writes, as far as its fields and answers say; here nothing."""
        return touched.Touched()

    def lineage_places(self) -> touched.Places:
        """Where this task's paths and tables lie."""
        from howdah.errors import HowdahError
        from howdah.hadoop import conf

        try:
            known = conf.load(os.environ, names=("core-site.xml", "hive-site.xml")).values
        except HowdahError:
            known = {}
        config = self.config if isinstance(self.config, Mapping) else {}
        return touched.places_of(config, known, os.environ.get("AIRFLOW_HOME") or os.getcwd())

    def get_openlineage_facets_on_start(self) -> Any:
        """Asked before the task runs."""
        return facets.of(self.lineage())

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Asked when it has succeeded."""
        return facets.of(self.lineage())

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """Asked when it has failed: what it would have read and written, without versions."""
        return facets.of(self.lineage())
