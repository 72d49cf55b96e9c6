"""The simple model that a run is compared with: TF-IDF and logistic regression."""
