"""What every rank has before the first step: data, base model, plan, schedule, precision."""
