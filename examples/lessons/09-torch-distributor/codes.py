"""What the driver learns of a rank that fails: `python codes.py`.

This file is the driver and, with a way to end as its argument, the training script as well.
"""

import contextlib
import os
import signal
import sys

from py4j.protocol import Py4JJavaError
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

WAYS = {"well": "ends well", "raise": "raises ValueError", "exit": "sys.exit(3)",
        "kill": "is killed (SIGKILL)"}  # fmt: skip
STARTS = os.path.abspath("starts.txt")


def end(how: str, starts: str) -> str:
    """End in one of the ways; a line in a file says that this rank has started."""
    with open(starts, "a") as file:
        file.write(f"{how}\n")
    if how == "raise":
        raise ValueError("the loss is NaN")
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    return "trained"


if len(sys.argv) > 1:
    end(sys.argv[1], STARTS)
    sys.exit()

# Else the first python3 of PATH would run the ranks, and Spark would listen on the network.
os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
spark = (
    SparkSession.builder.master("local[1, 4]")  # one core; a task may fail four times
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("OFF")
open(STARTS, "w").close()  # of an earlier run
distributor = TorchDistributor(1, local_mode=False, use_gpu=False)


def driver_sees(by_file: bool, how: str) -> str:
    """What `run` does: it returns a value, or raises."""
    with contextlib.redirect_stdout(sys.stderr):  # the ranks' output is printed by the driver
        try:
            if by_file:
                return f"returns {distributor.run(os.path.abspath(__file__), how)!r}"
            return f"returns {distributor.run(end, how, STARTS)!r}"
        except Py4JJavaError as error:
            reason = str(error).partition("stage failure: ")[2].split(".")[0]
            return f"raises {type(error).__name__}: {reason}"


seen = {(by_file, how): driver_sees(by_file, how) for how in WAYS for by_file in (True, False)}
spark.stop()
print("the rank              by a file        by a function")
for how, words in WAYS.items():
    print(f"{words:20}  {seen[True, how]:15}  {seen[False, how]}")
print()
failures = ["raise", "exit", "kill"]
for by_file, name in (True, "file"), (False, "function"):
    hidden = sum(seen[by_file, how].startswith("returns") for how in failures)
    print(f"failures of three that look like success, by a {name} = {hidden}")
with open(STARTS) as file:
    started = file.read().split()
tries = started.count("raise") - 1  # one by the file, which Spark takes for a success
print(f"starts of the function that raises, where a task may fail 4 times = {tries}")
