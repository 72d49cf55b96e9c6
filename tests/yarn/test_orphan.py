"""A driver whose application master has ended, though YARN has not ended the driver."""

import subprocess
import sys

from tests import ROOT

# Its application master is the process that starts the driver's script.
MASTER = """
import subprocess, sys
subprocess.run(["sh", "-c", '"$0" -c "$1"; exit $?', sys.executable, sys.argv[1]])
"""
DRIVER = """
from howdah.yarn import skein_backend
skein_backend._ORPHAN_SECONDS = 0.0
driver = object.__new__(skein_backend.SkeinDriver)
driver._parents, driver._orphaned = skein_backend._parents(), 0.0
for _ in range(2):
    print(driver.abandoned(), flush=True)
    input()
"""


def test_a_driver_knows_that_its_application_master_has_ended():
    master = subprocess.Popen(
        [sys.executable, "-c", MASTER, DRIVER], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert master.stdout.readline() == "None\n"
        master.kill()
        master.wait()
        print(file=master.stdin, flush=True)
        assert master.stdout.readline() == "its application master has ended\n"
    finally:
        master.stdin.close()  # which ends the driver
        master.kill()
        master.wait()
        master.stdout.close()
