"""The parent of a short session's Python workers."""

import os
import sys

import pyspark

from howdah.etl.launch.daemon import quiet, without_archives

HOME = os.path.dirname(pyspark.__file__)
ARCHIVES = [os.path.join(HOME, "python", "lib", n) for n in ("pyspark.zip", "py4j-0.1-src.zip")]


def test_archives_of_the_installed_pyspark_are_left_out():
    packages = os.path.dirname(HOME)
    assert without_archives([*ARCHIVES, "/mine", packages]) == ["/mine", packages]


def test_archives_stay_where_they_are_the_only_pyspark(tmp_path):
    assert without_archives([*ARCHIVES, str(tmp_path)]) == [*ARCHIVES, str(tmp_path)]


def test_another_spark_s_archives_stay(tmp_path):
    other = str(tmp_path / "spark" / "python" / "lib" / "pyspark.zip")
    assert without_archives([other, *sys.path]) == [other, *without_archives(sys.path)]


def test_a_worker_whose_reader_has_gone_ends_without_a_traceback():
    def flush(*_):
        raise BrokenPipeError

    assert quiet(flush)(1, 2) == 1
    assert quiet(lambda sock, authenticated: 0)(None, True) == 0
