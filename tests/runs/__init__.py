"""Real runs and jobs that tests start, and looks at what they left.

Here: trainings of one command, runs as if finished, studies, servers, the table of faults. Below:

jobs     on YARN, on other clusters, on this machine, from Airflow; drivers and agents by themselves
network  worlds of Gloo without a launcher, hosts with slow links
"""
