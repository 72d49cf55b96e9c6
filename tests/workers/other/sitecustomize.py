"""On PYTHONPATH, it makes tests/support/other_family.py's family a known one in a process."""

from howdah.data.family import FAMILIES
from tests.support.other_family import OTHER

FAMILIES[OTHER.model_type] = OTHER
