"""HDFS: its own protocol by hdfs-native, and WebHDFS over HTTP."""
