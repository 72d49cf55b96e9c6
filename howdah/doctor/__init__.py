"""`howdah doctor`: check whether this machine can run Howdah, with a remedy for each problem."""
