"""A new day each day: wait for its partition, score it, judge its drift; append it and retrain."""
