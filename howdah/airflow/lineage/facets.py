"""Inputs and outputs as OpenLineage's classes. Functions import the provider, which is optional."""

from __future__ import annotations

from typing import Any

from howdah.airflow.lineage.touched import Item, Touched

_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunFacet"


def of(touched: Touched) -> Any:
    """An OperatorLineage; None: the provider is not installed."""
    try:
        from airflow.providers.openlineage.extractors import OperatorLineage
    except ImportError:
        return None
    return OperatorLineage(
        inputs=[_input(item) for item in touched.inputs],
        outputs=[_output(item) for item in touched.outputs],
        run_facets={"howdah": _run_facet(dict(touched.facts))} if touched.facts else {},
    )


def _common(item: Item) -> dict[str, Any]:
    from openlineage.client.generated.dataset_type_dataset import DatasetTypeDatasetFacet
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet

    made: dict[str, Any] = {}
    if item.version is not None:
        made["version"] = DatasetVersionDatasetFacet(datasetVersion=item.version)
    if item.kind != "data":
        made["datasetType"] = DatasetTypeDatasetFacet(datasetType=item.kind.upper())
    return made


def _condition(item: Item) -> Any:
    from openlineage.client.generated.base_subset_dataset import Partition, PartitionSubsetCondition

    return PartitionSubsetCondition(
        partitions=[
            Partition(identifier="/".join(f"{c}={v}" for c, v in each.items()), dimensions={**each})
            for each in item.partitions
        ]
    )


def _input(item: Item) -> Any:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.generated.base_subset_dataset import InputSubsetInputDatasetFacet

    facets = {}
    if item.partitions:
        facets["subset"] = InputSubsetInputDatasetFacet(inputCondition=_condition(item))
    return InputDataset(
        namespace=item.namespace, name=item.name, facets=_common(item), inputFacets=facets
    )


def _output(item: Item) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.base_subset_dataset import OutputSubsetOutputDatasetFacet
    from openlineage.client.generated.output_statistics_output_dataset import (
        OutputStatisticsOutputDatasetFacet,
    )

    facets: dict[str, Any] = {}
    if item.partitions:
        facets["subset"] = OutputSubsetOutputDatasetFacet(outputCondition=_condition(item))
    if item.rows is not None:
        facets["outputStatistics"] = OutputStatisticsOutputDatasetFacet(rowCount=item.rows)
    return OutputDataset(
        namespace=item.namespace, name=item.name, facets=_common(item), outputFacets=facets
    )


def _run_facet(facts: dict[str, str]) -> Any:
    """The run facet `howdah`: run directory, run id, model, version."""
    import attr
    from openlineage.client.facet_v2 import RunFacet

    @attr.define
    class HowdahRunFacet(RunFacet):
        facts: dict[str, str]

        @staticmethod
        def _get_schema() -> str:
            return _SPEC

    return HowdahRunFacet(facts=facts)
