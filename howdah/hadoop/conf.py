"""Hadoop's client settings: core-site.xml, hdfs-site.xml, yarn-site.xml of HADOOP_CONF_DIR.

Read here rather than by each client, so that all see the same values: with includes, `${...}`
filled in, and errors that name the file.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from howdah.errors import ConfigError

FILES = ("core-site.xml", "hdfs-site.xml")
YARN_FILES = (*FILES, "yarn-site.xml")
DEFAULT_RPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_HTTPS_PORT = 8020, 9870, 9871
_LAST_PORT = 65_535
_AUTHORITY = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(?::(?P<port>[0-9]{1,5}))?")
_REFERENCE = re.compile(
    r"\$\{(?:env\.(?P<variable>[^${}\s:-]+)(?:(?P<sign>:?-)(?P<default>[^${}\s]*))?"
    r"|(?P<name>[^${}\s]+))\}"
)
_XI_INCLUDE = "{http://www.w3.org/2001/XInclude}include"
_UMASK = "fs.permissions.umask-mode"
_OCTAL_UMASK = re.compile(r"\+?0*([0-7]{3})")
_UMASK_CLAUSE = re.compile(r"([ugoa]*)([-+=])([rwx]*)")


@dataclass(frozen=True)
class HadoopConf:
    """Settings by name.

    `directory` is None without HADOOP_CONF_DIR, `files` are those that were read, and `state`
    changes whenever one of them does.
    """

    directory: str | None
    values: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    state: tuple = ()

    def get(self, name: str, default: str | None = None) -> str | None:
        """One setting, references filled in."""
        return self.values.get(name, default)

    @property
    def kerberos(self) -> bool:
        """Whether the cluster requires Kerberos authentication."""
        return (self.get("hadoop.security.authentication") or "").strip().lower() == "kerberos"

    @property
    def default_fs(self) -> str | None:
        """`fs.defaultFS` ("hdfs://nn:8020"), without a trailing slash."""
        value = self.get("fs.defaultFS") or self.get("fs.default.name")
        return value.strip().rstrip("/") if value else None

    @property
    def umask(self) -> int:
        """`fs.permissions.umask-mode`: permission bits that new files and directories do not get.

        Hadoop has two forms: octal ("022") names the bits that are removed, symbolic
        ("u=rwx,g=rx,o=") those that remain; classes that it does not name have none left.
        Source: org.apache.hadoop.fs.permission.UmaskParser.

        Raises:
            ConfigError: it has neither form.
        """
        text = (self.get(_UMASK) or "022").strip()
        octal = _OCTAL_UMASK.fullmatch(text)
        if octal:
            return int(octal[1], 8)
        left = {"u": 0, "g": 0, "o": 0}
        for part in re.split(r"[,\s]+", text):
            clause = _UMASK_CLAUSE.fullmatch(part)
            if clause is None:
                raise ConfigError(
                    "the umask for new files cannot be read",
                    where=f"{_UMASK} in {self.directory or 'the Hadoop settings'}",
                    expected='three octal digits ("027") or permissions ("u=rwx,g=rx,o=")',
                    got=repr(text),
                )
            classes, operation, letters = clause.groups()
            # Bits start from none, so "-" leaves none.
            bits = sum({"r": 4, "w": 2, "x": 1}[one] for one in set(letters))
            for one in "ugo" if "a" in classes or not classes else classes:
                left[one] = 0 if operation == "-" else bits
        return 0o777 & ~(left["u"] << 6 | left["g"] << 3 | left["o"])

    def known_default_fs(self) -> str:
        """`default_fs`, which the caller cannot do without.

        Raises:
            ConfigError: it is not set.
        """
        if self.default_fs is None:
            raise ConfigError(
                "the cluster is not known",
                where="HADOOP_CONF_DIR",
                expected="a core-site.xml with fs.defaultFS",
                got=self.directory or "HADOOP_CONF_DIR is not set",
                remedy="set HADOOP_CONF_DIR to the directory of the cluster's core-site.xml and"
                " yarn-site.xml",
            )
        return self.default_fs

    def with_values(self, more: Mapping[str, str]) -> HadoopConf:
        """A copy with these settings added or replaced."""
        return replace(self, values={**self.values, **more})

    def default_authority(self) -> str | None:
        """The authority of `hdfs:///path`: that of an hdfs:// fs.defaultFS."""
        value = self.default_fs or ""
        return value[len("hdfs://") :] if value.lower().startswith("hdfs://") else None

    def is_name_service(self, authority: str) -> bool:
        """Whether this is the name of several NameNodes (dfs.ha.namenodes)."""
        return f"dfs.ha.namenodes.{authority}" in self.values

    def rpc_addresses(self, authority: str) -> list[str]:
        """host:port of an authority's NameNodes, in the file's order.

        Raises:
            ConfigError: one is not a host and a port; trying again would not help.
        """
        if self.is_name_service(authority):
            return self._of_service("dfs.namenode.rpc-address", authority)
        return [_with_port(authority, DEFAULT_RPC_PORT)]

    def web_urls(self, authority: str, *, secure: bool = False) -> list[str]:
        """WebHDFS addresses ("http://host:port") of an authority, in the file's order.

        Args:
            secure: https (swebhdfs://).
        Raises:
            ConfigError: as of `rpc_addresses`.
        """
        kind = "https" if secure else "http"
        if self.is_name_service(authority):
            addresses = self._of_service(f"dfs.namenode.{kind}-address", authority)
        else:
            addresses = [_with_port(authority, DEFAULT_HTTPS_PORT if secure else DEFAULT_HTTP_PORT)]
        return [f"{kind}://{address}" for address in addresses]

    def namenode_pages(self, authority: str) -> list[str]:
        """Addresses of the web ports of an hdfs:// authority's NameNodes, in the file's order.

        The host is that of the RPC address, the port the settings' or the default.

        Raises:
            ConfigError: as of `rpc_addresses`.
        """
        secure = self.https_only("dfs")
        if not self.is_name_service(authority):
            key = f"dfs.namenode.{'https' if secure else 'http'}-address"
            host, port = authority.partition(":")[0], (self.get(key) or "").rpartition(":")[2]
            authority = f"{host}:{port.strip()}" if port.strip().isdigit() else host
        return self.web_urls(authority, secure=secure)

    def https_only(self, service: str) -> bool:
        """True if the web pages of "dfs" or "yarn" are served by HTTPS alone."""
        policy = self.get(f"{service}.http.policy") or ""
        return policy.strip().upper() == "HTTPS_ONLY"

    def _of_service(self, prefix: str, service: str) -> list[str]:
        key = f"dfs.ha.namenodes.{service}"
        names = [name.strip() for name in self.values[key].split(",") if name.strip()]
        addresses = [(self.get(f"{prefix}.{service}.{name}") or "").strip() for name in names]
        if not names or "" in addresses:
            raise ConfigError(
                f"the name service {service} has a NameNode without an address"
                if names
                else f"the name service {service} has no NameNodes",
                where=self.directory,
                expected=f"{prefix}.{service}.<name> for each of {', '.join(names)}"
                if names
                else f"{key} with their names",
                remedy="take the cluster's own hdfs-site.xml",
            )
        return addresses


def as_xml(conf: HadoopConf) -> bytes:
    """All settings as one core-site.xml, references filled in, for machines without these files."""
    root = ElementTree.Element("configuration")
    for name, value in sorted(conf.values.items()):
        item = ElementTree.SubElement(root, "property")
        ElementTree.SubElement(item, "name").text = name
        ElementTree.SubElement(item, "value").text = value
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def directory(environ: Mapping[str, str] | None = None) -> str | None:
    """HADOOP_CONF_DIR, else HADOOP_HOME/etc/hadoop if it exists."""
    env = os.environ if environ is None else environ
    if env.get("HADOOP_CONF_DIR"):
        return env["HADOOP_CONF_DIR"]
    home = env.get("HADOOP_HOME")
    folder = os.path.join(home, "etc", "hadoop") if home else None
    return folder if folder and os.path.isfile(os.path.join(folder, FILES[0])) else None


def load(environ: Mapping[str, str] | None = None, *, names: Sequence[str] = FILES) -> HadoopConf:
    """Read the settings; ConfigError for a directory or file that cannot be read.

    Without HADOOP_CONF_DIR and HADOOP_HOME there are no settings, which suffices for a cluster
    without Kerberos and name services.

    Args:
        names: the files to read, later ones win (`YARN_FILES` for clients of YARN).
    """
    folder = directory(environ)
    if folder is None:
        return HadoopConf(None)
    values: dict[str, str] = {}
    finals: set[str] = set()
    files: list[str] = []
    if not os.path.isdir(folder):
        raise ConfigError(
            "HADOOP_CONF_DIR is not a directory",
            where=folder,
            remedy="set it to the directory of the cluster's core-site.xml, or unset it",
        )
    for name in names:
        path = os.path.join(folder, name)
        if os.path.exists(path):
            _read(path, values, finals, files)
    if not files:
        raise ConfigError(
            "HADOOP_CONF_DIR holds none of Hadoop's files",
            where=folder,
            expected=" or ".join(names),
            remedy="set it to the directory of the cluster's core-site.xml, or unset it",
        )
    filled = {name: _fill(value, values) for name, value in values.items()}
    state = tuple((path, os.stat(path).st_mtime_ns) for path in files)
    return HadoopConf(folder, filled, tuple(files), state)


def _read(path: str, values: dict[str, str], finals: set[str], files: list[str]) -> None:
    try:
        root = ElementTree.parse(path).getroot()
    except OSError as error:
        raise ConfigError(
            "a Hadoop file cannot be read", where=path, got=error.strerror or str(error)
        ) from None
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # also: unknown encodings
        raise ConfigError(
            "a Hadoop file holds no XML", where=path, got=str(error), remedy="correct or replace it"
        ) from None
    files.append(path)
    for item in root:
        if item.tag == _XI_INCLUDE:
            included = os.path.join(os.path.dirname(path), item.get("href", ""))
            if included not in files and os.path.isfile(included):
                _read(included, values, finals, files)
        elif item.tag == "property":
            # <property name="a" value="b"/> is Hadoop's short form
            name, value, final = (
                item.get(part, item.findtext(part)) for part in ("name", "value", "final")
            )
            if name is None or value is None or name.strip() in finals:
                continue
            values[name.strip()] = value
            if (final or "").strip().lower() == "true":
                finals.add(name.strip())


def _fill(value: str, values: Mapping[str, str]) -> str:
    """`${name}`, `${env.NAME}`, `${env.NAME-default}` (where it is not set) and
    `${env.NAME:-default}` (where it is empty, too) filled in as by Hadoop; unknown references stay.
    """

    def replacement(match: re.Match) -> str:
        name = match["name"]
        if match["variable"]:
            variable = os.environ.get(match["variable"])
            if variable is None or (not variable and match["sign"] == ":-"):
                return match[0] if match["default"] is None else match["default"]
            return variable
        if name == "user.name":
            return os.environ.get("USER", match[0])
        return values.get(name, match[0])

    for _ in range(20):  # Hadoop's limit of nested references
        filled = _REFERENCE.sub(replacement, value)
        if filled == value:
            break
        value = filled
    return value


def _with_port(authority: str, default: int) -> str:
    match = _AUTHORITY.fullmatch(authority)
    if match is None or not 1 <= int(match["port"] or default) <= _LAST_PORT:
        raise ConfigError(
            "a NameNode's address is not HOST:PORT",
            where=authority or "the address is empty",
            expected=f"host, host:port with a port of 1 to {_LAST_PORT}, or a name service of"
            " hdfs-site.xml",
        )
    return authority if match["port"] else f"{authority}:{default}"
