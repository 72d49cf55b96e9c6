"""Optional approval by a user between the gate and publishing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah.airflow import require

require()

from airflow.providers.standard.operators.hitl import ApprovalOperator  # noqa: E402
from airflow.sdk import Context  # noqa: E402
from airflow.sdk.exceptions import AirflowSkipException  # noqa: E402


class ApproveOperator(ApprovalOperator):
    """Waits, without a worker's slot, for "Approve" or "Reject"; without `asked` it is skipped.

    The tasks after it need the trigger rule none_failed, so that they run where no approval was
    asked for. "Reject" skips them. Returns {"note"}: who approved, and when.

    Args:
        asked: whether to wait (templated: the param `approval`).
        verdict: of the gate (templated), shown to the user who decides.
        run_directory: likewise.
    """

    template_fields: Sequence[str] = (
        *ApprovalOperator.template_fields, "asked", "verdict", "run_directory",
    )  # fmt: skip

    def __init__(
        self, *, asked: bool | str = False, verdict: Any = None, run_directory: Any = None, **kwargs
    ) -> None:
        kwargs.setdefault("subject", "Publish the model of {{ run_id }}?")
        super().__init__(**kwargs)
        self.asked = asked
        self.verdict = verdict
        self.run_directory = run_directory

    def execute(self, context: Context) -> Any:
        # Jinja renders a param as text unless the DAG asks for native types.
        if str(self.asked).lower() != "true":
            raise AirflowSkipException("no approval was asked for (param approval)")
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
        return "\n".join([*lines, "The gate asks for nothing (gate.minimum is empty)."])
    lines += [f"The gate on {verdict.get('split')}:", "", "| metric | found | wanted | against |"]
    lines += ["|---|---|---|---|"]
    for check in checks:
        found = "undefined" if check["got"] is None else f"{check['got']:.6g}"
        lines.append(f"| {check['metric']} | {found} | {check['wanted']} | {check['against']} |")
    return "\n".join(lines)
