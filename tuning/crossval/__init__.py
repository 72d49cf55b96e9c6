"""`howdah crossval`: folds by duplicate cluster, each an ordinary dataset and an ordinary run."""
