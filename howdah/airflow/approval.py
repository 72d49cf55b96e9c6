"""Optional approval by a user between the gate and publishing."""

from __future__ import annotations

import howdah.airflow.required

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException


class ApproveOperator(ApprovalOperator):
    """Waits, without a worker's slot, for "Approve" or "Reject"; skipped unless `required`.

    The tasks after it need the trigger rule none_failed, so that they run where no approval is
    required. "Reject" skips them. Returns {"note"}: the user who approved, and the time.

    Args:
        required: whether to wait (templated: the param `approval`).
        verdict: the gate's verdict (templated), shown to the user who decides.
        run_directory: the run directory (templated), shown to that user too.
    """

    template_fields: Sequence[str] = (
        *ApprovalOperator.template_fields, "required", "verdict", "run_directory",
    )  # fmt: skip

    def __init__(
        self, *, required: bool | str = False, verdict: Any = None, run_directory: Any = None,
        **kwargs,
    ) -> None:  # fmt: skip
        kwargs.setdefault("subject", "Publish the model of {{ run_id }}?")
        super().__init__(**kwargs)
        self.required = required
        self.verdict = verdict
        self.run_directory = run_directory

    def execute(self, context: Context) -> Any:
        # Jinja renders a param as text unless the DAG asks for native types.
        if str(self.required).lower() != "true":
            raise AirflowSkipException("approval is not required (param approval)")
        self.body = approval_text(self.verdict or {}, self.run_directory)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        answer = super().execute_complete(context, event)
        user = answer["responded_by_user"] or {}
        who = user.get("name") or user.get("id") or "unknown"
        return {"note": f"approved in Airflow by {who} at {answer['responded_at']:%Y-%m-%d %H:%M}"}


def approval_text(verdict: Mapping[str, Any], run_directory: str | None) -> str:
    """The text shown to the user who decides: Markdown, a row for each of the gate's bounds."""
    lines = [f"Run directory: `{run_directory}`", ""]
    checks = verdict.get("checks") or []
    if not checks:
        return "\n".join([*lines, "The gate has no bounds (gate.minimum is empty)."])
    lines += [f"The gate on {verdict.get('split')}:", "", "| metric | value | bound | source |"]
    lines += ["|---|---|---|---|"]
    for check in checks:
        value = "undefined" if check["got"] is None else f"{check['got']:.6g}"
        lines.append(f"| {check['metric']} | {value} | {check['wanted']} | {check['against']} |")
    return "\n".join(lines)
