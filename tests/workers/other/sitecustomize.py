"""On PYTHONPATH, it makes the family of tests/support/models/other_family.py a known one."""

from howdah.data.family import FAMILIES
from tests.support.models.other_family import OTHER

FAMILIES[OTHER.model_type] = OTHER
