"""Howdah itself, but for `howdah.training`: the light worker beside this file stands for it."""

from pathlib import Path as _Path

_LIGHT = _Path(__file__).resolve().parent
_ROOT = _LIGHT.parents[3]
__file__ = str(_ROOT / "howdah" / "__init__.py")
exec(compile(_Path(__file__).read_text(), __file__, "exec"))
__path__[:] = [str(_LIGHT), str(_ROOT / "howdah"), str(_ROOT)]
