"""Keys of a job, given side by side in a test, in the sections that they belong to."""

from howdah.config.job import JobSection


def sections(keys):
    """{"job": ..., "yarn": ...} of keys that stand in either of them."""
    mine = {name: value for name, value in keys.items() if name in JobSection.model_fields}
    return {"job": mine, "yarn": {n: value for n, value in keys.items() if n not in mine}}
