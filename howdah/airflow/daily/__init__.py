"""The daily DAGs: wait for a day's partition, score it, check its drift; append it and retrain."""
