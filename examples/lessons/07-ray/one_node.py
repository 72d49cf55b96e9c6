"""A Ray of one node, for one script: it starts with the script, and ends with it."""

import contextlib
import os
import tempfile


@contextlib.contextmanager
def ray_of_one_node(cpus: float = 2, store: int = 128 << 20, dashboard: bool = False):
    """Start Ray on this machine; yield the module `ray`.

    On a cluster that runs, all of this is `ray.init("auto")`.
    """
    # Only this user may enter the directory. Ray's sockets are below it, and the path of a socket
    # must be shorter than 108 characters: so not in the working directory.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as root:
        with open(f"{root}/token", "w") as file:
            file.write(os.urandom(32).hex())
        # Whoever reaches Ray's ports can run code: the token is what protects them. Ray reads
        # these variables when it is imported, and hands them on to its workers.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{root}/token"}
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "USE_TF": "0"}
        import ray

        ray.init(
            address="local", num_cpus=cpus, object_store_memory=store, include_dashboard=dashboard,
            log_to_driver=False, logging_level="ERROR", _temp_dir=f"{root}/session",
            _node_ip_address="127.0.0.1", dashboard_host="127.0.0.1",
        )  # fmt: skip
        try:
            yield ray
        finally:
            ray.shutdown()
