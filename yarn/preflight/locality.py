"""The hosts that hold a dataset's blocks, which workers prefer.

They come from WebHDFS' GETFILEBLOCKLOCATIONS. If it is not available, the job runs without
preferred hosts, and the reason is reported.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from urllib.parse import quote

from howdah import storage
from howdah.config.model import Config
from howdah.config.splits import TRAIN
from howdah.data.manifest import load_dataset
from howdah.errors import ClusterError, HowdahError
from howdah.hadoop import conf as settings
from howdah.hadoop.resourcemanager import ResourceManager
from howdah.hadoop.web import identity, session

_MOST_FILES = 64
"""Most shards to look up, since a sample shows which hosts hold the most bytes."""
_SECONDS = 10.0


def hosts(
    config: Config, manager: ResourceManager, progress: Callable[[str], None]
) -> tuple[str, ...]:
    """Hosts with a NodeManager and blocks of the training split, most bytes first.

    There is at most one per worker, and none if block locations are not known or the job has a node
    label (YARN takes a label or hosts, not both).
    """
    path = config.data.dataset
    if config.yarn.node_label is not None:
        return ()
    if not storage.on_hdfs(path):
        return ()
    try:
        dataset = load_dataset(path)
        shards = dataset.manifest.splits.get(TRAIN, [])
        if len(shards) > _MOST_FILES:
            shards = random.Random(0).sample(shards, _MOST_FILES)
        sizes = block_hosts([dataset.shard_path(shard) for shard in shards])
    except HowdahError as error:
        progress(f"no preferred hosts: the dataset's block locations are not known ({error.what})")
        return ()
    running = {str(node.get("nodeHostName")) for node in manager.nodes()}
    near = [host for host, _ in sizes.most_common() if host in running]
    return tuple(near[: config.job.most])


def block_hosts(paths: Sequence[str]) -> Counter[str]:
    """Number of bytes of HDFS files on each host, where every replica counts.

    Raises:
        ClusterError, NotAuthenticated: no NameNode's web interface answers.
    """
    import requests

    conf = settings.load()
    sizes: Counter[str] = Counter()
    for path in paths:
        scheme, _, rest = path.partition("://")
        authority, _, file = rest.partition("/")
        authority = authority or conf.default_authority() or ""
        causes = []
        for url in _web_urls(conf, scheme.lower(), authority):
            try:
                answer = session(conf, url).get(
                    f"{url}/webhdfs/v1/{quote(file)}",
                    params={"op": "GETFILEBLOCKLOCATIONS", **identity(conf)},
                    timeout=_SECONDS,
                )
                if answer.status_code == 200:
                    locations = answer.json()["BlockLocations"] or {}
                    break
                causes.append(f"{url}: HTTP {answer.status_code}")
            except requests.RequestException as error:
                causes.append(f"{url}: {error}")
            except (KeyError, TypeError):  # a gateway's own answer
                causes.append(f"{url}: an answer without BlockLocations")
        else:
            raise ClusterError(
                "the NameNode's web interface does not give block locations",
                where=path,
                got="; ".join(causes),
            )
        for block in locations.get("BlockLocation") or []:
            for host in block.get("hosts") or []:
                sizes[host] += int(block.get("length") or 0)
    return sizes


def _web_urls(conf: settings.HadoopConf, scheme: str, authority: str) -> list[str]:
    if scheme in ("webhdfs", "swebhdfs"):
        return conf.web_urls(authority, secure=scheme == "swebhdfs")
    return conf.namenode_pages(authority)
