"""What the run configuration's sections are made of: their base, sizes, fractions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

__all__ = ["Bytes", "Fraction", "Section", "parse_bytes"]


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, docstrings are the help texts."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )


_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(value: Any) -> Any:
    """`"64 MiB"` -> 67108864. Units: B, KiB, MiB, GiB, TiB (powers of 1024, not MB or GB)."""
    if not isinstance(value, str):
        return value
    text = value.strip().upper()
    for unit in sorted(_UNITS, key=len, reverse=True):
        if text.endswith(unit):
            number = text[: -len(unit)].strip()
            try:
                return int(float(number) * _UNITS[unit])
            except ValueError:
                break
    if text.isdigit():
        return int(text)
    raise ValueError(f"a size needs a number and a unit of B, KiB, MiB, GiB, TiB; got {value!r}")


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
