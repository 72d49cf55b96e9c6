"""Versions that append rows to the version before: its ledger, and the judgement of new rows."""
