"""The hosts that hold a dataset's blocks: workers are asked for there, and go elsewhere when full.

By WebHDFS' GETFILEBLOCKLOCATIONS; where it is not to be had the job runs just the same, and the
reason is said.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from howdah.config_model import Config
from howdah.errors import ClusterError, HowdahError
from howdah.hadoop import conf as settings
from howdah.hadoop.resourcemanager import ResourceManager
from howdah.hadoop.web import identity, session
from howdah.manifest import load_dataset

__all__ = ["block_hosts", "hosts"]

_MOST_FILES = 64
"""Shards asked about: a sample tells where the blocks are as well as all of them."""
_SECONDS = 10.0


def hosts(
    config: Config, manager: ResourceManager, progress: Callable[[str], None]
) -> tuple[str, ...]:
    """Hosts with a NodeManager and blocks of the training split, most bytes first.

    As many as the job may have workers; none where it is not known, and where a node label says
    already where to run (YARN takes a label or hosts, not both).
    """
    path = config.data.dataset
    if config.yarn.node_label is not None:
        return ()
    if path.partition("://")[0].lower() not in ("hdfs", "webhdfs", "swebhdfs"):
        return ()
    try:
        dataset = load_dataset(path)
        shards = dataset.manifest.splits.get("train", [])
        if len(shards) > _MOST_FILES:
            shards = random.Random(0).sample(shards, _MOST_FILES)
        held = block_hosts([dataset.shard_path(shard) for shard in shards])
    except HowdahError as error:
        progress(f"workers anywhere: where the dataset's blocks lie is not known ({error.what})")
        return ()
    there = {str(node.get("nodeHostName")) for node in manager.nodes()}
    near = [host for host, _ in held.most_common() if host in there]
    return tuple(near[: config.yarn.most])


def block_hosts(paths: Sequence[str]) -> Counter[str]:
    """Bytes that each host holds of HDFS files (every replica counts).

    Raises:
        ClusterError, NotAuthenticated: the NameNode's web interface does not tell.
    """
    import requests

    conf = settings.load()
    held: Counter[str] = Counter()
    url = ""
    for path in paths:
        scheme, _, rest = path.partition("://")
        authority, _, file = rest.partition("/")
        authority = authority or conf.default_authority() or ""
        answer: Any = None
        causes = []
        for url in _web_urls(conf, scheme.lower(), authority):
            try:
                answer = session(conf, url).get(
                    f"{url}/webhdfs/v1/{quote(file)}",
                    params={"op": "GETFILEBLOCKLOCATIONS", **identity(conf)},
                    timeout=_SECONDS,
                )
                if answer.status_code == 200:
                    break
                causes.append(f"{url}: HTTP {answer.status_code}")
            except requests.RequestException as error:
                causes.append(f"{url}: {error}")
        if answer is None or answer.status_code != 200:
            raise ClusterError(
                "the NameNode's web interface does not tell where blocks lie",
                where=path,
                got="; ".join(causes),
            )
        for block in (answer.json().get("BlockLocations") or {}).get("BlockLocation") or []:
            for host in block.get("hosts") or []:
                held[host] += int(block.get("length") or 0)
    return held


def _web_urls(conf: settings.HadoopConf, scheme: str, authority: str) -> list[str]:
    if scheme in ("webhdfs", "swebhdfs") or conf.is_name_service(authority):
        return conf.web_urls(authority, secure=scheme == "swebhdfs")
    # An RPC address tells the host; the web port is hdfs-site.xml's, or the default.
    host = authority.partition(":")[0]
    secure = (conf.get("dfs.http.policy") or "").strip().upper() == "HTTPS_ONLY"
    kind = "https" if secure else "http"
    port = (conf.get(f"dfs.namenode.{kind}-address") or "").rpartition(":")[2].strip()
    return conf.web_urls(f"{host}:{port}" if port.isdigit() else host, secure=secure)
