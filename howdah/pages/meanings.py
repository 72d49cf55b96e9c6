"""Words of statistics, each with a sentence for readers who do not meet it every day."""

MEANINGS = {
    "loss": "What training makes smaller: cross-entropy of classes, squared error of numbers.",
    "subset_accuracy": "Share of rows all of whose labels are right.",
    "micro_f1": "F1 over all decisions together: frequent labels count more.",
    "macro_precision": "Of the rows given a label, the share that have it; mean over the labels.",
    "macro_recall": "Of a label's rows, the share that get it; mean over the labels.",
    "macro_f1": "Harmonic mean of precision and recall, averaged over the labels: rare labels count"
    " as much as frequent ones.",
    "weighted_precision": "Precision of each label, weighted by its rows.",
    "weighted_recall": "Recall of each label, weighted by its rows.",
    "weighted_f1": "F1 of each label, weighted by its rows.",
    "mcc": "Matthews correlation of predictions and labels: 1 at best, 0 for guessing, also where"
    " one label has nearly all rows.",
    "roc_auc": "Probability that a row with a label gets a higher score for it than a row without;"
    " 0.5 is guessing.",
    "mean_average_precision": "Area below precision over recall, averaged over the labels.",
    "top_3_accuracy": "Share of rows whose label is among the three most probable.",
    "top_5_accuracy": "Share of rows whose label is among the five most probable.",
    "coverage_at_95": "The largest share of rows, most confident first, of which 95 % are right.",
    "ece": "Expected calibration error: mean distance between confidence and the share that is"
    " right; 0 is best.",
    "mse": "Mean squared error.",
    "mae": "Mean absolute error.",
    "r2": "Share of the targets' variance that is explained: 1 at best, 0 as good as the mean.",
    "pearson": "Linear correlation of predictions and targets.",
    "spearman": "Correlation of the ranks of predictions and targets.",
    "precision": "Of the rows given the label, the share that have it.",
    "recall": "Of the label's rows, the share that get it.",
    "PSI": "Population stability index, how far a distribution has moved: below 0.1 little, above"
    " 0.25 a lot.",
}
