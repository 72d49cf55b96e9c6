"""Real HDFS and YARN daemons on loopback, for tests and trials; never for production.

`MiniCluster(directory).start()` brings a NameNode, DataNodes, a ResourceManager, NodeManagers and a
history server, from Maven Central's jars, into a directory of their own; `stop()` ends them all.
"""

from tools.minicluster.cluster import MiniCluster

__all__ = ["MiniCluster"]
