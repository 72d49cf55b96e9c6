"""What each kind of environment is for, and what of the installed distributions it can do without.

The frameworks' wheels carry much that no container of Howdah loads. What is left out here was seen
to be unused: each kind is run with nothing else in reach by the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]

CORE = (
    "fsspec", "google-crc32c", "hdfs", "hdfs-native", "jinja2", "numpy", "pydantic", "pyyaml",
    "safetensors", "tokenizers",
)  # fmt: skip
_JOB = (*CORE, "horovod", "matplotlib", "packaging", "pyarrow", "rich", "skein", "typer")


_WITHOUT = {
    "tensorflow": frozenset({"libclang"}),
    "torch": frozenset({"triton", "cuda-bindings", "cuda-pathfinder"}),
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of environment."""

    roots: tuple[str, ...]
    """Distributions that its code imports; what they require comes by itself."""
    framework: str | None = None
    """tensorflow or torch, with a Horovod of its own."""
    without: frozenset[str] = frozenset()
    """Distributions that are required by metadata alone: nothing that runs loads them."""
    compressed: bool = True
    """A .tar.gz; else a plain .tar."""
    cpu_only: bool = False
    """Leave CUDA's libraries out, gigabytes: what runs in it asks YARN for no GPU."""

    def wants(self, distribution: str, entry: str) -> bool:
        """Whether a distribution's file (its path below site-packages) is taken."""
        if distribution == "torch" and entry.startswith(("torch/bin/", "torch/share/")):
            return entry == "torch/bin/torch_shm_manager"  # not to be started, but looked for
        return True


KINDS: dict[str, Kind] = {
    # No pyspark: containers get it from the Spark that starts them, in its own version.
    "etl": Kind(roots=(*CORE, "pandas", "pyarrow")),
    # Gigabytes: packing and unpacking with gzip takes minutes of few cores, the network seconds.
    "tensorflow": Kind(
        roots=(*_JOB, "tensorflow", "tf-keras"),
        framework="tensorflow",
        without=_WITHOUT["tensorflow"],
        compressed=False,
    ),
    "torch": Kind(
        roots=(*_JOB, "torch"),
        framework="torch",
        without=_WITHOUT["torch"],
        compressed=False,
    ),
    # Spark's executors that predict: no Horovod, which has to be built, and nothing of a job's.
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
