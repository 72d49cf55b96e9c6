"""What tests share, by what it serves.

Here: waiting for a condition, and the choice of what a test has by default. Below:

models    tiny models, families, exports, finished runs; the contract of serving
training  a loop of numpy, losses, ranks that are threads
rows      texts of two classes, a dataset with an appended day
jobs      keys of a job; strangers and foreign servers on its ports
hadoop    a pair of NameNodes, users with Kerberos, secrets and where they may lie
airflow   a browser, an edge node, commands under guard, a ResourceManager's web server, a day's
          tasks with a hook that answers as `howdah` does

Fixtures are in tests/fixtures, runs and jobs in tests/runs, processes in tests/workers.
"""
