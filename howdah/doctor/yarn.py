"""The doctor's checks of YARN: the ResourceManager answers, and jobs can be submitted from here."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Mapping

from howdah.doctor.checks import Check
from howdah.errors import HowdahError, NotAuthenticated
from howdah.hadoop import conf, versions
from howdah.hadoop.resourcemanager import ResourceManager


def check_resourcemanager(env: Mapping[str, str]) -> Check:
    """The REST interface of the ResourceManager, which status, logs, kill and ps use."""
    name = "ResourceManager"
    try:
        settings = conf.load(env, names=conf.YARN_FILES)
    except HowdahError:
        # check_hadoop_conf reports why
        return Check(name, "skip", "Hadoop's settings cannot be read")
    if not any(key.startswith("yarn.resourcemanager.") for key in settings.values):
        return Check(name, "skip", "no yarn-site.xml in HADOOP_CONF_DIR")
    try:
        manager = ResourceManager(settings, patience=0.0)
        version = manager.info().get("resourceManagerVersion")
        nodes = len(manager.nodes())
    except NotAuthenticated as error:
        return Check(name, "warn", error.got or error.what, error.remedy)
    except HowdahError as error:
        return Check(name, "fail", error.got or error.what, error.remedy)
    version = versions.remark("Hadoop", str(version))
    description = f"{manager.urls[0]} answers: {version}, {nodes} nodes"
    if not nodes:
        return Check(name, "warn", description, "no NodeManager runs: see `yarn node -list -all`")
    return Check(name, "ok", description)


def check_submission(env: Mapping[str, str]) -> Check:
    """skein, and Hadoop's `yarn`, which gives skein the class path."""
    name = "howdah submit"
    if not env.get("HADOOP_CONF_DIR") and not env.get("HADOOP_HOME"):
        return Check(name, "skip", "no HADOOP_CONF_DIR: no cluster to submit to")
    try:
        version = importlib.metadata.version("skein")
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "fail", "skein is not installed", "pip install 'howdah[yarn]'")
    home = env.get("HADOOP_HOME")
    folders = [env.get("PATH", ""), *([os.path.join(home, "bin")] if home else [])]
    program = shutil.which("yarn", path=os.pathsep.join(folders))
    if program is None:
        remedy = "install Hadoop's client, or set HADOOP_HOME; all other commands work without it"
        return Check(name, "warn", f"skein {version}; no `yarn` on PATH or in HADOOP_HOME", remedy)
    return Check(name, "ok", f"skein {version}, {program}")
