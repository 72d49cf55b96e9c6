"""The doctor's checks of the machine and of the environment's variables, one function each."""

from __future__ import annotations

import dataclasses
import importlib.util
import locale
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Literal

from howdah.core import machine
from howdah.core.cache import cache_root
from howdah.core.processes import utf8_locale
from howdah.errors import HowdahError
from howdah.hadoop import conf

JAVA_WANTED = 17  # every supported line of Spark runs on it
GIB = 2**30
_PROGRAM_SECONDS = 30.0
_NOT_NEEDED = "not set (only needed for hdfs:// and YARN)"


@dataclasses.dataclass(frozen=True)
class Check:
    """One finding: `found` describes it, `remedy` says how to fix what is not ok."""

    name: str
    status: Literal["ok", "warn", "fail", "skip"]
    found: str
    remedy: str | None = None

    def as_dict(self) -> dict:
        """For --json."""
        return dataclasses.asdict(self)


def run_program(argv: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    """(exit code, stdout and stderr); 127: the program cannot start, 124: it ran out of time."""
    try:
        done = subprocess.run(
            argv, env=dict(env), timeout=_PROGRAM_SECONDS, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {_PROGRAM_SECONDS:.0f} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"


def check_python(env: Mapping[str, str]) -> Check:
    """Python 3.11, 64 bits."""
    version = ".".join(map(str, sys.version_info[:3]))
    description = f"{version} at {sys.executable}"
    if sys.version_info[:2] != (3, 11) or sys.maxsize < 2**32:
        return Check("Python", "fail", description, "install a 64-bit Python 3.11, then make setup")
    return Check("Python", "ok", description)


def java_major(text: str) -> int | None:
    """Major version in the output of `java -version`.

    >>> java_major('openjdk version "17.0.15" 2025-04-15'), java_major('java version "1.8.0_402"')
    (17, 8)
    """
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def java_of(env: Mapping[str, str]) -> str | None:
    """The program that Spark will start: JAVA_HOME's, else PATH's; None: there is none."""
    if home := env.get("JAVA_HOME"):
        return os.path.join(home, "bin", "java")
    return shutil.which("java", path=env.get("PATH", ""))


def check_java(env: Mapping[str, str]) -> Check:
    """The Java that Spark will start runs (check_spark judges its version)."""
    home, java = env.get("JAVA_HOME"), java_of(env)
    install = "apt-get install openjdk-17-jre-headless"
    if java is None:
        users = (
            importlib.util.find_spec("pyspark"),
            env.get("SPARK_HOME"),
            env.get("HADOOP_CONF_DIR"),
        )
        if not any(users):
            return Check("Java", "skip", "none (only needed for Spark and YARN)")
        return Check("Java", "fail", "no java on PATH, JAVA_HOME is not set", install)
    code, text = run_program([java, "-version"], env)
    major = java_major(text)
    origin = f"JAVA_HOME={home}" if home else java
    if code != 0 or major is None:
        reason = (text.strip().splitlines() or ["nothing printed"])[-1]
        remedy = f"unset JAVA_HOME or set it to a JDK {JAVA_WANTED}" if home else install
        return Check("Java", "fail", f"{origin} does not run: {reason}", remedy)
    description = f"Java {major} ({origin})"
    on_path = shutil.which("java", path=env.get("PATH", ""))
    if home and on_path and os.path.realpath(on_path) != os.path.realpath(java):
        other = java_major(run_program([on_path, "-version"], env)[1])
        if other != major:
            description += f"; PATH has Java {other}, Spark uses JAVA_HOME's"
    return Check("Java", "ok", description)


def check_mpi(env: Mapping[str, str]) -> Check:
    """mpirun exists and can start a process as this user."""
    mpirun = shutil.which("mpirun", path=env.get("PATH", ""))
    install = "apt-get install openmpi-bin (for bare mpirun; `howdah train` needs none)"
    if mpirun is None:
        return Check("MPI", "fail", "no mpirun on PATH", "apt-get install openmpi-bin")
    _, text = run_program([mpirun, "--version"], env)
    version = (text.strip().splitlines() or ["mpirun of unknown version"])[0]
    argv = [mpirun]
    note = ""
    if os.geteuid() == 0 and "Open MPI" in version:
        argv.append("--allow-run-as-root")  # Open MPI refuses root without it
        note = ", as root with --allow-run-as-root"
    code, text = run_program([*argv, "-np", "1", "true"], env)
    if code != 0:
        lines = [line.strip() for line in text.splitlines() if line.strip(" -")]
        reason = " ".join(lines[:3]) or f"exit code {code}"
        return Check("MPI", "fail", f"{version}; `mpirun true` fails: {reason}", install)
    return Check("MPI", "ok", f"{version}, runs{note}")


def check_gpu(env: Mapping[str, str]) -> Check:
    """NVIDIA GPUs, if there are any."""
    program = shutil.which("nvidia-smi", path=env.get("PATH", ""))
    if program is None:
        return Check("GPU", "skip", "none (no nvidia-smi): training runs on the CPU")
    argv = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    code, text = run_program(argv, env)
    if code != 0:
        reason = (text.strip().splitlines() or [f"exit code {code}"])[0]
        return Check("GPU", "warn", f"nvidia-smi fails: {reason}", "look at the NVIDIA driver")
    return Check("GPU", "ok", "; ".join(text.strip().splitlines()))


def check_cores(env: Mapping[str, str]) -> Check:
    """Cores that this process may use, a container's quota included."""
    usable, total = machine.cores(), os.cpu_count() or 1
    description = f"{usable} usable" + (f" of {total}" if usable != total else "")
    if usable < 2:
        return Check(
            "cores", "warn", description, "two processes will share one core: expect slow training"
        )
    return Check("cores", "ok", description)


def check_memory(env: Mapping[str, str]) -> Check:
    """Memory, a container's limit included; the demo's two processes and Spark take about 6 GiB."""
    limit, available = machine.memory_bytes()
    description = f"{_gib(available)} free of {_gib(limit)}"
    if available < 2 * GIB:
        return Check("memory", "fail", description, "free memory: training needs at least 2 GiB")
    if available < 6 * GIB:
        return Check(
            "memory", "warn", description, "Spark and two training processes may need 6 GiB"
        )
    return Check("memory", "ok", description)


def check_shared_memory(env: Mapping[str, str], path: str = "/dev/shm") -> Check:
    """/dev/shm, through which ranks of one machine exchange data (MPI, NCCL)."""
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return Check(
            "shared memory", "warn", f"{path}: {error.strerror}", f"mount a tmpfs at {path}"
        )
    description = f"{_gib(usage.free)} free in {path}"
    if usage.free < GIB // 4:
        return Check("shared memory", "warn", description, "in a container: --shm-size=1g or more")
    return Check("shared memory", "ok", description)


def check_disk(env: Mapping[str, str]) -> Check:
    """Free space and write permission: the cache, temporary files and the working directory."""
    temporary = env.get("TMPDIR")
    absent = temporary and not os.path.isdir(temporary)  # Python ignores such a one
    directories = {
        "cache": cache_root(env),
        "temporary files": temporary if temporary and not absent else tempfile.gettempdir(),
        "working directory": os.getcwd(),
    }
    descriptions, worst, remedies = [], "ok", []
    if absent:
        descriptions.append(f"TMPDIR {temporary} is not a directory")
        remedies.append(f"mkdir -p {shlex.quote(temporary)}, or unset TMPDIR")
        worst = "warn"
    for what, path in directories.items():
        existing = os.path.abspath(path)  # TMPDIR may be relative
        while not os.path.exists(existing):  # not created yet: check the directory above
            existing = os.path.dirname(existing)
        free = shutil.disk_usage(existing).free
        descriptions.append(f"{what} {path}: {_gib(free)} free")
        if not os.access(existing, os.W_OK | os.X_OK):
            descriptions[-1] += ", not writable"
            remedies.append(f"make {existing} writable, or point elsewhere (HOWDAH_CACHE, TMPDIR)")
            worst = "fail"
        elif free < GIB:
            remedies.append(f"free space at {existing}, or point elsewhere (HOWDAH_CACHE, TMPDIR)")
            worst = "fail"
        elif free < 5 * GIB:
            remedies.append(f"little space at {existing}: checkpoints of one run take about 2 GiB")
            worst = "warn" if worst == "ok" else worst
    return Check("disk", worst, "; ".join(descriptions), "; ".join(remedies) or None)


def check_ports(env: Mapping[str, str]) -> Check:
    """A process can listen on loopback and another can connect: ranks and Spark need that."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
            with socket.create_connection(address, timeout=5):
                pass
    except OSError as error:
        remedy = "let processes listen on and connect to 127.0.0.1 (firewall, sandbox, `lo` down?)"
        return Check("ports", "fail", f"loopback: {error}", remedy)
    return Check("ports", "ok", "loopback ports can be bound and reached")


def check_hostname(env: Mapping[str, str]) -> Check:
    """This host's name resolves to one of its addresses: Spark and Horovod look it up."""
    host = socket.gethostname()
    remedy = f"add to /etc/hosts: 127.0.1.1 {host} (Spark alone: export SPARK_LOCAL_IP=127.0.0.1)"
    try:
        resolved = socket.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a label of more than 63 characters
        return Check("hostname", "fail", f"{host} does not resolve: {error}", remedy)
    addresses = sorted({item[4][0] for item in resolved})
    for address in addresses:
        try:
            socket.create_server((address, 0)).close()
        except OSError:
            continue
        if not machine.is_host_name(host):
            return Check(
                "hostname", "warn", f"{host} is {address}; mpirun does not accept this name",
                "for bare mpirun rename the host (letters, digits, dots, hyphens); `howdah train`"
                " does not need mpirun",
            )  # fmt: skip
        return Check("hostname", "ok", f"{host} is {address}")
    foreign = f"{host} resolves to {', '.join(addresses)}, which is not this machine"
    return Check("hostname", "fail", foreign, remedy)


def check_locale(env: Mapping[str, str]) -> Check:
    """UTF-8, for Python and for Java, which takes file names by LC_ALL or LANG."""
    encoding = locale.getpreferredencoding(False)
    named = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "not set"
    description = f"{encoding} (LANG: {named})"
    fits = encoding.upper().replace("-", "") == "UTF8" and utf8_locale(env)
    if not fits:
        return Check("locale", "warn", description, "export LC_ALL=C.UTF-8")
    return Check("locale", "ok", description)


def check_hadoop_conf(env: Mapping[str, str]) -> Check:
    """HADOOP_CONF_DIR has a readable core-site.xml."""
    name, folder = "HADOOP_CONF_DIR", env.get("HADOOP_CONF_DIR")
    if not folder:
        return Check(name, "skip", _NOT_NEEDED)
    remedy = "set HADOOP_CONF_DIR to the directory of the cluster's core-site.xml, or unset it"
    try:
        settings = conf.load(env)
    except HowdahError as error:
        description = f"{error.where}: {error.what}" + (f" ({error.got})" if error.got else "")
        return Check(name, "fail", description, error.remedy or remedy)
    files = ", ".join(os.path.basename(path) for path in settings.files)
    if not settings.default_fs:
        return Check(name, "warn", f"{folder} ({files}) names no fs.defaultFS", remedy)
    return Check(name, "ok", f"{folder} ({files}: {settings.default_fs})")


def check_hadoop_home(env: Mapping[str, str]) -> Check:
    """HADOOP_HOME is a Hadoop distribution."""
    name, home = "HADOOP_HOME", env.get("HADOOP_HOME")
    if not home:
        return Check(name, "skip", _NOT_NEEDED)
    if not os.path.isfile(os.path.join(home, "bin", "hadoop")):
        remedy = "set HADOOP_HOME to an unpacked Hadoop distribution, or unset it"
        return Check(name, "fail", f"{home} has no bin/hadoop", remedy)
    return Check(name, "ok", home)


def check_classpath(env: Mapping[str, str]) -> Check:
    """The entries of CLASSPATH, which libhdfs reads, exist."""
    name, text = "CLASSPATH", env.get("CLASSPATH")
    if not text:
        return Check(name, "skip", _NOT_NEEDED)
    entries = [entry for entry in text.split(os.pathsep) if entry]
    absent = [
        entry for entry in entries if not os.path.exists(entry.removesuffix("*").rstrip("/") or "/")
    ]
    if absent:
        shown = ", ".join(absent[:3]) + (" ..." if len(absent) > 3 else "")
        remedy = "unset CLASSPATH, or: export CLASSPATH=$(hadoop classpath --glob)"
        return Check(name, "warn", f"{len(absent)} of {len(entries)} do not exist: {shown}", remedy)
    return Check(name, "ok", f"{len(entries)} entries")
