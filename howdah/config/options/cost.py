"""The run configuration's section `cost`: what an hour of a cluster's resources costs."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from howdah.config.types import Section


class CostSection(Section):
    currency: str | None = Field(default=None, pattern=r"^[A-Z]{3}$")
    """ISO 4217 code of the prices, e.g. EUR."""
    per_vcore_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of a vcore that YARN has given, or of a CPU that was busy where there is no YARN."""
    per_gib_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of a GiB of memory that YARN has given."""
    per_gpu_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of a GPU."""

    @model_validator(mode="after")
    def _prices_have_a_currency(self) -> CostSection:
        if (self.currency is None) != (self._given() == {}):
            raise ValueError(
                "give currency and at least one of per_vcore_hour, per_gib_hour, per_gpu_hour,"
                " or none of them"
            )
        return self

    def _given(self) -> dict[str, float]:
        prices = self.model_dump(exclude={"currency"})
        return {key: price for key, price in prices.items() if price is not None}

    @property
    def prices(self) -> dict[str, Any] | None:
        """Currency and prices that are given; None: nothing is asked for."""
        return None if self.currency is None else {"currency": self.currency, **self._given()}
