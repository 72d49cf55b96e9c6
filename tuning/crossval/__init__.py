"""Cross-validation: folds by duplicate cluster, each with an ordinary dataset and run."""
