"""How Howdah's processes are started: isolation, environment, devices."""
