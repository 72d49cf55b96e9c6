"""The model that MLflow loads: a copy of this file is its code, its artifact is an export or a
reference to the published one.

MLflow runs this file ("models from code"), so that no object is pickled; it needs Howdah installed.
Howdah itself does not import it: mlflow_registry.py names it.
"""

import mlflow  # noqa: TID253 - MLflow itself runs this file
import pandas as pd

TEXT = "text"


class HowdahModel(mlflow.pyfunc.PythonModel):
    """A classifier: a column of texts in, label, score, scores and error out."""

    def load_context(self, context):
        """Open the export, or the published version that the artifact refers to."""
        from howdah.models.opened.opened import open_model
        from howdah.serving.deployment import references

        # mlflow.pyfunc.load_model(..., model_config={"framework": "onnx"})
        framework = (context.model_config or {}).get("framework") or None
        path = context.artifacts.get("export")
        path = path or references.resolve(context.artifacts["reference"])
        self._served = open_model(path, framework=framework)
        self._served.require("text", where="MLflow", remedy="use `howdah predict` for images")
        self._served.require_labels(where="MLflow", remedy="use `howdah predict`")

    def predict(self, context, model_input: pd.DataFrame, params=None) -> pd.DataFrame:
        """Classify a table with the column `text`; a row without a usable text has an error.

        Returns:
            A table of label, score (of that label; of a rejected row the highest), scores (a number
            for each label, in the order of the model's labels) and error; None where a row has
            none. All columns hold objects: in a column of numbers pandas makes NaN of None, which
            MLflow's server writes into its answer, and NaN is not JSON.
        """
        from howdah.serving.compute.requests import as_json
        from howdah.serving.prediction.classify import classify, outputs_of
        from howdah.serving.prediction.rows import EMPTY, Row

        column = model_input[TEXT]
        rows = [
            Row(str(number), None if missing else str(text), EMPTY if missing else None)
            for number, (text, missing) in enumerate(zip(column, column.isna(), strict=True))
        ]
        answers = as_json(classify(self._served, rows), outputs_of(self._served))
        return pd.DataFrame(
            {
                "label": [one["label"] for one in answers],
                "score": [one["score"] for one in answers],
                "scores": [
                    list(one["scores"].values()) if "scores" in one else None for one in answers
                ],
                "error": [one.get("error") for one in answers],
            },
            index=model_input.index,
            dtype=object,
        )


mlflow.models.set_model(HowdahModel())
