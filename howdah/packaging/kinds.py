"""Kinds of environment: what each one is for, and which files it leaves out.

The frameworks' wheels contain much that no container of Howdah loads. The tests run each kind with
nothing else installed, so a file that is needed after all is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass

CORE = (
    "fsspec", "google-crc32c", "hdfs", "hdfs-native", "jinja2", "numpy", "pydantic", "pyyaml",
    "safetensors", "tokenizers",
)  # fmt: skip
_JOB = (*CORE, "horovod", "packaging", "pyarrow", "rich", "skein", "typer")
_EXPORT = ("onnx", "onnxruntime")
"""Writes model.onnx at a run's end, and checks further formats; without them the run says so."""

_PLUGINS = ("nvshmem_bootstrap_", "nvshmem_transport_", "libcufile_rdma")
_WITHOUT = {
    "tensorflow": frozenset({"libclang"}),
    "torch": frozenset({"triton", "cuda-bindings", "cuda-pathfinder"}),
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of environment."""

    roots: tuple[str, ...]
    """Distributions that its code imports; their requirements are added."""
    optional: tuple[str, ...] = ()
    """Distributions that are taken along where they are installed."""
    framework: str | None = None
    """tensorflow or torch, with its Horovod."""
    without: frozenset[str] = frozenset()
    """Distributions that the metadata requires but no code loads."""
    compressed: bool = True
    """True: a .tar.gz; False: a plain .tar."""
    cpu_only: bool = False
    """Leave out CUDA's libraries, gigabytes: its containers have no GPU."""

    def wants(self, distribution: str, entry: str) -> bool:
        """True if a distribution's file (its path below site-packages) is packed."""
        if distribution == "torch" and entry.startswith(("torch/bin/", "torch/share/")):
            # torch checks that it exists, but nothing starts it
            return entry == "torch/bin/torch_shm_manager"
        # Plug-ins for other networks than Howdah's, which need libraries of those.
        return not entry.rpartition("/")[2].startswith(_PLUGINS)


KINDS: dict[str, Kind] = {
    # No pyspark: the Spark that starts a container brings its own version.
    "etl": Kind(roots=(*CORE, "pandas", "pillow", "pyarrow")),
    # Not compressed: gzip takes minutes for gigabytes, the network seconds.
    "tensorflow": Kind(
        roots=(*_JOB, "tensorflow", "tf-keras"),
        optional=_EXPORT,
        framework="tensorflow",
        without=_WITHOUT["tensorflow"],
        compressed=False,
    ),
    "torch": Kind(
        roots=(*_JOB, "pillow", "torch"),
        optional=_EXPORT,
        framework="torch",
        without=_WITHOUT["torch"],
        compressed=False,
    ),
    # Executors that predict with an export's model.onnx: no framework, a thirtieth of its bytes.
    "score": Kind(roots=(*CORE, "onnxruntime", "pyarrow"), cpu_only=True),
    # The server (serving/), with an export's model.onnx.
    "serve": Kind(
        roots=(
            *CORE,
            "fastapi",
            "onnxruntime",
            "prometheus-client",
            "psutil",
            "pyarrow",
            "uvicorn",
        ),
        cpu_only=True,
    ),
    # Spark's executors that predict: without Horovod, which must be built, and a job's packages.
    "predict-tensorflow": Kind(
        roots=(*CORE, "pyarrow", "tensorflow"),
        without=_WITHOUT["tensorflow"],
        compressed=False,
        cpu_only=True,
    ),
    "predict-torch": Kind(
        roots=(*CORE, "pyarrow", "torch"),
        without=_WITHOUT["torch"],
        compressed=False,
        cpu_only=True,
    ),
}
