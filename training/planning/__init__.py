"""`howdah plan`: what a run would do, and how it would scale."""
