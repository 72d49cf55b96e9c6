"""The inputs of every rank before the first step: data, base model, plan, schedule, precision."""
