"""Real HDFS and YARN daemons on loopback, for tests and trials; never for production.

`MiniCluster(directory).start()` starts a NameNode, DataNodes, a ResourceManager, NodeManagers and a
history server, from Maven Central's jars, with all files in one directory; `stop()` ends them all.
"""

from tools.minicluster.cluster import MiniCluster

__all__ = ["MiniCluster"]
